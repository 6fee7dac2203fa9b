"""Every policy, forecaster and tier keeps its contract; a new one is picked up by itself."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from omnireuse import ErrorControl, EveryNth, MagCache, Never, Polynomial, Spread, StepView, TeaCache
from omnireuse.errors import ConfigError, UnknownNameError
from omnireuse.forecasters import FORECASTERS, Forecaster, Memory
from omnireuse.forecasters.base import PolynomialMemory
from omnireuse.loop.strategy import Strategy
from omnireuse.policies import POLICIES, ResidualDiff, StepMask
from omnireuse.policies.base import Policy
from omnireuse.stores.disk import DiskTier
from omnireuse.stores.redis import RedisTier
from omnireuse.testing import check_forecaster, check_policy, check_tier

OTHERS: list[Policy] = [
    Spread(speedup=2.0),
    Spread(num_computed=5, warmup=2),
    EveryNth(every=3),
    ResidualDiff(mask="fast"),
    StepMask(mask="ultra"),
    MagCache(ratios=(1.0, *(0.98,) * 27)),
]


@pytest.mark.parametrize("policy", [*(POLICIES[name]() for name in POLICIES), *OTHERS], ids=repr)
def test_a_policy_keeps_its_contract(policy: Policy) -> None:
    check_policy(policy)


@pytest.mark.parametrize("name", FORECASTERS)
def test_a_forecaster_keeps_its_contract(name: str) -> None:
    check_forecaster(FORECASTERS[name]())


def test_the_tier_on_disk_keeps_its_contract(tmp_path: Path) -> None:
    check_tier(lambda namespace: DiskTier(tmp_path, max_bytes=1 << 20, namespace=namespace))


# -- the contracts can fail: each of these breaks one promise  -----------------------------


@dataclass(frozen=True, kw_only=True)
class _Counts(TeaCache):
    """Keeps its account in the policy, where the next run finds it."""

    seen: tuple[list[int], ...] = ([],)

    def wants_reuse(self, state: Any, view: StepView) -> bool:
        self.seen[0].append(view.index)
        return len(self.seen[0]) % 2 == 0


@dataclass(kw_only=True)
class _Thawed(Policy):
    level: int = 0

    def wants_reuse(self, state: Any, view: StepView) -> bool:
        return False


@dataclass(frozen=True, kw_only=True)
class _Boastful(Policy):
    def wants_reuse(self, state: Any, view: StepView) -> bool:
        return True

    def schedule(self, total: int, noises: tuple[float, ...] | None = None) -> frozenset[int]:
        return frozenset(range(total))


@dataclass(frozen=True, kw_only=True)
class _Brittle(ErrorControl):
    def wants_reuse(self, state: Any, view: StepView) -> bool:
        return int(1000 * (view.error or 0)) < 1


@dataclass(frozen=True, kw_only=True)
class _Forgetful(Policy):
    """Counts reused steps, and begins anew after each."""

    most: int = 2

    def start(self) -> int:
        return 0

    def wants_reuse(self, state: Any, view: StepView) -> bool:
        return bool(state < self.most)

    def after(self, state: Any, view: StepView, reused: bool) -> int:
        return self.start()


@dataclass(frozen=True, kw_only=True)
class _Hiding(Policy):
    limit: float = 0.5

    def wants_reuse(self, state: Any, view: StepView) -> bool:
        return (view.noise or 0) < self.limit


@dataclass(frozen=True, kw_only=True)
class _Unasked(Policy):
    """Compares a figure that nobody measures for it."""

    most: float = 0.3

    def wants_reuse(self, state: Any, view: StepView) -> bool:
        return view.index > 2 and view.drift < self.most  # type: ignore[operator]  # the mistake


@dataclass(frozen=True, kw_only=True)
class _Silent(Policy):
    """Never reuses, because its figure is never there."""

    def wants_reuse(self, state: Any, view: StepView) -> bool:
        return view.error is not None and view.error < 0.1


@dataclass(frozen=True, kw_only=True)
class _Spends(Policy):
    """Its state needs the figure."""

    def start(self) -> float:
        return 0.0

    def wants_reuse(self, state: float, view: StepView) -> bool:
        return state < 0.3

    def after(self, state: float, view: StepView, reused: bool) -> float:
        return state + (view.drift or 0.0) if reused else 0.0


@dataclass(frozen=True, kw_only=True)
class _Fails(Policy):
    """Fails for a reason of its own, whatever is measured."""

    def wants_reuse(self, state: Any, view: StepView) -> bool:
        raise TypeError("not yet written")


UNASKED = [
    (_Unasked(), r"_Unasked decides by view\.drift, .* write needs_drift = True in the class"),
    (_Silent(), r"_Silent decides by view\.error, .* write needs_error = True in the class"),
    (_Spends(), r"_Spends decides by view\.drift, .* write needs_drift = True in the class"),
]


@pytest.mark.parametrize(("policy", "message"), UNASKED, ids=lambda each: type(each).__name__)
def test_a_policy_that_decides_by_what_it_has_not_asked_for_is_told(policy: Policy, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_policy(policy)
    with pytest.raises(ConfigError, match=message):
        Strategy(policy=policy)


def test_what_the_strategy_measures_need_not_be_asked_for() -> None:
    assert Strategy(policy=_Unasked(), signal="latents").chosen_signal == "latents"
    assert Strategy(policy=_Silent(), measure_errors=True).measure_errors


def test_a_policy_that_fails_for_another_reason_is_not_told_of_figures() -> None:
    assert Strategy(policy=_Fails()).policy == _Fails()


def test_a_policy_with_a_field_of_a_reserved_name_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"_Hiding\.limit: a field must not hide Policy\.limit; give the field another"
    ):
        Strategy(policy=_Hiding())


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (_Counts(), "must be pure"),
        (_Thawed(), "must be frozen"),
        (_Boastful(), "must be the steps that wants_reuse"),
        (_Forgetful(), "nothing is carried"),
        (_Hiding(), "must not hide Policy.limit"),
    ],
)
def test_a_broken_policy_is_found(policy: Policy, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_policy(policy)


def test_a_policy_that_fails_on_odd_figures_is_found() -> None:
    with pytest.raises((ValueError, OverflowError)):
        check_policy(_Brittle())


class _Hoards(PolynomialMemory):
    def observe(self, at: float, value: torch.Tensor) -> None:
        self._nodes = deque([*self._nodes, (at, value)])

    def predict(self, at: float) -> torch.Tensor:
        return self.last


class _Scribbles(PolynomialMemory):
    def observe(self, at: float, value: torch.Tensor) -> None:
        super().observe(at, value.mul_(1.0 if value.unique().numel() < 30 else 1.001))


class _Reworks(PolynomialMemory):
    def predict(self, at: float) -> torch.Tensor:
        return self.last.mul_(1 + 1e-6)


class _Plain(Forecaster):
    def start(self, branch: int = 0) -> Memory:
        return PolynomialMemory()


@dataclass(frozen=True)
class _Made(Forecaster):
    kind: type[Memory]

    def start(self, branch: int = 0) -> Memory:
        return self.kind(3) if self.kind is _Hoards else self.kind()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (_Hoards, "must keep a bounded number of values"),
        (_Scribbles, "must not write to what it is shown|must be exact"),
    ],
)
def test_a_broken_forecaster_is_found(kind: type[Memory], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_forecaster(_Made(kind))


def test_a_forecaster_that_writes_to_what_it_keeps_is_found() -> None:
    with pytest.raises(AssertionError, match="must not write to what it is shown"):
        check_forecaster(_Made(_Reworks))


def test_classes_and_plain_ones_are_told_what_to_be() -> None:
    with pytest.raises(AssertionError, match=r"got a class; write Never\(\)"):
        check_policy(Never)  # type: ignore[arg-type]  # that is the mistake
    with pytest.raises(AssertionError, match=r"needs a forecaster; write _Plain\(\)"):
        check_forecaster(_Plain)  # type: ignore[arg-type]  # that is the mistake
    with pytest.raises(AssertionError, match="_Plain must be a dataclass"):
        check_forecaster(_Plain())
    with pytest.raises(UnknownNameError, match=r"'speed'; did you mean 'speedup'\?"):
        Strategy.default(speed=2)


def test_polynomials_of_every_order_keep_the_contract() -> None:
    for order in (1, 2, 3):
        check_forecaster(Polynomial(order=order))


class _Forgets(DiskTier):
    def _write(self, full: str, data: bytes) -> bool:
        return True


def test_a_broken_tier_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="was put and must be found"):
        check_tier(lambda namespace: _Forgets(tmp_path, max_bytes=1 << 20, namespace=namespace))


def test_the_tier_in_redis_keeps_its_contract(redis_url: str) -> None:
    check_tier(lambda namespace: RedisTier(redis_url, namespace=namespace))
