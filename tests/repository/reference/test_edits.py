from dataclasses import asdict
from itertools import permutations

import numpy as np
import pytest
import torch

from reference.edits.task import (
    ASPECTS,
    CLAUSE_OF,
    CLAUSES,
    INSTRUCTIONS,
    MAX_SEQUENCE_LENGTH,
    NAMES,
    SIZES,
    as_looks,
    as_person,
    clause,
    held_out_edits,
    held_out_looks,
)
from reference.faces.people import is_held_out, sample_person

NUM_PEOPLE = 6


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A file of parts that shows noise of its own for each combination."""
    from reference.edits.drawing import PARTS

    path = tmp_path_factory.mktemp("parts") / PARTS
    noise = np.random.default_rng(0).integers(0, 255, (396, 7, 8, 8), np.uint8)
    np.savez_compressed(path, parts=np.kron(noise, np.ones((1, 1, 2, 2), np.uint8)))
    return path


@pytest.fixture(scope="module")
def pool(parts):
    from reference.edits.train import new_pool

    return new_pool(parts, "cpu", num_people=NUM_PEOPLE)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Weights of a model that has learnt nothing, and the pipeline that they are exported as."""
    from reference.edits.model import EditModel
    from reference.edits.train import export_edits
    from reference.load import load_edit_pipeline

    folder = tmp_path_factory.mktemp("edits")
    torch.manual_seed(0)
    model = EditModel().eval()
    # As the files have them.
    model.load_state_dict({name: value.half().float() for name, value in model.state_dict().items()})
    torch.save(model.state_dict(), folder / "flow.pt")
    export_edits(folder / "flow.pt", folder / "model")
    pipeline = load_edit_pipeline(folder / "model")
    pipeline.set_progress_bar_config(disable=True)
    return model, pipeline


def test_a_person_is_a_row_of_looks_and_back():
    rng = np.random.default_rng(0)
    people = [sample_person(rng) for _ in range(50)]
    assert [as_person(as_looks(person)) for person in people] == people


def test_every_change_has_a_clause_that_says_what_comes_out():
    for place, name in enumerate(NAMES):
        for old, new in permutations(range(SIZES[place]), 2):
            said = clause(name, old, new)
            assert said == said.strip()
            assert CLAUSES[CLAUSE_OF[place, old, new]] == said
    said = {clause("shirt", 0, new) for new in range(1, SIZES[NAMES.index("shirt")])}
    assert len(said) == len(ASPECTS["shirt"]) - 1


def test_instructions_fit_the_sequence():
    longest = max(len(instruction.split()) for instruction in INSTRUCTIONS)
    assert longest + 2 <= MAX_SEQUENCE_LENGTH


def test_an_edit_changes_what_it_says_and_nothing_else():
    edits = held_out_edits(60)
    assert {name for edit in edits for name in edit.changed} == set(NAMES)
    for edit in edits:
        old, new = as_looks(edit.before), as_looks(edit.after)
        assert tuple(name for name, a, b in zip(NAMES, old, new, strict=True) if a != b) == edit.changed
        if edit.giver:
            given = as_looks(edit.giver)
            assert all(new[NAMES.index(name)] == given[NAMES.index(name)] for name in edit.changed)
    assert sum(edit.giver is not None for edit in edits) == 12
    assert held_out_edits(60) == edits


def test_what_edits_are_judged_on_is_never_learnt(pool):
    from reference.edits.pool import sample_versions

    versions = sample_versions(np.random.default_rng(1), 200).reshape(-1, len(NAMES))
    assert not any(is_held_out(as_person(looks)) for looks in versions)
    assert all(is_held_out(edit.after) for edit in held_out_edits(20))
    assert held_out_looks().sum() == pytest.approx(held_out_looks().size / 10, rel=0.2)


@pytest.mark.parametrize("two", [False, True])
def test_a_batch_says_what_turns_its_reference_into_its_target(pool, two):
    """Latents are found in the pool again, which tells the people; the instruction must say how they differ."""
    batch = pool.batch(64, two=two)
    pictures = pool.latents.float().flatten(1)
    row = 8 * 32

    def looks(packed):
        return pool.looks[torch.cdist(packed.flatten(1), pictures).argmin(1)]

    rows = batch.references.unflatten(1, (8, -1))
    old, new = looks(rows[:, :, :8].flatten(1, 2)), looks(batch.clean)
    assert rows.shape[2] * 32 == (2 if two else 1) * row
    said = {tuple(ids.tolist()): text for ids, text in zip(pool.ids[1], INSTRUCTIONS, strict=True)}
    empty = 0
    for index, ids in enumerate(batch.ids[1]):
        text = said[tuple(ids.tolist())]
        changed = [place for place in range(len(NAMES)) if old[index, place] != new[index, place]]
        assert len(changed) in (1, 2)
        if not text:
            empty += 1
        elif two:
            given = looks(rows[index : index + 1, :, 8:].flatten(1, 2))[0]
            assert all(given[place] == new[index, place] for place in changed)
            assert all(f"the {NAMES[place]}" in text for place in changed)
        else:
            clauses = [clause(NAMES[place], int(old[index, place]), int(new[index, place])) for place in changed]
            assert text == " and ".join(clauses)
    assert empty < 20


@pytest.mark.parametrize("number", [1, 2])
def test_the_pipeline_asks_the_model_as_training_does(exported, number):
    from diffusers import FluxPipeline

    from reference.edits.evaluate import reference_latents
    from reference.load import EDIT_SAMPLING
    from reference.tokenizers import token_ids

    model, pipeline = exported
    references = np.random.default_rng(0).random((2, number, 64, 64, 3), np.float32)
    instructions = ["add glasses", "make the shirt green and remove the beard"]
    latents = reference_latents(pipeline, references)
    noise = torch.randn(2, 64, 32, generator=torch.Generator().manual_seed(0))
    sampling = {**EDIT_SAMPLING, "num_inference_steps": 1, "output_type": "latent"}
    said = pipeline(prompt=instructions, image=latents, latents=noise, **sampling).images
    packed = FluxPipeline._pack_latents(latents, 2, 8, 16, 16 * number)
    with torch.no_grad():
        ids = [token_ids(tokenizer, instructions) for tokenizer in (pipeline.tokenizer, pipeline.tokenizer_2)]
        wanted = noise - model(noise, torch.ones(2), packed, *ids)
    assert torch.allclose(said, wanted, atol=1e-4)


def test_a_picture_is_the_same_reference_as_its_latents(exported):
    from PIL import Image

    from reference.edits.evaluate import reference_latents
    from reference.load import EDIT_SAMPLING

    _, pipeline = exported
    picture = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    latents = reference_latents(pipeline, (picture / np.float32(255))[None, None])
    sampling = {**EDIT_SAMPLING, "num_inference_steps": 1, "output_type": "np"}
    made = [
        pipeline(prompt="add glasses", image=image, generator=torch.Generator().manual_seed(0), **sampling).images
        for image in (Image.fromarray(picture), latents)
    ]
    assert np.allclose(*made, atol=1e-3)


def test_training_goes_on_from_its_checkpoint(pool, tmp_path, caplog):
    from reference.edits.train import Run, distil_edits, train_edits

    caplog.set_level("INFO", logger="reference.train")
    for steps in (2, 3):
        train_edits(Run(folder=tmp_path, seconds=600, num_steps=steps, batch_size=2), pool)
    assert "goes on from step 2" in caplog.text
    assert torch.load(tmp_path / "flow-resume.pt", weights_only=True)["step"] == 3
    distil_edits(Run(folder=tmp_path, seconds=600, num_steps=1, batch_size=2), pool)
    first, second = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("flow", "distilled"))
    assert first.keys() == second.keys()
    assert any(not torch.equal(first[name], second[name]) for name in first if name.startswith("transformer."))
    assert all(torch.equal(first[name], second[name]) for name in first if not name.startswith("transformer."))


def test_judging_tells_a_copy_of_the_reference_from_the_edit():
    from reference.edits.evaluate import Examples, judge

    edits = held_out_edits(10)
    pictures = np.arange(10, dtype=np.float32)[:, None, None, None] * np.ones((1, 64, 64, 3), np.float32) / 20
    examples = Examples(edits=edits, references=np.stack([pictures, pictures], 1), truths=pictures)

    def shows(who):
        def check(person, image):
            shown = asdict(who(edits[round(float(image[0, 0, 0]) * 20)]))
            return {name: shown[name] == value for name, value in asdict(person).items()}

        return check

    noisy = pictures + 0.01
    right = judge(examples, noisy, shows(lambda edit: edit.after))
    assert (right.changed_right, right.kept_right, right.edits_right) == (1, 1, 1)
    assert right.psnr == pytest.approx(40, abs=0.1)
    copied = judge(examples, noisy, shows(lambda edit: edit.before))
    assert (copied.changed_right, copied.kept_right, copied.edits_right) == (0, 1, 0)


def test_examples_of_the_checkout_are_held_out_edits_with_their_pictures():
    from reference.edits import held_out_examples
    from reference.faces.checker import check

    examples = held_out_examples()
    assert list(examples.edits) == held_out_edits(64, two_share=0.25)
    assert [len(examples.with_references(number).edits) for number in (1, 2)] == [48, 16]
    for edit, pictures, truth in zip(examples.edits, examples.references, examples.truths, strict=True):
        assert edit.giver is not None or not pictures[1].any()
        for person, picture in zip((*edit.people, edit.after), (*pictures[: len(edit.people)], truth), strict=True):
            assert all(check(person, picture).values())


def test_saved_examples_are_those_of_the_checkout(tmp_path):
    from reference.edits.examples import EXAMPLES, held_out_examples, save_examples

    save_examples(held_out_examples(), tmp_path / "examples.npz")
    with np.load(tmp_path / "examples.npz") as saved, np.load(EXAMPLES) as kept:
        assert saved.files == kept.files
        assert all(np.array_equal(saved[name], kept[name]) for name in kept.files)


def test_missing_examples_are_told(monkeypatch, tmp_path):
    from omnireuse.errors import ConfigError
    from reference.edits import examples

    monkeypatch.setattr(examples, "EXAMPLES", tmp_path / "examples.npz")
    with pytest.raises(ConfigError, match="must be a file"):
        examples.held_out_examples()
