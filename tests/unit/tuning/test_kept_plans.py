"""Kept plans: what is damaged, or of another configuration, is measured anew with a word, and reaches no picture."""

from __future__ import annotations

import datetime
import json
import logging
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
import torch

import omnireuse
from omnireuse.base.records import sealed
from omnireuse.cli import main
from omnireuse.errors import ConfigError
from omnireuse.tuning import store
from omnireuse.tuning.configuration import Configuration
from omnireuse.tuning.store import Measured, Store, read_kept
from tests.helpers.sweep import crossed
from tests.helpers.tiny import Tiny
from tests.helpers.tiny import small_flux as tiny_flux

STEPS, COMPUTED = 10, 5
Document = dict[str, Any]


def enabled(tiny: Tiny) -> Any:
    return omnireuse.enable(tiny.pipe, computed_steps=COMPUTED)


def tuned(tiny: Tiny) -> None:
    with mock.patch("omnireuse.tuning.entry.PATIENCE", math.inf), enabled(tiny) as handle:
        for seed in range(3):
            tiny.run(steps=STEPS, seed=seed)
        assert handle.tuning.state == "ready"


def the_file(cache: Path, kind: str = "tuned") -> Path:
    (file,) = (cache / kind).glob("*.json")
    return file


def with_other_weights() -> Tiny:
    tiny = tiny_flux()
    with torch.no_grad():
        for weight in tiny.pipe.transformer.parameters():
            weight.mul_(1.3)
    return tiny


def plan_of(document: Document) -> Document:
    plan: Document = document["plans"][str(COMPUTED)]
    return plan


def weights(document: Document, change: Callable[[float], float]) -> None:
    plan = plan_of(document)
    plan["weights"] = [[[change(each) for each in step] for step in branch] for branch in plan["weights"]]


SPOILT: dict[str, Callable[[Document], object]] = {
    "a step that no run has": lambda document: plan_of(document).update(steps=[0, 2, 5, 7, 99]),
    "a step below 0": lambda document: plan_of(document).update(steps=[-1, 0, 2, 5, 7]),
    "without the first step": lambda document: plan_of(document).update(steps=[1, 2, 4, 6, 8]),
    "steps in disorder": lambda document: plan_of(document)["steps"].reverse(),
    "fewer steps than asked for": lambda document: plan_of(document)["steps"].pop(),
    "no steps": lambda document: plan_of(document).update(steps=[]),
    "no weights": lambda document: plan_of(document).update(weights=[]),
    "weights of nothing": lambda document: plan_of(document).update(weights=[[]]),
    "huge weights": lambda document: weights(document, lambda _: 1e30),
    "weights of fewer steps": lambda document: plan_of(document)["weights"][0].pop(),
    "weights without outputs": lambda document: plan_of(document)["weights"][0].__setitem__(1, [0.2] * 4),
    "an unknown forecaster": lambda document: plan_of(document).update(weights=[], forecaster="crystal ball"),
    "no errors": lambda document: plan_of(document)["evidence"].update(errors=[]),
    "an error below 0": lambda document: plan_of(document)["evidence"].update(errors=[-0.1]),
    "no evidence": lambda document: plan_of(document).update(evidence=None),
    "other noise levels": lambda document: document["at"].__setitem__(3, 0.987),
    "other weights": lambda document: document["origin"].update(weights="0" * 32),
    "another scheduler": lambda document: document.update(scheduler="DDIMScheduler"),
    "another size": lambda document: document["configuration"].update(shape=[1, 2, 3]),
    "an older format": lambda document: document.update(format=5),
    "no configuration": lambda document: document.pop("configuration"),
}


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Document]]:
    """Name and content of a file of plans."""
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("OMNIREUSE_TUNE", raising=False)
        folder = tmp_path_factory.mktemp("cache")
        patched.setenv("OMNIREUSE_CACHE_DIR", str(folder))
        tuned(tiny_flux())
        file = the_file(folder)
        document = json.loads(file.read_text("utf-8"))
        assert plan_of(document)["weights"], "it has a plan of its own"
        yield file.stem, document


def copied(document: Document) -> Document:
    copy: Document = json.loads(json.dumps(document))
    return copy


def test_a_whole_file_is_read(plans: tuple[str, Document]) -> None:
    digest, document = plans
    assert [*read_kept(json.dumps(document), digest, "here")[0].plans] == [COMPUTED]
    assert [*read_kept(json.dumps(document, indent=3), digest, "here")[0].plans] == [COMPUTED]


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        ({"height": "512", "width": "768", "guidance_scale": "3.5"}, "512 × 768, guidance 3.5"),
        (
            {"height": "64", "width": "64", "num_frames": "9", "true_cfg_scale": "1.0"},
            "64 × 64 × 9 frames, no guidance",
        ),
        ({"guidance_scale": "3.5", "true_cfg_scale": "4.0"}, "latents of 4 × 16, guidance 3.5 and 4"),
        ({"height": "None", "width": "None"}, "latents of 4 × 16, no guidance"),
        ({"tolerance": "0.03"}, "latents of 4 × 16, no guidance"),
    ],
)
def test_the_list_shows_what_a_plan_is_for(
    plans: tuple[str, Document], cache: Path, capsys: pytest.CaptureFixture[str], call: dict[str, str], shown: str
) -> None:
    document = copied(plans[1])
    document["configuration"] |= {"call": call, "shape": [4, 16]}
    digest = msgspec.convert(document["configuration"], Configuration).digest
    (cache / "tuned").mkdir(parents=True)
    (cache / "tuned" / f"{digest}.json").write_text(json.dumps(sealed(document)), "utf-8")
    assert main(["cache", "list"]) == 0
    line, total = capsys.readouterr().out.splitlines()
    day = datetime.date.today().isoformat()
    steps = len(document["configuration"]["noises"])
    aim = "tolerance 0.03, " if "tolerance" in call else ""
    assert line.startswith(f"{day}  FluxTransformer2DModel, {shown}, {COMPUTED} of {steps} steps, {aim}FlowMatch")
    assert line.endswith(f"  {digest}.json")
    assert total.startswith("1 file in ")


def test_the_list_shows_what_is_measured_in_part(
    plans: tuple[str, Document], cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configuration = msgspec.convert(plans[1]["configuration"], Configuration)
    Store().keep_measured(configuration, Measured())
    assert main(["cache", "list"]) == 0
    line, total = capsys.readouterr().out.splitlines()
    assert f", {len(configuration.noises)} steps, 0 pictures measured so far, " in line
    assert total == f"0 files in {cache / 'tuned'}, 1 measured in part beside it"


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT.keys())
@pytest.mark.parametrize("seal", [True, False], ids=["sealed", "unsealed"])
def test_what_does_not_fit_is_refused(
    plans: tuple[str, Document], spoil: Callable[[Document], object], seal: bool
) -> None:
    digest, document = plans[0], copied(plans[1])
    spoil(document)
    with pytest.raises(ConfigError, match="here: .*nothing of it is used" if seal else "checksum"):
        read_kept(json.dumps(sealed(document) if seal else document), digest, "here")[0]


@pytest.mark.parametrize("name", ["checksum", "configuration"])
def test_a_file_of_an_older_version_is_refused(plans: tuple[str, Document], name: str) -> None:
    digest, document = plans[0], copied(plans[1])
    del document[name]
    with pytest.raises(ConfigError):
        read_kept(json.dumps(document), digest, "here")[0]


def test_the_file_of_other_weights_is_measured_anew(
    flux: Tiny, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tuned(flux)
    monkeypatch.setenv("OMNIREUSE_CACHE_DIR", str(tmp_path / "other"))
    tuned(with_other_weights())
    monkeypatch.setenv("OMNIREUSE_CACHE_DIR", str(cache))
    the_file(cache).write_text(the_file(tmp_path / "other").read_text("utf-8"), "utf-8")
    full = flux.run(steps=STEPS)
    with enabled(flux) as handle:
        assert torch.equal(flux.run(steps=STEPS), full)
        assert (handle.tuning.state, handle.tuning.pictures) == ("measuring", 1)
    assert caplog.text.count("tuned plans are measured anew") == 1


def test_the_record_of_other_weights_does_not_count(
    flux: Tiny, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with enabled(flux):
        flux.run(steps=STEPS)
    monkeypatch.setenv("OMNIREUSE_CACHE_DIR", str(tmp_path / "other"))
    other = with_other_weights()
    with enabled(other):
        other.run(steps=STEPS)
    the_file(tmp_path / "other", "measured").write_text(the_file(cache, "measured").read_text("utf-8"), "utf-8")
    full = other.run(steps=STEPS)
    with enabled(other) as handle:
        assert torch.equal(other.run(steps=STEPS), full)
        assert handle.tuning.pictures == 1
    assert "full runs are measured anew" in caplog.text


LEAVES = (None, True, 0, -3, 9999, 10**30, 0.5, -1e300, "", "nan", [], {}, [0], {"a": 1})


def mutated(document: Document, draw: random.Random) -> Document:
    """The document with one of its values, at any depth, replaced, dropped or doubled."""
    document = copied(document)
    places: list[tuple[Any, Any]] = []

    def visit(node: Any) -> None:
        for place in node if isinstance(node, dict) else range(len(node)):
            places.append((node, place))
            if isinstance(node[place], (dict, list)):
                visit(node[place])

    visit(document)
    while True:
        node, place = draw.choice(places)
        before = node[place]
        kind = draw.randrange(4)
        if kind == 0:
            del node[place]
        elif kind == 1 and isinstance(node, list):
            node.insert(place, node[place])
        elif kind == 2 and type(before) in (int, float):
            node[place] = draw.choice([-before, before + 1, before * 1e6])
        else:
            node[place] = draw.choice(LEAVES)
        if not isinstance(node, dict) or kind == 0 or repr(node[place]) != repr(before):
            return document


def test_no_change_of_a_value_is_believed(plans: tuple[str, Document]) -> None:
    digest, document = plans
    for seed in range(200):
        other = mutated(document, random.Random(seed))
        if other != document:
            with pytest.raises(ConfigError):
                read_kept(json.dumps(other), digest, f"seed {seed}")[0]


def test_a_value_with_a_checksum_of_its_own_is_followed_or_refused(plans: tuple[str, Document]) -> None:
    digest, document = plans
    for seed in range(200):
        other = sealed(mutated(document, random.Random(seed)))
        try:
            profile = read_kept(json.dumps(other), digest, f"seed {seed}")[0]
        except ConfigError:
            continue
        for plan in profile.plans.values():
            plan.strategy(profile.coordinates)


@pytest.mark.parametrize(("seed", "seal"), crossed(range(3), [True, False]))
def test_pictures_are_bit_equal_beside_damaged_files(flux: Tiny, cache: Path, seed: int, seal: bool) -> None:
    full = flux.run(steps=STEPS)
    with enabled(flux):
        flux.run(steps=STEPS)
    file, draw = the_file(cache, "measured"), random.Random(seed)
    good = json.loads(file.read_text("utf-8"))
    for _ in range(4):
        other = mutated(good, draw)
        file.write_text(json.dumps(sealed(other) if seal else other), "utf-8")
        with enabled(flux) as handle:
            assert torch.equal(flux.run(steps=STEPS), full)
            assert handle.tuning.state == "measuring"
            assert torch.equal(flux.run(steps=STEPS), full) or handle.tuning.state == "ready"


class Server:
    """Stands for Redis."""

    kept: dict[str, object] = {}  # noqa: RUF012  # it is the server's

    def __init__(self, *_: object, **__: object) -> None: ...

    def lookup(self, key: str) -> object:
        return self.kept.get(key)

    def put(self, key: str, value: object) -> bool:
        self.kept[key] = value
        return True


@pytest.mark.parametrize("damage", ["", "{}", 7, None, "other weights"])
def test_what_a_server_has_is_believed_no_more_than_a_file(
    flux: Tiny,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    damage: object,
) -> None:
    monkeypatch.setenv("OMNIREUSE_CACHE_REDIS", "redis://nowhere")
    monkeypatch.setattr(store, "RedisTier", Server)
    monkeypatch.setattr(Server, "kept", {})
    tuned(flux)
    good = the_file(cache).read_text("utf-8")
    (digest,) = Server.kept
    if damage == "other weights":
        monkeypatch.setenv("OMNIREUSE_CACHE_DIR", str(tmp_path / "third"))
        tuned(with_other_weights())
        damage = Server.kept.pop(next(key for key in Server.kept if key != digest))
    Server.kept[digest] = damage
    with caplog.at_level(logging.WARNING, logger="omnireuse"):
        # The file here is whole, and stays.
        monkeypatch.setenv("OMNIREUSE_CACHE_DIR", str(cache))
        with enabled(flux) as handle:
            flux.run(steps=STEPS)
            assert handle.tuning.state == "ready"
        assert the_file(cache).read_text("utf-8") == good
        # Elsewhere nothing is known, and the next plan replaces what the server has.
        monkeypatch.setenv("OMNIREUSE_CACHE_DIR", str(tmp_path / "other"))
        with enabled(flux) as handle:
            flux.run(steps=STEPS)
            assert handle.tuning.state == "measuring"
        assert not list((tmp_path / "other" / "tuned").glob("*.json"))
        tuned(flux)
    assert read_kept(str(Server.kept[digest]), digest, "the server")[0]
    assert ("tuned plans are measured anew: OMNIREUSE_CACHE_REDIS" in caplog.text) is (damage is not None)


def test_a_folder_in_place_of_a_file_is_no_plan(flux: Tiny, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    with enabled(flux):
        flux.run(steps=STEPS)
    name = the_file(cache, "measured").stem
    Store(cache).file(name).mkdir()
    full = flux.run(steps=STEPS)
    with enabled(flux) as handle:
        assert torch.equal(flux.run(steps=STEPS), full)
        assert handle.tuning.state == "measuring"
    assert "cannot be read" in caplog.text


def test_only_plans_of_like_runs_are_named_and_in_plain_words(cache: Path, plans: tuple[str, Document]) -> None:
    digest, document = plans
    (cache / "tuned").mkdir(parents=True, exist_ok=True)
    (cache / "tuned" / f"{digest}.json").write_text(json.dumps(document), "utf-8")
    kept, steps = msgspec.convert(document["configuration"], Configuration), len(document["configuration"]["noises"])
    asked = msgspec.structs.replace(kept, call={**kept.call, "quality": "40", "judged": "6"})
    assert Store().near(asked) == "a plan is kept for no quality, and this call has quality=40"
    short = msgspec.structs.replace(kept, noises=kept.noises[: steps // 2])
    assert Store().near(short) == ""


def test_a_folder_that_cannot_be_written_is_said_once(
    flux: Tiny, cache: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNIREUSE_CACHE_DIR", str(cache / "a file"))
    cache.mkdir(parents=True, exist_ok=True)
    (cache / "a file").touch()
    with omnireuse.enable(flux.pipe, tune=1) as handle:
        flux.run(steps=24)
        flux.run(steps=24)
        assert handle.tuning.state == "ready"
    (line,) = [record.message for record in caplog.records if "kept in memory only" in record.message]
    assert "OMNIREUSE_CACHE_DIR names another folder" in line


def written_uncounted(tiny: Tiny) -> None:
    for weight in tiny.pipe.transformer.parameters():
        weight.data.mul_(1.01)  # no version moves


def test_weights_that_are_replaced_without_a_trace_get_plans_of_their_own(flux: Tiny, cache: Path) -> None:
    with omnireuse.enable(flux.pipe) as handle:
        for seed in range(3):
            flux.run(steps=STEPS, seed=seed)
        assert handle.tuning.state == "ready"
        written_uncounted(flux)
        flux.run(steps=STEPS)
        assert (handle.tuning.state, handle.tuning.pictures) == ("measuring", 1)
    assert len(list((cache / "tuned").glob("*.json"))) == 1


def test_trial_runs_of_other_weights_than_the_measured_pictures_show_nothing(flux: Tiny) -> None:
    calls = 0

    def callback(*_: object) -> dict[str, object]:
        nonlocal calls
        calls += 1
        if calls == 2 * STEPS + 3:  # in the first trial run
            written_uncounted(flux)
        return {}

    with omnireuse.enable(flux.pipe) as handle:
        for seed in range(2):
            flux.run(steps=STEPS, seed=seed, callback_on_step_end=callback)
        assert handle.tuning.runs == 2, "the trial run is not counted"
        assert "weights of the measured pictures were replaced" in str(handle.tuning)
