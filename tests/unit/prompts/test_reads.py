"""A hit is what encoding anew would give: whatever an encoding reads is noticed when it changes, and nothing else."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from tokenizers import normalizers, pre_tokenizers, processors
from torch import nn

from omnireuse.diffusion.cache.prompt_embed_cache import install_prompt_embed_cache
from tests.unit.prompts import reading_pipelines
from tests.unit.prompts.reading_pipelines import (
    Branching,
    Configured,
    Contained,
    Decorated,
    Encoder,
    Functional,
    Indirect,
    Inheriting,
    InParts,
    OfModules,
    Plain,
    RawTokenizing,
    Rewriting,
    Tokenizing,
    TwoDown,
    WithDenoiser,
    WithTensors,
)


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


def direct(pipeline, *args):
    return type(pipeline).encode_prompt(pipeline, *args)


def instance_forward(layer):
    forward, down, up = layer.forward, nn.Linear(8, 2), nn.Linear(2, 8)
    layer.forward = lambda x: forward(x) + up(down(x))  # as sd-scripts applies a LoRA


def with_one_row_changed(weight):
    data = weight.data.clone()
    data[ord("c")] += 1
    weight.data = data  # as textual inversion does


def as_another_class(layer):
    layer.__class__ = type("Doubled", (nn.Linear,), {"forward": lambda self, x: nn.Linear.forward(self, x) * 2})


def swap_in(layer):
    layer.__dict__ = nn.Linear(8, 8).__dict__


CHANGES_OF_AN_ENCODER = {
    "hook": lambda e: e.layers[0].register_forward_hook(lambda _m, _i, out: out * 2),
    "pre-hook": lambda e: e.layers[0].register_forward_pre_hook(lambda _m, args: (args[0] * 2,)),
    "hook of the root": lambda e: e.register_forward_hook(lambda _m, _i, out: out * 2),
    "instance forward": lambda e: instance_forward(e.layers[0]),
    "pop": lambda e: e.layers.pop(1),
    "del": lambda e: e.layers.__delitem__(1),
    "insert": lambda e: e.layers.insert(1, nn.Linear(8, 8)),
    "order": lambda e: e.layers.insert(0, e.layers.pop(2)),
    "_parameters": lambda e: e.layers[0]._parameters.update(weight=nn.Parameter(torch.ones(8, 8))),
    "_buffers": lambda e: e._buffers.update(shift=torch.ones(8)),
    "_modules": lambda e: e._modules.update(norm=nn.Identity()),
    "eps": lambda e: setattr(e.norm, "eps", 1.0),
    "scale": lambda e: setattr(e, "scale", 2.0),
    "config": lambda e: setattr(e.config, "power", 2),
    "one row through data": lambda e: with_one_row_changed(e.table.weight),
    "tensor in a list, in place": lambda e: e.extra[0].add_(1),
    "tensor in a list, replaced": lambda e: e.extra.__setitem__(0, torch.ones(8) * 3),
    "class": lambda e: as_another_class(e.layers[0]),
    "attributes updated": lambda e: e.layers[0].__dict__.update(nn.Linear(8, 8).__dict__),
    "attributes replaced": lambda e: swap_in(e.layers[0]),
    "buffer in place": lambda e: e.shift.add_(1),
    "cast": lambda e: e.layers[0].bfloat16().float(),
}
CHANGES = [(Plain, name, lambda p, change=change: change(p.encoder)) for name, change in CHANGES_OF_AN_ENCODER.items()]
CHANGES += [
    (TwoDown, "weights", lambda p: p.compel.provider.encoder.norm.weight.add_(1)),
    (TwoDown, "replaced", lambda p: setattr(p.compel.provider, "encoder", Encoder(1))),
    (Contained, "in a list", lambda p: p.listed[0].norm.weight.mul_(2)),
    (Contained, "in a dict", lambda p: p.named["a"].norm.weight.mul_(2)),
    (Contained, "in a tuple", lambda p: p.paired[0].norm.weight.mul_(2)),
    (Contained, "replaced in a list", lambda p: p.listed.__setitem__(0, Encoder(7))),
    (Configured, "chain", lambda p: setattr(p.config.inner, "template", "y{}")),
    (Configured, "replaced", lambda p: setattr(p.config, "inner", SimpleNamespace(template="z{}"))),
    (Configured, "True for 1", lambda p: setattr(p.config, "number", True)),
    (Configured, "1.0 for 1", lambda p: setattr(p.config, "number", 1.0)),
    (Configured, "nested list", lambda p: p.options["styles"]["names"].append("c")),
    (Decorated, "read by a decorator", lambda p: setattr(p, "prefix", "b")),
    (Inheriting, "read by super()", lambda p: setattr(p, "prefix", "b")),
    (Rewriting, "read and written", lambda p: setattr(p, "style", "b")),
    (Indirect, "property", lambda p: setattr(p, "a", 5)),
    (Indirect, "vars", lambda p: setattr(p, "b", 5)),
    (Indirect, "fallback", lambda p: setattr(p.inner, "c", 5)),
    (Indirect, "presence", lambda p: setattr(p, "flag", None)),
    (WithTensors, "in place", lambda p: p.listed[0].add_(1)),
    (WithTensors, "replaced", lambda p: p.listed.__setitem__(0, torch.ones(8))),
    (WithTensors, "array", lambda p: p.array.__setitem__(0, 5)),
    (InParts, "layer", lambda p: p.encoder.norm.weight.add_(1)),
    (InParts, "forward", lambda p: setattr(p.encoder, "scale", 3.0)),
    (Functional, "weight", lambda p: p.encoder.table.weight.add_(1)),
    (WithDenoiser, "dtype", lambda p: p.unet.half()),
    (WithDenoiser, "configuration", lambda p: setattr(p.unet.config, "repeats", 2)),
    (OfModules, "encoder", lambda p: p.encoder.norm.weight.add_(1)),
    (OfModules, "parameter", lambda p: p.bias.add_(1)),
    (Tokenizing, "pad token", lambda p: setattr(p.tokenizer, "pad_token", "a")),
    (Tokenizing, "padding side", lambda p: setattr(p.tokenizer, "padding_side", "left")),
    (Tokenizing, "added token", lambda p: p.tokenizer.add_tokens(["ca"])),
]
CHANGES += [
    (Tokenizing, name, lambda p, name=name, made=made: setattr(p.tokenizer.backend_tokenizer, name, made))
    for name, made in (
        ("normalizer", normalizers.Replace("c", "d")),
        ("pre_tokenizer", pre_tokenizers.Whitespace()),
        ("post_processor", processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])),
    )
]
CHANGES += [
    (RawTokenizing, "truncation", lambda p: p.tokenizer.enable_truncation(3)),
    (RawTokenizing, "padding", lambda p: p.tokenizer.enable_padding(length=20)),
]


@pytest.mark.parametrize(("kind", "_name", "change"), CHANGES, ids=lambda v: getattr(v, "__name__", v))
def test_a_change_of_what_was_read_is_noticed(kind, _name, change):
    pipeline = kind()
    cache = install_prompt_embed_cache(pipeline)
    old = pipeline.encode_prompt("cat")
    pipeline.encode_prompt("cat")
    assert cache.hits == 1
    change(pipeline)
    try:
        want = direct(pipeline, "cat")
    except (RuntimeError, IndexError) as error:  # a tokenizer may now give what the encoder does not take
        with pytest.raises(type(error)):
            pipeline.encode_prompt("cat")
        return
    got = pipeline.encode_prompt("cat")
    assert got.dtype == want.dtype
    assert torch.equal(got, want)
    assert old.shape != want.shape or old.dtype != want.dtype or not torch.equal(old, want), "the change has no effect"
    pipeline.encode_prompt("cat")
    assert cache.hits == 2


def test_code_globals_and_attributes_of_classes_are_noticed(monkeypatch):
    for target, name, value in (
        (reading_pipelines, "SEPARATOR", "+"),
        (Indirect, "factor", 2),
        (Indirect, "more", property(lambda self: 7)),
        (Plain, "encode_prompt", lambda self, prompt: torch.zeros(1)),
        (nn.LayerNorm, "forward", lambda self, x: x),
        (Decorated, "encode_prompt", lambda self, prompt: torch.ones(1)),
    ):
        for pipeline in (Indirect(), Inheriting(), Plain()):
            install_prompt_embed_cache(pipeline)
            pipeline.encode_prompt("cat")
            with monkeypatch.context() as patch:
                patch.setattr(target, name, value)
                assert torch.equal(pipeline.encode_prompt("cat"), direct(pipeline, "cat")), (pipeline, name)
            assert torch.equal(pipeline.encode_prompt("cat"), direct(pipeline, "cat")), (pipeline, name)


def test_both_branches_count_whichever_is_taken():
    pipeline = Branching()
    cache = install_prompt_embed_cache(pipeline)
    for which in (0, 1):
        pipeline.which = which
        pipeline.encode_prompt("cat")
    pipeline.which = 0
    pipeline.encode_prompt("cat")
    assert (cache.hits, cache.misses) == (1, 2)
    pipeline.which, pipeline.other = 1, "z"
    assert torch.equal(pipeline.encode_prompt("cat"), direct(pipeline, "cat"))


def test_settings_that_return_find_their_entries():
    pipeline = Configured()
    cache = install_prompt_embed_cache(pipeline)
    for number in (1, 2, 1, 2):
        pipeline.config.number = number
        pipeline.encode_prompt("cat")
    assert (cache.hits, cache.misses) == (2, 2)


def test_a_denoiser_that_is_asked_for_its_dtype_may_be_trained():
    pipeline = WithDenoiser()
    cache = install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("cat")
    optimizer = torch.optim.AdamW(pipeline.unet.parameters(), lr=0.1, fused=True)
    with torch.enable_grad():
        pipeline.unet(torch.ones(2)).sum().backward()
    optimizer.step()
    pipeline.unet.train()
    pipeline.encode_prompt("cat")
    assert (cache.hits, cache.misses) == (1, 1)


def test_an_equal_copy_of_weights_and_settings_keeps_the_entries():
    pipeline = Configured()
    cache = install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("cat")
    pipeline.config = SimpleNamespace(inner=SimpleNamespace(template="x{}"), number=1)
    pipeline.encoder.load_state_dict(pipeline.encoder.state_dict())
    for weight in pipeline.encoder.parameters():
        weight.data = weight.data.clone()
    pipeline.encode_prompt("cat")
    assert (cache.hits, cache.misses) == (1, 1)


@pytest.mark.parametrize("flag", ["swap_module_params_on_conversion", "overwrite_module_params_on_conversion"])
def test_modules_can_be_moved_in_every_way_that_torch_has(flag):
    pipeline = Plain()
    install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("cat")
    getattr(torch.__future__, f"set_{flag}")(True)
    try:
        for dtype in (torch.float64, torch.bfloat16, torch.float32):
            pipeline.encoder.to(dtype)
            pipeline.encoder.extra[0] = pipeline.encoder.extra[0].to(dtype)
            assert torch.equal(pipeline.encode_prompt("cat"), direct(pipeline, "cat"))
    finally:
        getattr(torch.__future__, f"set_{flag}")(False)


class Leaving(Plain):
    def encode_prompt(self, prompt):
        self.last = prompt
        if prompt == "mask":
            self.mask = torch.ones(2)
        return self.encoder(prompt)


def test_what_a_call_leaves_on_the_pipeline_is_left_by_a_hit():
    pipeline = Leaving()
    cache = install_prompt_embed_cache(pipeline)
    for prompt in ("a", "b", "a", "b"):
        pipeline.encode_prompt(prompt)
        assert pipeline.last == prompt
    assert cache.hits == 2
    pipeline.encode_prompt("mask")
    assert cache.bypassed_by["left"] == 1


class Iterating(Plain):
    def __init__(self):
        super().__init__()
        self.words = iter("abcdef")

    def encode_prompt(self, prompt):
        return self.encoder(prompt + next(self.words))


class Drawing(Plain):
    def encode_prompt(self, prompt):
        return self.encoder(prompt) + torch.randn(8)


class Custom(RawTokenizing):
    """A part of a tokenizer in Python: nobody can look into it, and it may give other tokens each time."""

    calls = itertools.count()

    def __init__(self):
        super().__init__()
        self.tokenizer.normalizer = normalizers.Normalizer.custom(self)

    @staticmethod
    def normalize(text):
        text.replace("c", chr(100 + next(Custom.calls)))


class Failing(Plain):
    def __init__(self):
        super().__init__()
        self.is_broken = False

    @property
    def style(self):
        if self.is_broken:
            raise ValueError("no style")
        return "a"

    def encode_prompt(self, prompt):
        return self.encoder(self.style + prompt)


def test_an_error_of_a_property_is_the_callers():
    pipeline = Failing()
    cache = install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("cat")
    pipeline.is_broken = True
    with pytest.raises(ValueError, match="no style"):
        pipeline.encode_prompt("cat")
    pipeline.is_broken = False
    pipeline.encode_prompt("cat")
    assert cache.misses + cache.hits == 2


@pytest.mark.parametrize(("kind", "reason"), [(Iterating, "unchecked"), (Drawing, "random"), (Custom, "unchecked")])
def test_what_changes_unseen_is_not_cached(kind, reason, caplog):
    pipeline = kind()
    cache = install_prompt_embed_cache(pipeline)
    assert not torch.equal(pipeline.encode_prompt("cat"), pipeline.encode_prompt("cat"))
    assert cache.bypassed_by[reason] == 2
    assert caplog.text.count(f"({reason})") == 1


def test_a_pipeline_within_a_pipeline_is_read_through_its_cache():
    class Outer:
        def __init__(self):
            self.prior = Plain()

        def encode_prompt(self, prompt):
            return self.prior.encode_prompt(prompt) * 2

    pipeline = Outer()
    cache, inner = install_prompt_embed_cache(pipeline), install_prompt_embed_cache(pipeline.prior)
    pipeline.prior.encode_prompt("cat")
    for _ in range(2):
        pipeline.encode_prompt("cat")
    assert (cache.hits, inner.bypassed_by["nested"]) == (1, 1)
    pipeline.prior.encoder.norm.weight.add_(1)
    assert torch.equal(pipeline.encode_prompt("cat"), pipeline.prior.encoder("cat") * 2)


class Watching(OfModules):
    def encode_prompt(self, prompt):
        self.seen = [dict(vars(kind)) for kind in type(self).__mro__[:-1]]
        return super().encode_prompt(prompt)


def test_nothing_of_the_classes_is_replaced_at_any_time():
    pipeline = Watching()
    before = [dict(vars(kind)) for kind in Watching.__mro__[:-1]]
    install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("cat")
    assert pipeline.seen == before
    assert not nn.modules.module._global_forward_pre_hooks


class Beside(Plain):
    """Runs an encoder that no attribute leads to, before its own."""

    def encode_prompt(self, prompt):
        return (STRAY(prompt) + self.encoder(prompt)).detach()


STRAY = Encoder(1)


class Offloaded(Beside):
    def encode_prompt(self, prompt):
        out = super().encode_prompt(prompt)
        move(self)
        return out


class Late(Plain):
    """Looks at a module that only some calls run; it holds another one outside of its layers."""

    def __init__(self):
        super().__init__()
        self.a = Encoder(1)
        self.a.inner = [Encoder(2)]

    def encode_prompt(self, prompt):
        a, out = self.a, self.encoder(prompt)
        return (a(prompt) + a.inner[0](prompt) + out if prompt == "p" else out).detach()


def move(pipeline):
    for weight in pipeline.encoder.parameters():
        weight.data = weight.data.clone()


@pytest.mark.parametrize("kind", [Beside, Offloaded, Late])
def test_the_order_in_which_modules_ran_does_not_count(kind):
    pipeline = kind()
    cache = install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("q")
    for _ in range(3):
        pipeline.encode_prompt("p")
        move(pipeline)
    assert (cache.misses, cache.hits, cache.details()["outdated"]) == (2, 2, 0)


def test_a_call_that_makes_a_module_is_not_cached():
    class Own:
        def encode_prompt(self, prompt):
            return nn.Identity()(torch.full((2,), float(len(prompt))))

    pipeline = Own()
    cache = install_prompt_embed_cache(pipeline)
    assert [pipeline.encode_prompt(prompt)[0].item() for prompt in ("a", "ab", "a")] == [1, 2, 1]
    assert (cache.bypassed_by["stray"], len(cache.store)) == (3, 0)


class Shifted:
    def __init__(self):
        self.shift = torch.zeros(2)

    def encode_prompt(self, prompt):
        out = self.shift + len(prompt)
        change_once(self.shift)
        return out


class Compiled(Plain):
    """Its encoder is compiled: no hook tells that it runs."""

    def __init__(self):
        super().__init__()
        weight = self.encoder.norm.weight
        self.encoder._compiled_call_impl = lambda prompt: weight.detach() + len(prompt)

    def encode_prompt(self, prompt):
        encoder = self.encoder
        out = encoder(prompt)
        change_once(vars(encoder)["_modules"]["norm"].weight)
        return out


pending = []


@torch.no_grad()
def change_once(tensor):
    while pending:
        tensor.add_(pending.pop())


@pytest.mark.parametrize("kind", [Shifted, Compiled])
def test_what_changes_after_it_was_read_is_out_of_date(kind):
    pipeline = kind()
    cache = install_prompt_embed_cache(pipeline)
    pending.append(1)
    old, new, again = (pipeline.encode_prompt("a") for _ in range(3))
    assert torch.equal(new, old + 1)
    assert torch.equal(again, new)
    assert (cache.details()["outdated"], cache.misses, cache.hits) == (1, 2, 1)
