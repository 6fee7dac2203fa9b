"""The source of a pipeline: a folder, a hub, a function, or a loaded object."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from omnireuse import messages
from omnireuse.base.loading import quiet_loading, why_refused
from omnireuse.errors import ConfigError, UnknownNameError
from omnireuse.hooks.denoisers import device_of, dtype_of

__all__ = ["Source", "function_named"]

DTYPES = ("bfloat16", "float16", "float32")
_HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+")


@dataclass(frozen=True, kw_only=True)
class Source:
    """A pipeline, or how to get it; what can be loaded can be sent to other processes.

    Args:
        given: a folder of a diffusers pipeline, the id of one on a hub, ``package:function``, a function without
            arguments that makes one, or the pipeline itself.
        device: where it computes, as torch names it; None for CUDA or MPS if there is one, else the CPU.
        dtype: "bfloat16", "float16", "float32" or the same of torch; None for bfloat16 on CUDA and MPS, else float32.
            A function decides for itself if neither device nor dtype is given.
        where: name of the caller, for messages.

    Raises:
        ConfigError: a device that is not there, or a device or dtype beside a pipeline that is loaded already.
        UnknownNameError: another dtype.
    """

    given: Any
    device: str | torch.device | None = None
    dtype: str | torch.dtype | None = None
    where: str = "calibrate"

    def __post_init__(self) -> None:
        if self.dtype is not None and str(self.dtype).removeprefix("torch.") not in DTYPES:
            raise UnknownNameError("dtype", self.dtype, DTYPES)
        if self.device is None and self.dtype is None:
            return
        if self.is_loaded:
            name = "dtype" if self.device is None else "device"
            raise ConfigError(messages.LOADED_ALREADY, where=self.where, name=name, kind=type(self.given).__name__)
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:  # torch asserts that it has been built for CUDA
            reason = str(error).split("\n")[0]
            raise ConfigError(messages.NO_DEVICE, where=self.where, device=self.device, reason=reason) from error

    @property
    def is_path(self) -> bool:
        """Whether a folder, a hub id or ``package:function`` was given."""
        return isinstance(self.given, (str, os.PathLike))

    @property
    def is_loaded(self) -> bool:
        """Whether the pipeline itself was given."""
        # A pipeline is callable, too.
        is_function = inspect.isroutine(self.given) or isinstance(self.given, functools.partial)
        return not (self.is_path or is_function)

    @property
    def is_place(self) -> bool:
        """Whether a folder or a hub id was given."""
        return self.is_path and not _is_function_name(str(self.given))

    def check(self) -> None:
        """Refuse, without loading anything, what cannot be loaded."""
        if self.is_place:
            _check_place(str(self.given), self.where)
        elif self.is_path:
            function_named(str(self.given), f"{self.where}(pipeline")

    def name(self, pipeline: object) -> str:
        """The name for records: the last part of the folder or id, else the class of the loaded pipeline."""
        return Path(self.given).resolve().name if self.is_place else type(pipeline).__name__

    def load(self) -> Any:
        """The pipeline, ready to be called.

        Raises:
            ConfigError: nothing that can be loaded; one sentence says why.
        """
        if self.is_loaded:
            return self.given
        if self.is_place:
            return self._from_pretrained(str(self.given))
        make = function_named(str(self.given), f"{self.where}(pipeline") if self.is_path else self.given
        return self._moved(make())

    def _moved(self, pipeline: Any) -> Any:
        """A function's pipeline, on the device and in the dtype of this source."""
        wanted = {"device": self.device, "dtype": None if self.dtype is None else self._dtype("")}
        place = {name: value for name, value in wanted.items() if value is not None}
        with contextlib.suppress(AttributeError, ValueError, TypeError):
            if place:
                pipeline.to(**place)
        # diffusers moves what the constructor names, and skips the rest silently.
        device = str(torch.empty(0, device=self.device).device)
        moved = {"device": self.device is None or device_of(pipeline) == device}
        moved["dtype"] = self.dtype is None or dtype_of(pipeline) == str(place["dtype"]).removeprefix("torch.")
        if not all(moved.values()):
            given = ", ".join(f"{name}={value}" for name, value in place.items())
            raise ConfigError(messages.MOVES_NOT, where=self.where, given=given, pipeline=type(pipeline).__name__)
        return pipeline

    def _from_pretrained(self, name: str) -> Any:
        _check_place(name, self.where)
        import diffusers

        device = str(self.device or _best_device())
        # The older name is deprecated; older versions do not know the newer one.
        key = "dtype" if tuple(map(int, diffusers.__version__.split(".")[:2])) >= (0, 40) else "torch_dtype"
        try:
            with quiet_loading():
                pipeline = diffusers.DiffusionPipeline.from_pretrained(name, **{key: self._dtype(device)})
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.where}({name!r}): {why_refused(error, name)}") from error
        pipeline.to(device)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    def _dtype(self, device: str) -> torch.dtype:
        if self.dtype is None:
            return torch.float32 if device.startswith("cpu") else torch.bfloat16
        found: torch.dtype = getattr(torch, str(self.dtype).removeprefix("torch."))
        return found


def _check_place(name: str, where: str) -> None:
    """Refuse what is neither the folder of a pipeline nor looks like the id of one on a hub."""
    folder = Path(name)
    if (folder / "model_index.json").is_file():
        return
    if folder.is_dir():
        is_modular = (folder / "modular_model_index.json").is_file()
        reason = "it holds a modular pipeline" if is_modular else "it has no model_index.json"
        raise ConfigError(messages.NO_PIPELINE_FOLDER, where=where, name=name, reason=reason)
    if not _HUB_ID.fullmatch(name):
        raise ConfigError(messages.NO_SUCH_FOLDER, where=where, name=name)


def _best_device() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _is_function_name(name: str) -> bool:
    module, colon, function = name.partition(":")
    return bool(colon) and function.isidentifier() and all(part.isidentifier() for part in module.split("."))


def function_named(name: str, where: str) -> Callable[..., Any]:
    """The function that ``package:function`` names; modules of the working directory are found too."""
    made = object_named(name, where)
    if not callable(made):
        raise ConfigError(f"{where}={name!r}): {name.partition(':')[0]} has no function {name.partition(':')[2]!r}")
    return made  # type: ignore[no-any-return]  # whatever the module holds


def object_named(name: str, where: str) -> Any:
    """What ``package:name`` names; modules of the working directory are found too."""
    module, _, function = name.partition(":")
    if not _is_function_name(name):
        raise ConfigError(f"{where}={name!r}): must be package:function, such as my_package.pipelines:load")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(f"{where}={name!r}): there is no module {error.name!r} here; looked in {here} too") from error
    made = getattr(found, function, None)
    if made is None:
        raise ConfigError(f"{where}={name!r}): {module} has no function {function!r}")
    return made
