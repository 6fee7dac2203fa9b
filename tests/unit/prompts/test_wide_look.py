"""What counts is found by the names that code mentions; what a call writes itself is no input of it."""

import collections
import threading
import types
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from omnireuse.diffusion.cache.prompt_embed_cache import install_prompt_embed_cache, uninstall_prompt_embed_cache
from tests.unit.prompts.reading_pipelines import Plain, Tokenizing


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


class Counting(Plain):
    """Everything that may keep count."""

    def __init__(self):
        super().__init__()
        self.calls, self.log, self.stats, self.lock = 0, [], SimpleNamespace(n=0), threading.Lock()
        self.by_prompt, self.tensor, self.last = collections.Counter(), torch.zeros(()), None
        self.encoder.calls = 0
        self.encoder.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def encode_prompt(self, prompt):
        self.count(prompt)
        return self.encoder(prompt)


def spelled_out(self, prompt):
    self.calls = self.calls + 1


def locked(self, prompt):
    with self.lock: self.calls += 1  # fmt: skip  # noqa: E701  # one line with other code


def by_prompt(self, prompt):
    self.by_prompt[prompt] += 1


def in_a_tensor(self, prompt):
    self.tensor += 1


def on_the_encoder(self, prompt):
    self.encoder.calls += 1


def in_a_buffer(self, prompt):
    self.encoder.seen.add_(1)


def in_a_tuple(self, prompt):
    self.last = (prompt, len(prompt))


# What no way of `test_interface` is.
WAYS = [spelled_out, locked, by_prompt, in_a_tensor, on_the_encoder, in_a_buffer, in_a_tuple]


@pytest.mark.parametrize("way", WAYS)
def test_a_pipeline_that_counts_its_calls_is_cached(way):
    kind = type("Counts", (Counting,), {"count": way})
    pipeline = kind()
    cache = install_prompt_embed_cache(pipeline)
    want = kind().encode_prompt("cat")
    for prompt in ("cat", "dog", "cat", "dog", "cat"):
        got = pipeline.encode_prompt(prompt)
        assert prompt == "dog" or torch.equal(got, want)
    assert (cache.hits, cache.misses, cache.bypassed) == (3, 2, 0)


def test_a_count_that_its_owner_resets_is_a_count():
    pipeline = type("Counts", (Counting,), {"count": spelled_out})()
    cache = install_prompt_embed_cache(pipeline)
    for _ in range(10):
        pipeline.encode_prompt("cat")
        pipeline.calls = 0
    assert cache.hits == 9


class Sticky(Plain):
    """An option that stays until another is given."""

    def __init__(self):
        super().__init__()
        self._scale, self._mask_len = 1.0, 0

    def encode_prompt(self, prompt, scale=None):
        self._mask_len = len(prompt)
        if scale is not None:
            self._scale = scale
        return self.encoder(prompt) * self._scale


def test_what_another_call_wrote_is_an_input_and_a_hit_leaves_what_its_call_left():
    pipeline, twin = Sticky(), Sticky()
    cache = install_prompt_embed_cache(pipeline)
    calls = [("x", 2), ("x",), ("x", 3), ("x",), ("xyz",), ("x", 2), ("x",), ("xyz", 3), ("x",), ("x", 2)]
    for call in calls:
        assert torch.equal(pipeline.encode_prompt(*call), twin.encode_prompt(*call)), call
        assert (pipeline._scale, pipeline._mask_len) == (twin._scale, twin._mask_len)
    assert cache.hits >= 3


class Held:
    def __init__(self):
        self._k = 1.0

    def __call__(self, h):
        return self.apply(h)

    def apply(self, h):
        return h * self._k


class HeldCall(Plain):
    def __init__(self):
        super().__init__()
        self.helper = Held()

    def encode_prompt(self, prompt):
        return self.helper(self.encoder(prompt))


class Scaler:
    def __init__(self, pipeline):
        self.pipeline = pipeline

    def apply(self, h):
        return h * self.pipeline.hidden


class MadeInside(Plain):
    hidden = 1.0

    def encode_prompt(self, prompt):
        return Scaler(self).apply(self.encoder(prompt))


class Table(Plain):
    def __init__(self):
        super().__init__()
        self.factor, self.handlers = 1.0, {"a": lambda h: h * self.factor}

    def encode_prompt(self, prompt):
        return self.handlers["a"](self.encoder(prompt))


class Operator(Plain):
    factor = 1.0

    def __mul__(self, h):
        return h * self.factor

    def encode_prompt(self, prompt):
        return self * self.encoder(prompt)


class Idle(Plain):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(8, 8)

    def encode_prompt(self, prompt):
        return nn.functional.linear(self.encoder(prompt), self.proj.weight)


class AllWeights(Idle):
    def encode_prompt(self, prompt):
        return self.encoder(prompt) * sum(weight.sum() for weight in self.proj.parameters())


class Denoiser(nn.Linear):
    def __init__(self):
        super().__init__(2, 2)
        self._private, self.sizes, self.factor = 1.0, [1.0], 1.0

    @property
    def doubled(self):
        return self.factor * 2


class OfADenoiser(Plain):
    def __init__(self):
        super().__init__()
        self.unet = Denoiser()

    def encode_prompt(self, prompt):
        unet = self.unet
        return self.encoder(prompt) * unet._private * unet.doubled * unet.sizes[0] * (2 if unet.training else 1)


class Style(str):
    """A text that also has attributes."""


class Odd(Plain):
    def __init__(self):
        super().__init__()
        self.raw, self.style, self.words = bytearray(b"ab"), Style("a"), {f"w{n}": n for n in range(2_000)}
        self.style.suffix, self.slotted = "b", Slotted()

    def encode_prompt(self, prompt):
        return self.encoder(
            f"{self.raw[0] % 50}{self.style}{self.style.suffix}{self.words['w7']}{self.slotted.one}{prompt}"
        )


class Slotted:
    __slots__ = ("one",)

    def __init__(self):
        self.one = 1


class Named(Plain):
    """Makes the name of an attribute at run time."""

    def __init__(self):
        super().__init__()
        self.style_a = 1.0

    def encode_prompt(self, prompt):
        return self.encoder(prompt) * getattr(self, f"style_{prompt[1]}")


CHANGES = [
    (HeldCall, lambda p: setattr(p.helper, "_k", 5.0)),
    (MadeInside, lambda p: setattr(p, "hidden", 5.0)),
    (Table, lambda p: setattr(p, "factor", 5.0)),
    (Operator, lambda p: setattr(p, "factor", 5.0)),
    (Idle, lambda p: p.proj.weight.mul_(2)),
    (AllWeights, lambda p: p.proj.weight.mul_(2)),
    (OfADenoiser, lambda p: setattr(p.unet, "_private", 5.0)),
    (OfADenoiser, lambda p: setattr(p.unet, "factor", 5.0)),
    (OfADenoiser, lambda p: p.unet.sizes.__setitem__(0, 5.0)),
    (OfADenoiser, lambda p: p.unet.eval()),
    (Odd, lambda p: p.raw.__setitem__(0, 9)),
    (Odd, lambda p: setattr(p, "style", Style("b"))),
    (Odd, lambda p: setattr(p.style, "suffix", "c")),
    (Odd, lambda p: p.words.__setitem__("w7", 8)),
    (Odd, lambda p: setattr(p.slotted, "one", 2)),
    (Named, lambda p: setattr(p, "style_a", 5.0)),
]


@pytest.mark.parametrize(("kind", "change"), CHANGES)
def test_a_change_under_a_mentioned_name_is_noticed(kind, change):
    pipeline = kind()
    cache = install_prompt_embed_cache(pipeline)
    old = pipeline.encode_prompt("cat")
    pipeline.encode_prompt("cat")
    assert cache.hits == 1
    change(pipeline)
    if kind is Odd and "suffix" not in vars(pipeline.style):
        pipeline.style.suffix = "b"
    want = kind.encode_prompt(pipeline, "cat")
    assert not torch.equal(want, old)
    assert torch.equal(pipeline.encode_prompt("cat"), want)
    pipeline.encode_prompt("cat")
    assert cache.hits == 2


def test_a_setting_that_a_tokenizer_is_given_in_the_call_is_given_by_a_hit():
    class Padding(Tokenizing):
        def encode_prompt(self, prompt):
            self.tokenizer.padding_side = "left"
            return super().encode_prompt(prompt)

    pipeline = Padding()
    cache = install_prompt_embed_cache(pipeline)
    for _ in range(3):
        pipeline.encode_prompt("cat")
        assert pipeline.tokenizer.padding_side == "left"
        pipeline.tokenizer.padding_side = "right"
    assert cache.hits + cache.misses == 3


@pytest.mark.parametrize("preview", [False, True])
def test_an_encoder_in_training_gets_its_gradients(preview):
    pipeline = Plain()
    cache = install_prompt_embed_cache(pipeline)
    if preview:
        pipeline.encode_prompt("cat")
    with torch.enable_grad():
        for _ in range(2):
            assert pipeline.encode_prompt("cat").requires_grad
        pipeline.encoder.requires_grad_(False)
        for _ in range(2):
            assert not pipeline.encode_prompt("cat").requires_grad
    assert cache.bypassed_by["gradient"] == 2
    assert cache.hits == (2 if preview else 1)


def test_ten_misses_in_a_row_of_known_calls_are_said_once_with_what_differs(caplog):
    pipeline = Sticky()
    install_prompt_embed_cache(pipeline)
    for number in range(20):
        pipeline._scale = float(number)
        pipeline.encode_prompt("cat")
    assert caplog.text.count("calls in a row were encoded again") == 1
    assert "from call to call: _scale" in caplog.text


def test_ten_misses_in_a_row_for_want_of_room_are_said_so(caplog):
    pipeline = Plain()
    install_prompt_embed_cache(pipeline, max_size=2)
    for number in range(20):
        pipeline.encode_prompt("abc"[number % 3])
    assert "more than there is room for (max_size=2)" in caplog.text


def test_what_was_looked_at_is_bounded_by_the_entries():
    class Own(Plain):
        def encode_prompt(self, prompt):
            return nn.Identity()(self.encoder(prompt))

    for kind in (Plain, Own):
        pipeline = kind()
        cache = install_prompt_embed_cache(pipeline, max_size=4)
        for number in range(100):
            pipeline.encode_prompt(str(number))
        call = pipeline.encode_prompt.call
        most = 65 + 4 * len(cache.store)
        assert len(call._scopes) <= most
        assert len(call._states) <= most
        assert len(call.views._surveys) <= 2
        uninstall_prompt_embed_cache(pipeline)


def test_a_bypassing_call_counts_as_one_that_left_something():
    class Mixed(Plain):
        def __init__(self):
            super().__init__()
            self.calls, self.opts = 0, {"n": 0, "scale": 1.0}

        def encode_prompt(self, prompt, extra=None):
            self.opts["n"] += 1
            return self.encoder(prompt) * self.opts["scale"]

    pipeline = Mixed()
    cache = install_prompt_embed_cache(pipeline)
    pipeline.encode_prompt("cat")
    pipeline.encode_prompt("cat", extra=types.SimpleNamespace())
    pipeline.encode_prompt("cat")
    assert (cache.hits, cache.bypassed) == (1, 1)
    pipeline.opts["scale"] = 5.0
    assert torch.equal(pipeline.encode_prompt("cat"), Plain.encode_prompt(pipeline, "cat") * 5)


class Layer(nn.Linear):
    """One that Dynamo traces, as it does not torch's own."""

    def forward(self, h):
        return super().forward(h) * 2


class Compiled(Plain):
    def __init__(self):
        super().__init__()
        self.encoder.layers[0] = Layer(8, 8)
        self.factor, self.helper = 2.0, helper

    def scaled(self, h):
        return h * self.factor

    def encode_prompt(self, prompt):
        ids = torch.tensor([[ord(c) for c in prompt]])
        return self.scaled(self.helper(self.encoder.layers[0](self.encoder.table(ids))))


def helper(h):
    return torch.tanh(h) + 1


def compiled(what, **more):
    return torch.compile(what, backend="eager", **more)


IDIOMS = {
    "module": lambda p: p.encoder.layers.__setitem__(0, compiled(p.encoder.layers[0], fullgraph=True)),
    "compile()": lambda p: p.encoder.layers[0].compile(backend="eager", fullgraph=True),
    "forward": lambda p: setattr(p.encoder.layers[0], "forward", compiled(p.encoder.layers[0].forward)),
    "helper": lambda p: setattr(p, "helper", compiled(p.helper)),
    "method": lambda p: setattr(p, "scaled", compiled(p.scaled)),
    "encode_prompt": lambda p: setattr(p, "encode_prompt", compiled(p.encode_prompt)),
}


@pytest.mark.parametrize("is_warm", [False, True])
@pytest.mark.parametrize("idiom", IDIOMS)
def test_whatever_is_compiled_gives_equal_results_and_is_watched(idiom, is_warm):
    torch._dynamo.reset()
    pipeline, twin = Compiled(), Compiled()
    IDIOMS[idiom](pipeline)
    if is_warm:
        for _ in range(2):
            pipeline.encode_prompt("cat")
    own = pipeline.encode_prompt
    cache = install_prompt_embed_cache(pipeline)
    for _ in range(3):
        assert torch.equal(pipeline.encode_prompt("cat"), twin.encode_prompt("cat"))
    assert cache.hits >= 1
    for p in (pipeline, twin):
        p.encoder.layers[0].weight.add_(1)
        p.encoder.table.weight.mul_(2)
    assert torch.equal(pipeline.encode_prompt("cat"), twin.encode_prompt("cat"))
    if is_warm:
        with torch.compiler.set_stance("fail_on_recompile"):
            assert torch.equal(own("cat"), twin.encode_prompt("cat"))
    pipeline.factor = twin.factor = 3.0
    assert torch.equal(pipeline.encode_prompt("cat"), twin.encode_prompt("cat"))


class Engine(nn.Module):
    """A pipeline of an engine: a module whose forward generates."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(256, 4)
        self.scheduler = SimpleNamespace(sigmas=None)

    def encode_prompt(self, prompt):
        return self.encoder(torch.tensor([[ord(letter) % 256 for letter in prompt]]))

    def forward(self, prompt, steps):
        with torch.inference_mode():
            self.scheduler.sigmas = torch.linspace(1, 0, steps)  # counts no changes in place
        return self.encode_prompt(prompt) * self.scheduler.sigmas.sum()


def test_what_the_forward_of_a_pipeline_names_is_no_input_of_its_prompts():
    pipeline = Engine()
    cache = install_prompt_embed_cache(pipeline)
    for steps in (4, 8, 8):
        pipeline("a cat", steps)
    assert (cache.hits, cache.misses, cache.bypassed) == (2, 1, 0)
