"""The reference pipelines that edit people, as they lie in the checkout."""

import re

import numpy as np
import pytest

from reference import (
    EDIT_SAMPLING,
    FEW_STEPS_EDIT_SAMPLING,
    load_edit_pipeline,
    load_few_steps_edit_pipeline,
)
from reference.edits import held_out_examples
from reference.edits.evaluate import generate, judge
from reference.faces.checker import check
from tests import TOP

#: Of the held-out examples: every fourth has two references.
SHOWN = range(4)


@pytest.mark.parametrize(
    ("load", "sampling"),
    [(load_edit_pipeline, EDIT_SAMPLING), (load_few_steps_edit_pipeline, FEW_STEPS_EDIT_SAMPLING)],
    ids=["faces-edit", "faces-edit-8"],
)
def test_the_committed_weights_edit_what_is_asked_and_nothing_else(load, sampling):
    pipeline = load()
    pipeline.set_progress_bar_config(disable=True)
    examples = held_out_examples().some(SHOWN)
    assert {len(edit.people) for edit in examples.edits} == {1, 2}
    figures = judge(examples, generate(pipeline, examples, sampling))
    assert figures.changed_right == 1
    assert figures.with_two_right == 1
    assert figures.kept_right > 0.95
    assert figures.psnr > 26
    unedited = judge(examples, examples.references[:, 0])
    assert unedited.changed_right == 0


@pytest.mark.parametrize("name", ["faces-edit", "faces-edit-8"])
def test_the_call_in_the_card_edits_a_picture(name, monkeypatch):
    card = (TOP / "models" / name / "README.md").read_text("utf-8")
    block = re.search(r"```python\n(.*?)```", card, re.DOTALL)
    assert block
    monkeypatch.chdir(TOP)
    said = {}
    exec(block[1], said)
    assert all(check(held_out_examples().edits[0].after, np.asarray(said["image"], np.float32) / 255).values())
