"""`torch.compile` on real diffusers pipelines: results are equal, calls hit, and nothing is compiled again."""

import functools
import itertools
import threading
from types import MethodType

import pytest
import torch
import transformers

from omnireuse.diffusion.cache.prompt_embed_cache import install_prompt_embed_cache
from tests.helpers.prompt_pipelines import ALL
from tests.helpers.sweep import sweep
from tests.unit.prompts.conftest import Pipeline

from .test_changes import is_same
from .test_pipelines import same

PIPELINES = ("sd", "flux", "wan", "cogvideox", "mochi", "ltx", "lumina2", "sana")


def doubled(embedding):
    return embedding * 2


def helped(pipeline):
    """Let `encode_prompt` end with a call of the function `pipeline.helper`."""

    def encode_prompt(self, *args, **kwargs):
        found = type(self).encode_prompt(self, *args, **kwargs)
        return self.helper(torch.cat([each.flatten() for each in found if isinstance(each, torch.Tensor)]))

    pipeline.helper, pipeline.encode_prompt = doubled, MethodType(encode_prompt, pipeline)
    return pipeline


def replaced(owner, name, compile):
    setattr(owner, name, compile(getattr(owner, name)))


IDIOMS = {
    "module": lambda p, compile: replaced(p, "text_encoder", compile),
    "compile()": lambda p, compile: p.text_encoder.compile(backend=compile.keywords["backend"]),
    "forward": lambda p, compile: replaced(p.text_encoder, "forward", compile),
    "helper": lambda p, compile: replaced(p, "helper", compile),
    "method": lambda p, compile: replaced(p, "_get_t5_prompt_embeds", compile),
    "encode_prompt": lambda p, compile: replaced(p, "encode_prompt", compile),
}


def while_encoding(action):
    """Run ``action`` in another thread while this one encodes a prompt of another pipeline."""

    class Waiting(Pipeline):
        def encode_prompt(self, prompt):
            thread = threading.Thread(target=torch.no_grad()(action))
            thread.start()
            thread.join()
            return self.text_encoder(prompt)

    other = Waiting()
    install_prompt_embed_cache(other)
    other.encode_prompt("dog")


STARTS = ("warm", "cold here", "cold there")
ONCE = [(name, [*IDIOMS][k % 6], STARTS[(k + k // 6) % 3]) for k, name in enumerate(PIPELINES)]
CASES = [*ONCE, *sorted({*itertools.product(["flux"], IDIOMS, STARTS)} - {*ONCE})]
"""Each pipeline once, and one of them in each way."""


@pytest.mark.filterwarnings("ignore")  # of Dynamo, about code that it does not trace
@pytest.mark.parametrize(("name", "idiom", "start"), sweep(CASES, quick=ONCE[:3]))
@torch.no_grad()
def test_compiled_code_gives_equal_results_and_compiles_once(name, idiom, start, monkeypatch):
    tokenizers = transformers.PreTrainedTokenizerFast
    monkeypatch.setattr(tokenizers, "__call__", torch.compiler.disable(tokenizers.__call__))  # hundreds of frames
    torch._dynamo.reset()
    build, kwargs = ALL[name]

    def compiled(graphs):
        made = helped(build()) if idiom == "helper" else build()
        IDIOMS[idiom](made, functools.partial(torch.compile, backend=lambda g, _: graphs.append(g) or g))
        return made

    graphs, without, found = [], [], []
    twin, pipeline = compiled(without), compiled(graphs)
    own = pipeline.encode_prompt

    def call(function):
        return function(prompt="a cat", **kwargs)

    want = call(twin.encode_prompt)
    expected = len(without)
    torch._dynamo.reset()
    if start == "warm":
        call(own)
    cache = install_prompt_embed_cache(pipeline)
    if start == "cold there":
        while_encoding(lambda: found.append(call(pipeline.encode_prompt)))
    for _ in range(3):
        found.append(call(pipeline.encode_prompt))
    assert len(graphs) == expected > 0
    # A result is not stored if something was compiled meanwhile.
    assert cache.hits == len(found) - (1 if start == "warm" else 2)
    for each in found:
        same(each, want)
    for p in (pipeline, twin):
        next(p.text_encoder.parameters()).add_(0.5)
    new = call(twin.encode_prompt)
    assert not is_same(new, want)
    found = [call(pipeline.encode_prompt), call(own)]
    while_encoding(lambda: found.extend([call(own), call(pipeline.encode_prompt)]))
    next(pipeline.text_encoder.parameters()).add_(0)
    while_encoding(lambda: found.append(call(pipeline.encode_prompt)))
    assert len(found) == 5
    for each in found:
        same(each, new)
    assert len(graphs) == expected
