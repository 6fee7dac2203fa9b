"""A value and an extension of a user's own attach as those of the library do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import omnireuse
from omnireuse.hooks.extension import Extension, PipelineCall
from omnireuse.hooks.opening import Opened
from omnireuse.hooks.run import Chosen, RegionFactory, RunStart
from omnireuse.loop.events import Decision, Event, RunEnded
from omnireuse.loop.strategy import Strategy
from tests.helpers.tiny import Tiny
from tests.helpers.tiny import flux as tiny_flux

FULL = Strategy(policy=omnireuse.Never())
HALF = Strategy(policy=omnireuse.EveryNth(every=2))


@pytest.fixture
def flux() -> Tiny:
    return tiny_flux()


class Diary(Extension):
    """Notes what it sees, and computes the first run in full."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.session: Any = None

    def region(self, make: RegionFactory) -> RegionFactory:
        self.seen.append("region")
        return make

    def attach(self, session: Any) -> None:
        self.session = session

    def around(self, call: PipelineCall, make: Callable[[PipelineCall], Any]) -> Any:
        self.seen.append("before")
        result = make(call)
        self.seen.append("after")
        return result

    def choose(self, start: RunStart) -> Chosen | None:
        return Chosen(strategy=FULL) if self.seen.count("before") == 1 else None

    def event(self, event: Event) -> None:
        if isinstance(event, (Decision, RunEnded)):
            self.seen.append("reused" if isinstance(event, Decision) and event.reused else type(event).__name__)

    def summarize(self, fields: dict[str, Any]) -> None:
        fields["notes"].append(f"a diary of {self.seen.count('before')} calls")

    def close(self) -> None:
        self.seen.append("closed")


class WithDiary:
    def __init__(self) -> None:
        self.diary = Diary()

    def open(self, pipeline: Any, group: object) -> Opened:
        return HALF, "half, with a diary", (self.diary,)


def test_a_value_of_ones_own_opens_and_its_extension_sees_all(flux: Tiny) -> None:
    full, value = flux.run(), WithDiary()
    with omnireuse.enable(flux.pipe, value) as handle:
        assert torch.equal(flux.run(), full)
        assert not torch.equal(flux.run(), full)
        assert handle.summary().name == "half, with a diary"
        assert "a diary of 2 calls" in str(handle.summary())
        seen = value.diary.seen
        assert seen[:2] == ["region", "before"]
        assert seen.count("reused") == handle.summary().reused_calls > 0
        assert seen[-2:] == ["RunEnded", "after"]
    assert seen[-1] == "closed"
    assert torch.equal(flux.run(), full)


def test_extensions_come_and_go_while_reuse_is_on(flux: Tiny) -> None:
    diary = Diary()
    with omnireuse.enable(flux.pipe, HALF) as handle:
        handle.attach(diary)
        assert handle.extension(Diary) is diary
        assert diary.session.pipeline is flux.pipe
        flux.run()
        handle.detach(diary)
        seen = [*diary.seen]
        flux.run()
        assert diary.seen == seen
        assert handle.extension(Diary) is None
    assert "closed" not in diary.seen


def test_a_later_extension_is_around_those_before_it(flux: Tiny) -> None:
    class Order(Extension):
        def __init__(self, name: str) -> None:
            self.name = name

        def around(self, call: PipelineCall, make: Callable[[PipelineCall], Any]) -> Any:
            order.append(self.name)
            return make(call)

    order: list[str] = []
    with omnireuse.enable(flux.pipe, HALF) as handle:
        handle.attach(Order("inner"))
        handle.attach(Order("outer"))
        flux.run()
    assert order == ["outer", "inner"]


def test_what_cannot_open_is_refused(flux: Tiny) -> None:
    with pytest.raises(omnireuse.errors.WrongTypeError, match="the second argument must be the name of a cache"):
        omnireuse.enable(flux.pipe, object())  # type: ignore[call-overload]  # that is the mistake
