"""A call of a pipeline that can be made again: its arguments, and the random states that it began with."""

from __future__ import annotations

import dataclasses
import inspect
import io
import logging
import pickle
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from omnireuse.errors import NotTunableError
from omnireuse.hooks.extension import PipelineCall
from omnireuse.hooks.interception import Handler, MethodCall, intercept
from omnireuse.hooks.session import Session
from omnireuse.pipelines.bars import showing_bars, without_bar

__all__ = ["ArgumentCopy", "Replay", "noting_bars", "unchanged_random_states"]

logger = logging.getLogger("omnireuse")

BAR = "progress_bar"
"""Method of diffusers' pipelines that makes the bar of a run."""

_RESULTS = ("encode_prompt",)
"""Methods whose results are kept: no trial run encodes a prompt again."""
_SHARED = (torch.Generator, torch.nn.Module, FunctionType, MethodType)
"""What is no part of an argument: it is the same in all copies. The states of generators are set for each call."""


class Replay:
    """The arguments of one call, taken before it is made.

    Callbacks are left out, since they belong to the picture alone. Tensors and requests of an engine are copied, so
    that nobody's change reaches a later trial run.

    Raises:
        NotTunableError: an argument that can be read only once, or a request that cannot be copied.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._args = pytree.tree_map(_kept, args)
        self._kwargs = {
            name: pytree.tree_map(_kept, value) for name, value in kwargs.items() if not name.startswith("callback")
        }
        leaves = pytree.tree_leaves((args, dict(kwargs)))
        if once := [each for each in leaves if isinstance(each, Iterator)]:
            raise NotTunableError(f"an argument can be read only once ({type(once[0]).__name__})")
        requests = [each for each in pytree.tree_leaves((self._args, self._kwargs)) if isinstance(each, ArgumentCopy)]
        leaves += [generator for request in requests for generator in request.generators]
        generators = {id(each): each for each in leaves if isinstance(each, torch.Generator)}
        self._generators = [(each, each.get_state()) for each in generators.values()]
        self._states = _states()
        self._results: dict[str, list[Any]] = {name: [] for name in _RESULTS}

    @contextmanager
    def noting(self, pipeline: object) -> Iterator[None]:
        """Note the results of the methods that trial runs need not call again, while the picture is made."""

        def noted(name: str) -> Handler:
            def called(call: MethodCall) -> Any:
                result = call.make()
                try:
                    self._results[name].append(pytree.tree_map(_copied, result))
                except Exception:  # trial runs encode the prompt again
                    self._results[name].append(None)
                    logger.exception("a result of %s cannot be kept", name)
                return result

            return called

        with _handling(pipeline, self, noted):
            yield

    def again(self, session: Session, call: PipelineCall) -> Any:
        """Make the call again, without a bar. All random states are afterwards as they were before.

        Args:
            session: at work on the pipeline.
            call: a call of the pipeline whose run is a trial run; its arguments are replaced.

        Returns:
            What the call returns, with pictures as floats if it would make images of Pillow.
        """
        pipeline, results = session.pipeline, {name: iter(kept) for name, kept in self._results.items()}

        def replayed(name: str) -> Handler:
            def called(call: MethodCall) -> Any:
                kept = next(results[name], None)
                return call.make() if kept is None else pytree.tree_map(_copied, kept)

            return called

        kwargs = {name: pytree.tree_map(_copied, value) for name, value in self._kwargs.items()}
        if kwargs.get("output_type", _default(pipeline, "output_type")) == "pil":
            kwargs["output_type"] = "np"
        before = _states(), [(each, each.get_state()) for each, _ in self._generators]
        try:
            _set_states(self._states, self._generators)
            with without_bar(pipeline), _handling(pipeline, self, replayed):
                return session.make(dataclasses.replace(call, args=pytree.tree_map(_copied, self._args), kwargs=kwargs))
        finally:
            _set_states(*before)


def _default(pipeline: object, name: str) -> Any:
    """The default of an argument of the pipeline's call; None if it has none."""
    try:
        parameter = inspect.signature(type(pipeline).__call__).parameters.get(name)
    except (TypeError, ValueError):
        return None
    return None if parameter is None else parameter.default


@contextmanager
def unchanged_random_states() -> Iterator[None]:
    """The random numbers that need no generator go on afterwards as if nothing had been drawn meanwhile."""
    before = _states()
    try:
        yield
    finally:
        _set_states(before, [])


@contextmanager
def noting_bars(pipeline: object, owner: object) -> Iterator[list[Any]]:
    """The progress bars that the pipeline shows meanwhile, as they are made."""
    bars: list[Any] = []

    def made(call: MethodCall) -> Any:
        bars.append(call.make())
        return bars[-1]

    with ExitStack() as stack:
        for each in showing_bars(pipeline):
            if callable(getattr(type(each), BAR, None)) and BAR not in vars(each):
                stack.callback(intercept(each, owner, {BAR: made}).undo)
        yield bars


@contextmanager
def _handling(pipeline: object, owner: object, handler: Callable[[str], Handler]) -> Iterator[None]:
    with ExitStack() as stack:
        for name in _RESULTS:
            if callable(getattr(type(pipeline), name, None)) and name not in vars(pipeline):
                stack.callback(intercept(pipeline, owner, {name: handler(name)}).undo)
        yield


def _kept(leaf: object) -> Any:
    # A call may change an object with fields of its own, such as an engine's request.
    return ArgumentCopy(leaf) if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type) else _copied(leaf)


def _copied(leaf: object) -> Any:
    if isinstance(leaf, ArgumentCopy):
        return leaf.restored()
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf


def _states() -> tuple[Any, ...]:
    """The states of the random numbers that a pipeline may draw from without a generator."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else None
    return torch.get_rng_state(), cuda, random.getstate(), np.random.get_state()


def _set_states(states: tuple[Any, ...], generators: list[tuple[torch.Generator, torch.Tensor]]) -> None:
    cpu, cuda, python, numbers = states
    torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state_all(cuda)
    random.setstate(python)
    np.random.set_state(numbers)
    for generator, state in generators:
        generator.set_state(state)


class ArgumentCopy:
    """A copy of a mutable argument as it is now.

    Args:
        value: the argument.

    Attributes:
        generators: random generators within it.

    Raises:
        NotTunableError: it holds something that cannot be copied.
    """

    def __init__(self, value: object) -> None:
        self._kept: list[Any] = []
        file = io.BytesIO()
        try:
            _Pickler(file, self._kept).dump(value)
        except (MemoryError, torch.cuda.OutOfMemoryError):  # the next call may find room
            raise
        except Exception as error:
            raise NotTunableError(f"an argument of {type(value).__name__} cannot be copied ({error!s:.200})") from error
        self._text = file.getvalue()
        self.generators = [each for each in self._kept if isinstance(each, torch.Generator)]

    def restored(self) -> Any:
        """A new copy, whose tensors are its own."""
        return _Unpickler(io.BytesIO(self._text), self._kept).load()


class _Pickler(pickle.Pickler):
    """Keeps tensors as copies, and what is shared as it is."""

    def __init__(self, file: io.BytesIO, kept: list[Any]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._kept, self._places = kept, dict[int, tuple[int, Any]]()

    def persistent_id(self, obj: object) -> int | None:
        if not isinstance(obj, (torch.Tensor, *_SHARED)):
            return None
        if id(obj) not in self._places:
            # The object itself is held, so that no other gets its identity meanwhile.
            self._places[id(obj)] = len(self._kept), obj
            self._kept.append(obj.clone() if isinstance(obj, torch.Tensor) else obj)
        return self._places[id(obj)][0]


class _Unpickler(pickle.Unpickler):
    """Gives each copy tensors of its own."""

    def __init__(self, file: io.BytesIO, kept: list[Any]) -> None:
        super().__init__(file)
        self._kept, self._copies = kept, dict[int, Any]()

    def persistent_load(self, pid: int) -> Any:
        kept = self._kept[pid]
        if not isinstance(kept, torch.Tensor):
            return kept
        return self._copies.setdefault(pid, kept.clone())
