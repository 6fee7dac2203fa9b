"""The tables of one denoiser: found by looking at its calls, filled and read by them."""

from __future__ import annotations

import gc
import logging
import operator
import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from omnireuse.hooks.interception import Interception, MethodCall, compiled_call, intercept, is_optimized
from omnireuse.modulation.ahead import Ahead
from omnireuse.modulation.call import NOW, Call
from omnireuse.modulation.compiled import unwatch, watch
from omnireuse.modulation.groups import Groups
from omnireuse.modulation.rows import Rows, StoredRow
from omnireuse.modulation.table import Key, OutsideRows, Table
from omnireuse.modulation.values import is_token_free
from omnireuse.modulation.weights import contents
from omnireuse.stores.tier import Tier, TieredStore

__all__ = ["Tables"]

logger = logging.getLogger("omnireuse")

LEAST_SHARE = 0.05
"""Of the weights of all projections. Those that begin with an input of their own and have less are left alone, because
each such input is read at each call."""
KEPT_VALUES = 1024
_HOOKS = frozenset(
    {"group_offloading", "layerwise_casting", "layer_execution_tracker", "lazy_prefetch_group_offloading"}
)
"""Of diffusers, by name: they move or cast weights, and change no output."""
_RANDOM = (nn.RReLU, nn.MultiheadAttention)


class Tables:
    """The tables of one denoiser.

    Args:
        denoiser: its calls and those of its projections go through handlers until `close`.
        cache: holds the rows, the options and the counters.
    """

    def __init__(self, denoiser: nn.Module, cache: Rows) -> None:
        self._denoiser, self._cache = weakref.ref(denoiser), cache
        self._lock = threading.RLock()
        self._active = 0
        self._rounds, self._groups, self._ahead = Rounds(), Groups(), Ahead(cache)
        self._is_compiled = False
        self._tables: dict[Table, Interception] = {}
        self._on_calls = intercept(denoiser, self, {"__call__": self._call})
        self._watch()

    @property
    def denoiser(self) -> Any:
        """The denoiser; None once it is freed."""
        return self._denoiser()

    @property
    def projections(self) -> list[Table]:
        """The tables in use of modules with weights."""
        return [each for each in self._tables if each.is_chosen and each.is_projection]

    def parameters(self) -> Iterable[nn.Parameter]:
        """Those of the whole denoiser."""
        return () if self.denoiser is None else self.denoiser.parameters()

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights of the projections with a table."""
        return sum(table.weights.num_bytes for table in self.projections)

    @property
    def is_watching(self) -> bool:
        """Whether there is any module that may have a table."""
        return any(table.is_projection for table in self._tables)

    def close(self) -> None:
        """Take all handlers away, and bring the weights back. Idempotent."""
        with self._lock:
            self._on_calls.undo()
            if self._tables:
                self.save()
            self._remove(list(self._tables))

    def forget(self) -> None:
        """Drop every row."""
        with self._lock:
            self._drop_rows(self._tables)

    def _watch(self) -> None:
        """Route the calls of all modules that may have a table through `_serve`, but for those that have one."""
        known = {table.module: table for table in self._tables}
        compiled: list[str] = []
        for name, module in self.denoiser.named_modules():
            if name and (is_optimized(module) or compiled_call(module) is not None):
                compiled.append(f"{name}.")  # a compiled graph does not call the tables
            elif module in known:
                known[module].name = name
            elif name and _may_have_table(module) and not name.startswith((*compiled,)):
                table = Table(name, module)
                self._tables[table] = intercept(module, self, {"__call__": partial(self._serve, table)})
        self._remove([table for table in self._tables if table.name.startswith((*compiled,))])
        self._containers = [each for each in self.denoiser.modules() if each._modules and each is not self.denoiser]
        self._structure = self._look()
        if compiled:
            self._cache.bypass("compiled", f"what is below {compiled[0]}")

    def _look(self) -> list[Any]:
        """The modules that there are, and those that are compiled, by identity."""
        compiled = [compiled_call(each) for each in self._containers]
        return gc.get_referents(self.denoiser._modules, *[each._modules for each in self._containers]) + compiled

    def _remove(self, tables: Iterable[Table]) -> None:
        """Remove these tables."""
        tables = [*tables]
        self._ahead.order = [] if tables else self._ahead.order
        self._drop_rows(tables)
        for table in tables:
            with table.lock:
                table.weights.come_back(self._device())
            self._tables.pop(table).undo()
        if not self._tables:
            self._groups.restore()
            unwatch(self.denoiser)

    def _drop_rows(self, tables: Iterable[Table]) -> None:
        """Drop the rows of tables whose weights may have changed, and of those after them."""
        gone = set(tables)
        for table in gone:
            table.epoch += 1
            table.content, table.alignment, table.kept = {}, {}, None
        self._cache.rows.discard_if(lambda key: isinstance(key, Key) and key.table in gone)

    def _device(self) -> torch.device:
        """Where the weights that never leave are."""
        return next((each.device for each in self.denoiser.parameters()), torch.device("cpu"))

    # What happens in a call.

    def _call(self, made: MethodCall) -> Any:
        if self._cache.refused:
            self.close()
            return made.make()
        with self._lock:
            self._active += 1
            self._rounds.calls += 1
            self._refresh()
            call, outer = Call(self.denoiser, self._rounds.calls, (made.args, made.kwargs)), NOW.call
        NOW.call = call
        self._hide(True)
        try:
            return made.make()
        finally:
            NOW.call = outer
            with self._lock:
                self._active -= 1
                self._hide(False)
                self._finish(call)

    def _hide(self, hidden: bool) -> None:
        """Keep accelerate from bringing in, at the beginning of a call, what is away."""
        if "_hf_hook" in vars(self.denoiser):
            for table in self._tables:
                with table.lock:
                    table.weights.rest(hidden=hidden)

    def _serve(self, table: Table, made: MethodCall) -> Any:
        """The output of a module: its row, or computed."""
        call, x = NOW.call, made.args[0] if len(made.values) == len(made.args) == 1 else None
        if call is None or call.denoiser is not self.denoiser or not is_token_free(x):
            if call is not None and not table.is_chosen:
                table.sees_tokens = True
            return self._compute(table, made)
        if reason := _reason_against(table.module, x):
            self._cache.bypass(reason, table.name)
            return self._compute(table, made)
        value = call.known.of(x)
        if not isinstance(value, Key) and call.inputs:
            self._note_read(call, value)
        key = Key(table, table.epoch, call.settings(x.device.type), value)
        row = self._cache.rows.lookup(key, None)
        if row is not None and row.output._version != row.version:
            self._cache.bypass("mutated", table.name)  # and computed anew, at every call
            row = None
        if row is None and (outside := self._cache.outside) is not None:
            row = self._load(call, key, outside)
        if row is None and table.weights.away and call.inputs and self._ahead.fill(call, key):
            row = self._cache.rows.lookup(key, None)
        if row is not None:
            call.hits.append(key)
        else:
            output = self._compute(table, made)
            tensor, *tail = output if type(output) is tuple and output else (output,)
            if type(tensor) is not torch.Tensor or any(each is not None for each in tail):
                self._cache.bypass("output", table.name)
                return output
            table.tail = (*tail,)
            row = self._keep(call, key, tensor)
        call.known.note(row.output, key)
        return (row.output, *table.tail) if table.tail else row.output

    def _compute(self, table: Table, made: MethodCall) -> Any:
        if not table.weights.away:
            return made.make()
        device = next((each.device for each in made.args if isinstance(each, torch.Tensor)), self._device())
        with self._cache.brought_in(table, device):
            return made.make()

    def _load(self, call: Call, key: Key, outside: Tier | TieredStore) -> StoredRow | None:
        """The row from the outer store, if it is there."""
        table = key.table
        if table.kept is None:
            table.kept = OutsideRows(outside, table)
        output = table.kept.outputs.get(table.kept.name_of(key))
        if output is None:
            return None
        call.loaded.add(key)
        return self._keep(call, key, output.to(key.device))

    def save(self) -> None:
        """Write all rows to the outer store."""
        if self._cache.outside is None:
            return
        rows: dict[OutsideRows, dict[str, torch.Tensor]] = {}
        for key, row in self._cache.rows.snapshot().items():
            if not isinstance(key, Key) or key.table not in self._tables or key.table.tail:
                continue
            if key.epoch == key.table.epoch and key.table.kept:
                rows.setdefault(key.table.kept, {})[key.table.kept.name_of(key)] = row.output
        self._cache.count(saved=sum(kept.save(each) for kept, each in rows.items()))

    def _keep(self, call: Call, key: Key, output: torch.Tensor) -> StoredRow:
        """A row with the values of an output."""
        with torch.inference_mode(False), torch.no_grad():
            copy = output.detach().clone()  # counts its changes, also if the output is of inference mode
        row = StoredRow(copy, copy._version)
        self._cache.rows.put(key, row, copy.nbytes)
        call.filled.append(key)
        return row

    def _note_read(self, call: Call, value: object) -> None:
        """Take a value that was read before its rows are used."""
        with self._lock:
            is_return, is_unverified = self._rounds.note(value, call.number)
            call.is_return |= is_return
            if is_unverified:
                self._verify([table for table in self._tables if table.content])

    def _finish(self, call: Call) -> None:
        """Choose tables after the first call, remember what new rows were computed by, and let weights go."""
        cache = self._cache
        if len(call.hits) >= len(self._ahead.order):  # reuse between steps skips blocks
            self._ahead.order = call.hits
        for table in {key.table for key in call.filled}:
            if table.weights.were_written:
                self._drop_rows([table])
            table.weights.note()  # hooks of the module itself may have moved its weights, and back
        self._choose(call)
        filled = [key for key in call.filled if key.table.is_projection and key.table in self._tables]
        computed = [key.table for key in filled if key not in call.loaded]
        cache.count(
            computed=len(computed), reused=sum(key.table.is_projection for key in call.hits), reads=call.known.reads
        )
        self._remember([key.table for key in filled if not key.table.content])
        if (call.is_return or call.loaded) and not computed and not self._active:  # every step has its rows, as a rule
            self._release([key.table for key in call.hits])
            self.save()
        if cache.rows.counts["evictions"] and self._rounds.returns == 0 and not cache.refused:
            cache.refuse(f"the rows of one schedule take more than {cache.rows.max_bytes:,} bytes")

    def _choose(self, call: Call) -> None:
        """Of tables that were called for the first time, keep those that are worth reading their input."""
        seen = [each for each in self._tables if not each.is_chosen and each.sees_tokens]
        begins = {key.table: key.begin for key in call.filled}
        new = [table for table in begins if not table.is_chosen]
        bytes_of = Counter[Any]()
        for table in begins:
            bytes_of[begins[table]] += table.weights.num_bytes
        least = LEAST_SHARE * max(self.weight_bytes, bytes_of.total())
        leads = {key.value.table for key in call.filled if isinstance(key.value, Key)}
        useful = [each for each in new if bytes_of[begins[each]] >= least and (each.is_projection or each in leads)]
        for table in useful:
            table.is_chosen = True
        if new:
            self._cache.limit_rows(self, self.weight_bytes)
        self._remove(dict.fromkeys(each for each in (*new, *seen) if not each.is_chosen))

    # Whether weights have changed.

    def _refresh(self) -> None:
        """Notice at a call's start what was done to weights and layers since the last one."""
        for table in [each for each in self._tables if not each.weights.are_as_they_were and not each.weights.is_in]:
            self._settle(table)
        now = self._look()
        if len(now) != len(self._structure) or not all(map(operator.is_, now, self._structure)):
            self._come_back()
            self._watch()

    def _come_back(self) -> None:
        """Bring all weights back; an adapter that was put on a layer meanwhile goes where the layer is."""
        device = self._device()
        away = {table.module for table in self._tables if table.weights.away}
        self._groups.restore()
        for table in self._tables:
            table.weights.come_back(device)
        for module in [*self.denoiser.modules()] if away else ():
            if vars(module)["_modules"].get("base_layer") in away:
                module.to(device)

    def _before_compiling(self) -> None:
        """Bring all weights back for good."""
        if not self._is_compiled:
            self._is_compiled = True
            with self._lock:
                self._come_back()
            self._cache.bypass("compiled", "the whole denoiser")

    def _settle(self, table: Table) -> None:
        """Take weights that somebody has moved or changed as they are now."""
        weights = table.weights
        is_known = table.content and contents([weights], is_whole=True) == [table.content]
        for device, alignment in weights.alignment.items():
            is_known = is_known and table.alignment.get(device, alignment) == alignment
        if not is_known:
            weights.away = [] if weights.are_elsewhere else weights.away
            if table.content:
                self._cache.count(changed=1)
            self._drop_rows([table])
        elif weights.away:
            weights.rest(hidden=False)
        weights.note()

    def _verify(self, tables: Sequence[Table]) -> None:
        """Compare the content of weights with what rows were computed by: some writes are counted by nobody."""
        for table, content in zip(tables, contents([each.weights for each in tables]), strict=True):
            if any(table.content[name] != each for name, each in content.items()):
                self._cache.count(changed=1)
                self._drop_rows([table])

    def _remember(self, tables: Sequence[Table]) -> None:
        """Remember the content of the weights by which the first rows of these tables were computed."""
        for table, content in zip(tables, contents([each.weights for each in tables], is_whole=True), strict=True):
            table.content, table.alignment = content, table.alignment | table.weights.alignment

    def _release(self, tables: Sequence[Table]) -> None:
        """Move weights away whose every row of a schedule is there."""
        if self._cache.release is None or self._is_compiled:
            return
        first = next(self.denoiser.parameters(), None)  # libraries take its device for the model's
        grouped = {each for group in self._groups.of(self.denoiser) for top in group.modules for each in top.modules()}
        gone = []
        for table in tables:
            own, is_streamed = table.weights.parameters, table.module in grouped
            has_adapter = table.name.endswith(".base_layer")  # it merges on the device that it is on
            if not table.weights.can_leave:
                self._cache.bypass("quantised", table.name)
            elif own and own[0] is not first and not table.weights.away and not has_adapter:
                table.weights.leave(self._cache.put_away, is_there=is_streamed and own[0].device.type == "cpu")
                gone += [table.module] * bool(table.weights.away)
        if any(table.weights.away for table in tables):
            watch(self.denoiser, self._before_compiling)
        if grouped.intersection(gone):
            self._groups.take_out(self.denoiser, gone)


class Rounds:
    """Which values that were read are of an earlier round of steps.

    A value comes again in the next call if it is another branch's, if it does not depend on the step, or if pictures
    have one step each. If it comes again later, a round has begun.

    Attributes:
        calls: of the denoiser so far.
        returns: how often a value of an earlier round came again.
    """

    def __init__(self) -> None:
        self.calls = self.returns = 0
        self._clock = self._verified = self._turned = 0
        self._seen: OrderedDict[Any, tuple[int, int]] = OrderedDict()
        """Number of the latest call with each value, and when that was."""

    def note(self, value: object, number: int) -> tuple[bool, bool]:
        """Whether a value is of an earlier round, and whether the weights are to be verified before its rows are used:
        they were not since it was met, as far as that can be told. `number` is that of the call."""
        self._clock += 1
        before, when = self._seen.pop(value, (0, 0))
        self._seen[value] = number, self._clock
        if len(self._seen) > KEPT_VALUES:
            self._seen.popitem(last=False)
        if before == number:
            return False, False
        is_next = before == number - 1
        if not is_next and number > 1:
            self._turned = self._clock
        is_unverified = before > 0 and self._verified <= when and not (is_next and self._turned > self._verified)
        if is_unverified:
            self._verified = self._clock
        is_return = before > 0 and not is_next
        self.returns += is_return
        return is_return, is_unverified


def _may_have_table(module: nn.Module) -> bool:
    """Whether this is a linear layer of any kind, or an activation, without parts."""
    if module._modules or type(module).__call__ is not nn.Module.__call__:
        return False
    if any(each is not None for each in module._parameters.values()):
        return isinstance(module, nn.Linear) or "Linear" in type(module).__name__
    is_activation = type(module).__module__ == nn.SiLU.__module__ and not isinstance(module, _RANDOM)
    return is_activation and not getattr(module, "inplace", False)


def _reason_against(module: nn.Module, x: torch.Tensor) -> str:
    """Why this call of a module is computed by itself; "" if nothing is against a row."""
    own = vars(module)
    if torch.is_grad_enabled() and (x.requires_grad or any(each.requires_grad for each in module.parameters())):
        return "gradients"
    if own["_forward_hooks"] or own["_forward_pre_hooks"] or nn.modules.module._has_any_global_hook():
        return "hooks"
    registry = own.get("_diffusers_hook")
    replacing = ("forward",) if registry is None else registry.hooks
    if "forward" in own and "_hf_hook" not in own and not _HOOKS.issuperset(replacing):
        return "replaced"
    is_sharded = own.get("tp_size", 1) > 1 or any(hasattr(each, "device_mesh") for each in module.parameters())
    return "sharded" if is_sharded else ""
