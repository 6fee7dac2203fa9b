"""A row is returned only for an input whose bits equal those that it was computed from, by unchanged weights."""

import copy
import itertools
import threading
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import omnireuse
from omnireuse.errors import ConfigError, UnsupportedModelError


class Block(nn.Module):
    """Modulates tokens (B, N, D); how it comes to its shifts is one of three ways."""

    def __init__(self, width: int, way: int) -> None:
        super().__init__()
        self.way, self.silu, self.linear = way, nn.SiLU(), nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)

    def forward(self, tokens: torch.Tensor, temb: torch.Tensor) -> torch.Tensor:
        given = (self.silu(temb), functional.silu(temb), temb)[self.way]
        shift, scale, gate = self.linear(given)[:, None].chunk(3, -1)
        return tokens + gate * self.mix(tokens * (1 + scale) + shift)


class Denoiser(nn.Module):
    def __init__(self, ways: list[int], width: int = 16, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.patch = nn.Linear(4, width)
        self.time = nn.Sequential(nn.Linear(8, width), nn.SiLU())
        self.prompt = nn.Linear(6, width)
        self.blocks = nn.ModuleList(Block(width, way) for way in ways)
        self.eval()

    def forward(self, tokens: torch.Tensor, timestep: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
        waves = timestep[:, None] * torch.arange(1, 9) / 8
        temb = self.time(waves.sin()) + self.prompt(pooled)
        tokens = self.patch(tokens)
        for block in self.blocks:
            tokens = block(tokens, temb)
        return tokens


def inputs(step: float, prompt: int = 0, batch: int = 1, seed: int = 0) -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randn(batch, 5, 4, generator=draw)
    pooled = torch.randn(batch, 6, generator=torch.Generator().manual_seed(prompt))
    return tokens, torch.full((batch,), step), pooled


CALLS = st.lists(
    st.tuples(
        st.sampled_from([1.0, 0.75, 0.5, 0.25]),
        st.integers(0, 1),
        st.sampled_from([1, 2]),
        st.sampled_from(["", "", "", "add", "data", "swap", "load", "double", "float", "inference"]),
    ),
    min_size=4,
    max_size=14,
)


@example(  # weights leave in inference mode
    ways=[0],
    calls=[(1.0, 0, 1, ""), (1.0, 0, 2, ""), (1.0, 0, 1, "inference"), (1.0, 0, 1, "add")],
    release="disk",
)
@given(ways=st.lists(st.integers(0, 2), min_size=1, max_size=3), calls=CALLS, release=st.sampled_from([None, "disk"]))
def test_any_model_schedule_shape_and_write(ways: list[int], calls: list[Any], release: Any) -> None:
    plain, cached = Denoiser(ways), Denoiser(ways)
    cache = omnireuse.install_modulation_cache(cached, release=release)
    assert cache is not None
    for number, (step, prompt, batch, what) in enumerate(calls):
        for model in (plain, cached):
            write(model, what)
        dtype = plain.patch.weight.dtype
        given_ = [each.to(dtype) for each in inputs(step, prompt, batch, number)]
        with torch.inference_mode(what == "inference"), torch.no_grad():
            assert torch.equal(plain(*given_), cached(*given_)), (number, what)
    assert all(torch.equal(one, two) for one, two in zip(plain.parameters(), cached.parameters(), strict=True))
    cache.close()


@torch.no_grad()
def write(model: Denoiser, what: str) -> None:
    """A write that torch counts, in one of several ways."""
    linear: Any = model.blocks[0].linear
    if what == "add":
        linear.weight.add_(0.5)
    elif what == "data":
        linear.weight.data = linear.weight.data * 1.5
    elif what == "swap":
        model.blocks[0].linear = copy.deepcopy(linear)
        model.blocks[0].linear.weight.mul_(2)
    elif what == "load":
        linear.load_state_dict({name: each + 1 for name, each in linear.state_dict().items()})
    elif what in ("double", "float"):
        model.to(getattr(torch, what))


@torch.no_grad()
def run(model: nn.Module, prompt: int = 0, batch: int = 1) -> list[torch.Tensor]:
    return [model(*inputs(step, prompt, batch)) for step in (1.0, 0.75, 0.5, 0.25)]


def equal(one: list[torch.Tensor], two: list[torch.Tensor]) -> bool:
    return all(itertools.starmap(torch.equal, zip(one, two, strict=True)))


def installed(release: Any = "disk", **options: Any) -> tuple[Denoiser, Denoiser, Any]:
    """A plain model, one with a cache that has seen two pictures, and the cache."""
    plain, cached = Denoiser([0, 2], 64), Denoiser([0, 2], 64)
    cache = omnireuse.install_modulation_cache(cached, release=release, **options)
    assert equal(run(plain), run(cached))
    assert equal(run(plain), run(cached))
    return plain, cached, cache


def test_the_second_picture_reads_one_small_tensor_a_call_and_computes_nothing() -> None:
    _, cached, cache = installed()
    before = cache.details()
    run(cached)
    after = cache.details()
    assert after["computed"] == before["computed"]
    assert after["reads"] - before["reads"] == 4
    assert after["released"] == after["projections"] == 2


UNCOUNTED = {
    "data": lambda weight: weight.data.add_(0.5),
    "one value": lambda weight: weight.data[0, 0].add_(0.5),
    "exchanged": lambda weight: weight.data.copy_(weight.data.flip(0)),
    "numpy": lambda weight: weight.detach().numpy().__setitem__(slice(None), 1.0),
}


@pytest.mark.parametrize("release", [None, "disk"])
@pytest.mark.parametrize("how", UNCOUNTED)
def test_writes_that_torch_does_not_count_are_noticed_at_the_next_picture(how: str, release: Any) -> None:
    plain, cached, cache = installed(release)
    for model in (plain, cached):
        UNCOUNTED[how](model.blocks[0].linear.weight)
    assert equal(run(plain), run(cached))
    assert cache.details()["changed"] == 1


@pytest.mark.parametrize("release", [None, "disk"])
@pytest.mark.parametrize("steps", [1, 2])
def test_short_schedules_notice_them_too(steps: int, release: Any) -> None:
    plain, cached = Denoiser([0, 2]), Denoiser([0, 2])
    omnireuse.install_modulation_cache(cached, release=release)
    for _ in range(4):
        for step in range(steps):
            with torch.no_grad():
                assert torch.equal(plain(*inputs(step)), cached(*inputs(step)))
        for model in (plain, cached):
            model.blocks[1].linear.weight.data.mul_(1.5)


def test_forget_drops_every_row() -> None:
    _, cached, cache = installed()
    cache.forget()
    assert cache.details()["rows"] == 0
    run(cached)
    assert cache.details()["rows"]


def test_a_row_that_a_consumer_changed_is_computed_anew() -> None:
    class InPlace(Block):
        def forward(self, tokens: torch.Tensor, temb: torch.Tensor) -> torch.Tensor:
            return tokens * self.linear(temb).add_(1)[:, None, : tokens.shape[-1]]

    plain, cached = Denoiser([0, 2]), Denoiser([0, 2])
    for model in (plain, cached):
        torch.manual_seed(1)
        model.blocks.append(InPlace(16, 2).eval())
    cache = omnireuse.install_modulation_cache(cached)
    assert cache is not None
    for _ in range(3):
        assert equal(run(plain), run(cached))
    assert cache.details()["bypassed_mutated"]


def test_gradients_and_hooks_pass_by() -> None:
    plain, cached, cache = installed()
    for model in (plain, cached):
        model.train()
        model(*inputs(1.0)).sum().backward()
    assert cache.details()["bypassed_gradients"]
    pairs = zip(plain.parameters(), cached.parameters(), strict=True)
    assert all(torch.equal(one.grad, two.grad) for one, two in pairs)
    seen: list[Any] = []
    with cached.blocks[0].linear.register_forward_hook(lambda *args: seen.append(args)):
        assert equal(run(plain), run(cached))
    assert len(seen) == 4
    for model in (plain, cached):
        torch.optim.AdamW(model.parameters(), lr=0.1, fused=True).step()
    assert equal(run(plain), run(cached))


def test_copies_and_saved_weights_know_nothing_of_it() -> None:
    plain, cached, cache = installed()
    twin = copy.deepcopy(cached)
    assert all(torch.equal(one, two) for one, two in zip(plain.parameters(), twin.parameters(), strict=True))
    before = cache.details()
    assert equal(run(plain), run(twin))
    assert cache.details() == before
    cache.close()
    assert equal(run(plain), run(twin))


def test_a_move_is_no_change() -> None:
    plain, cached, cache = installed()
    cached.to(torch.float64).to(torch.float32)
    assert equal(run(plain), run(cached))
    assert cache.details()["changed"] == 0


def test_compiled_blocks_pass_by_and_get_their_weights_back() -> None:
    plain, cached, cache = installed()
    assert cache.details()["released"] == 2
    cached.blocks[0].compile(backend="eager")
    assert equal(run(plain), run(cached))
    found = cache.details()
    assert found["released"] == found["projections"] == 1
    assert found["bypassed_compiled"]
    cached.blocks[1] = torch.compile(cached.blocks[1], backend="eager")
    assert equal(run(plain), run(cached))
    assert not [each for each in cache.tables[0].projections if "blocks" in each.name]


@pytest.mark.parametrize("how", ["in place", "wrapped"])
def test_a_whole_model_compiled_after_release_gets_its_weights_back(how: str) -> None:
    plain, cached, cache = installed()
    torch._dynamo.reset()  # forgets who wants to be told
    cached.patch.compile(backend="eager")
    assert equal(run(plain), run(cached))
    assert cache.details()["released"] == 2  # a part alone is no reason
    with torch.no_grad():
        if how == "in place":
            cached.compile(backend="eager", fullgraph=True)
        called = torch.compile(cached, backend="eager") if how == "wrapped" else cached
        assert equal(run(plain), run(called))
    found = cache.details()
    assert found["released"] == 0
    assert found["bypassed_compiled"] == 1
    cache.close()
    torch._dynamo.reset()


class EngineLinear(nn.Linear):
    """Returns a bias that is to be added, or None, beside its output, as layers of engines do."""

    tp_size = 1

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x), None


class EngineBlock(Block):
    def forward(self, tokens: torch.Tensor, temb: torch.Tensor) -> torch.Tensor:
        shift, scale, gate = self.linear(temb)[0][:, None].chunk(3, -1)
        return tokens + gate * self.mix(tokens * (1 + scale) + shift)


@torch.no_grad()
@pytest.mark.parametrize("ranks", [1, 2])
def test_layers_of_engines_are_served_on_one_rank(ranks: int, tmp_path: Any) -> None:
    models = Denoiser([2, 2], 64), Denoiser([2, 2], 64)
    for model in models:
        for block in model.blocks:
            block.__class__, block.linear.__class__ = EngineBlock, EngineLinear
            block.linear.tp_size = ranks
    plain, cached = models
    cache = omnireuse.install_modulation_cache(cached, release="disk", outside=tmp_path)
    assert cache is not None
    for prompt in (0, 0, 1, 0):
        assert equal(run(plain, prompt), run(cached, prompt))
    found = cache.details()
    kept = [each for each in cache.tables[0].projections if "blocks" in each.name]
    if ranks == 1:
        assert len(kept) == found["released"] == 2
        assert found["saved"] == 0  # a record has one tensor for each row
    else:
        assert not kept
        assert found["bypassed_sharded"]


class Loaded(nn.Parameter):
    """A parameter with attributes of its own, as servers have."""


@torch.no_grad()
def test_subclasses_of_parameters_leave_and_come_back_as_they_were() -> None:
    plain, cached = Denoiser([0, 2], 64), Denoiser([0, 2], 64)
    for block in cached.blocks:
        weight = Loaded(block.linear.weight, requires_grad=False)
        weight.weight_loader, weight.scale = print, torch.ones(1)
        block.linear.weight = weight
    kept = [block.linear.weight for block in cached.blocks]
    before = [dict(vars(each)) for each in kept]
    cache = omnireuse.install_modulation_cache(cached, release="disk")
    assert cache is not None
    for prompt in (0, 0, 1, 0):
        assert equal(run(plain, prompt), run(cached, prompt))
    assert cache.details()["released"] == 2
    cache.close()
    assert all(block.linear.weight is each for block, each in zip(cached.blocks, kept, strict=True))
    assert [dict(vars(each)) for each in kept] == before
    assert all(type(each) is Loaded for each in kept)
    assert equal(run(plain), run(cached))


class Int8(torch.Tensor):
    """A weight in eight bits with a scale: a wrapper, as torchao's are."""

    values: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def __new__(cls, values: torch.Tensor, scale: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=scale.dtype)  # type: ignore[attr-defined]

    def __init__(self, values: torch.Tensor, scale: torch.Tensor) -> None:
        self.values, self.scale = values, scale

    def __tensor_flatten__(self) -> Any:
        return ["values", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].values, args[0].scale)
        plain = [each.values.to(each.scale.dtype) * each.scale if isinstance(each, cls) else each for each in args]
        return func(*plain, **(kwargs or {}))


@torch.no_grad()
def test_quantised_weights_stay_and_their_outputs_are_kept() -> None:
    plain, cached = Denoiser([0, 2], 64), Denoiser([0, 2], 64)
    for model in (plain, cached):
        for block in model.blocks:
            scale = block.linear.weight.abs().max() / 127
            values = (block.linear.weight / scale).round().to(torch.int8)
            block.linear.weight = nn.Parameter(Int8(values, scale), requires_grad=False)
    cache = omnireuse.install_modulation_cache(cached, release="disk")
    assert cache is not None
    for _ in range(3):
        assert equal(run(plain), run(cached))
    found = cache.details()
    assert found["computed"] == 8
    assert found["released"] == 0
    assert found["bypassed_quantised"]
    for model in (plain, cached):
        model.blocks[0].linear.weight.values.neg_()
    assert equal(run(plain), run(cached))
    assert cache.details()["changed"] == 1


def test_threads_get_their_own_rows() -> None:
    plain, cached, _ = installed()
    want = [run(plain, prompt) for prompt in range(4)]
    wrong: list[int] = []

    def work(prompt: int) -> None:
        for _ in range(3):
            if not equal(run(cached, prompt), want[prompt]):
                wrong.append(prompt)

    threads = [threading.Thread(target=work, args=(prompt,)) for prompt in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


def test_tables_larger_than_the_weights_are_refused_and_max_bytes_holds() -> None:
    plain, cached = Denoiser([0, 2]), Denoiser([0, 2])
    cache = omnireuse.install_modulation_cache(cached, max_bytes=600)
    assert cache is not None
    assert equal(run(plain), run(cached))
    assert "600 bytes" in cache.summary()
    assert equal(run(plain), run(cached))
    cache.close()
    plain, cached, cache = installed(max_bytes=14_000)
    for prompt in range(1, 6):
        assert equal(run(plain, prompt), run(cached, prompt))
    assert not cache.refused
    assert 0 < cache.details()["num_bytes"] <= 14_000
    assert cache.details()["evictions"]


def test_another_process_computes_nothing_and_changed_weights_find_nothing(tmp_path: Any) -> None:
    _, _, cache = installed(outside=tmp_path)
    assert cache.details()["saved"]
    for changes in (False, True):
        plain, other = Denoiser([0, 2], 64), Denoiser([0, 2], 64)
        if changes:
            for model in (plain, other):
                model.blocks[0].linear.weight.data[0, 0] += 1
        cache = omnireuse.install_modulation_cache(other, release="disk", outside=tmp_path)
        assert cache is not None
        assert equal(run(plain), run(other))
        found = cache.details()
        assert found["computed"] == 4 * changes
        assert found["released"] == (0 if changes else 2)
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:-8] + b"12345678")
    other = Denoiser([0, 2], 64)
    cache = omnireuse.install_modulation_cache(other, release="disk", outside=tmp_path)
    assert cache is not None
    assert equal(run(Denoiser([0, 2], 64)), run(other))
    assert cache.details()["computed"] >= 8


def test_what_is_given_is_checked() -> None:
    with pytest.raises(ConfigError, match=r"unknown release .*; known: cpu, disk"):
        omnireuse.install_modulation_cache(Denoiser([0]), release="gpu")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="max_bytes"):
        omnireuse.install_modulation_cache(Denoiser([0]), max_bytes=0)
    with pytest.raises(UnsupportedModelError, match="no denoiser"):
        omnireuse.install_modulation_cache(object())
    model = Denoiser([0])
    cache = omnireuse.install_modulation_cache(model)
    assert omnireuse.install_modulation_cache(model, release="disk") is cache
    assert omnireuse.install_modulation_cache(nn.Conv2d(1, 1, 1)) is None
