"""Whatever is changed of what a pipeline can reach, a call gives what a direct call gives."""

import copy
from types import SimpleNamespace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from omnireuse.diffusion.cache.prompt_embed_cache import install_prompt_embed_cache
from tests.helpers.prompt_pipelines import tokenizer

from .reading_pipelines import Encoder


class Everything:
    """Reads most of what it holds, some of it only for some prompts."""

    def __init__(self):
        self.encoder, self.others = Encoder(0), [Encoder(1), {"deep": Encoder(2)}]
        self.holder = SimpleNamespace(provider=SimpleNamespace(encoder=Encoder(3), suffix="!"))
        self.tokenizer = tokenizer()
        self.template, self.weights, self.bias = "a {}", [1.0, 0.5], [torch.zeros(8)]
        self.unet, self.unused = nn.Linear(2, 2), {"a": [1, 2]}

    def encode_prompt(self, prompt):
        text = self.template.format(prompt) + self.holder.provider.suffix
        ids = self.tokenizer(text, padding="max_length", max_length=24, truncation=True)["input_ids"]
        text = "".join(chr(32 + number % 90) for number in ids)
        encoders = [self.encoder, self.others[0]]
        if prompt != "plain":
            encoders += [self.others[1]["deep"], self.holder.provider.encoder]
        total = sum(float(self.weights[0]) * encoder(text) for encoder in encoders)
        return (total + self.bias[0]).to(self.unet.weight.dtype)


def reached(thing, found=None):
    """Every object that can be reached, in an order that is the same each time."""
    found = [] if found is None else found
    if any(thing is each for each in found) or callable(getattr(thing, "encode_batch", None)):
        return found
    if isinstance(thing, torch.Tensor):
        found.append(thing)
    elif isinstance(thing, (list, dict)) or hasattr(thing, "__dict__"):
        found.append(thing)
        if isinstance(thing, nn.Module):
            inside = [*thing._parameters.values(), *thing._buffers.values(), *thing._modules.values()]
            inside += [value for name, value in vars(thing).items() if not name.startswith("_")]
        else:
            inside = thing.values() if isinstance(thing, dict) else thing if isinstance(thing, list) else None
            inside = [v for n, v in vars(thing).items() if n != "encode_prompt"] if inside is None else [*inside]
        for each in inside:
            reached(each, found)
    return found


def other(value, number):
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + number
    return value + "bcd"[number % 3] if isinstance(value, str) else value


def change_tensor(tensor, number):
    if not tensor.is_floating_point():
        return
    if number % 4 == 0:
        tensor.add_(number + 1)
    elif number % 4 == 1:
        data = tensor.data.clone()
        data.view(-1)[number % data.numel()] += 1
        tensor.data = data
    elif number % 4 == 2:
        tensor.copy_(tensor.flip(0).clone())
    else:
        tensor.set_(tensor.detach() * 2)


def change_module(module, number):
    name = sorted(name for name in vars(module) if not name.startswith("_") and name != "training")
    layers = [each for each in module.modules() if isinstance(each, nn.ModuleList) and len(each) > 1]
    if number % 5 == 0 and name:
        setattr(module, name[number % len(name)], other(getattr(module, name[number % len(name)]), number))
    elif number % 5 == 1:
        module.register_forward_hook(lambda _m, _i, out: out + 1 if isinstance(out, torch.Tensor) else out)
    elif number % 5 == 2 and layers:
        layers[0].pop(number % len(layers[0]))
    elif number % 5 == 3 and layers:
        layers[0].insert(0, copy.deepcopy(layers[0][-1]))
    elif number % 5 == 4 and module._parameters:
        name = sorted(module._parameters)[number % len(module._parameters)]
        if module._parameters[name] is not None:
            module._parameters[name] = nn.Parameter(module._parameters[name].detach() * 2, requires_grad=False)


def change(thing, number):
    if isinstance(thing, torch.Tensor):
        change_tensor(thing, number)
    elif isinstance(thing, nn.Module):
        change_module(thing, number)
    elif isinstance(thing, list) and thing:
        thing[number % len(thing)] = other(thing[number % len(thing)], number)
    elif isinstance(thing, dict) and thing:
        name = sorted(thing, key=str)[number % len(thing)]
        thing[name] = other(thing[name], number)
    elif not isinstance(thing, (list, dict)):
        names = sorted(name for name in vars(thing) if not name.startswith("_") and name != "encode_prompt")
        name = names[number % len(names)]
        setattr(thing, name, other(getattr(thing, name), number))


def result(call, prompt):
    try:
        with torch.no_grad():
            return call(prompt)
    except Exception as error:  # of the pipeline: the cache must not hide it
        return type(error)


STEP = st.tuples(st.integers(0, 400), st.integers(0, 60), st.sampled_from(["cat", "dog", "plain"]))


@settings(max_examples=20, deadline=None)
@given(st.lists(STEP, min_size=1, max_size=8))
def test_a_call_after_any_changes_is_the_direct_call(steps):
    pipeline = Everything()
    cache = install_prompt_embed_cache(pipeline)
    with torch.no_grad():
        for which, number, prompt in steps:
            things = reached(pipeline)
            change(things[which % len(things)], number)
            for each in (prompt, "cat", prompt):
                got = result(pipeline.encode_prompt, each)
                want = result(lambda text: Everything.encode_prompt(pipeline, text), each)
                if isinstance(want, type):
                    assert got is want
                else:
                    assert got.dtype == want.dtype
                    assert torch.equal(got.nan_to_num(), want.nan_to_num())
    assert cache.hits or cache.misses == 0
