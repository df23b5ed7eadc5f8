"""Recording a model that torch.compile was applied to, as a whole or in parts.

The modules inside a compiled part get taps of the graph (graph_taps.py) from the start of a recording to its end. Their
classes differ, so Dynamo makes one graph with taps, once, and keeps the one without; the graph returns what they saw,
and right after each call it is handed to the recorder. On steps that are not due the same graph computes nothing for
us.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from layertap.capture import taps
from layertap.capture.leaves import Leaf, reason_text
from layertap.capture.module_tap import CallMoment, ModuleTap
from layertap.errors import BadArgument
from layertap.messages import tr
from layertap.result import Note

if TYPE_CHECKING:
    from layertap.capture.graph_taps import GraphTap, Taken, Values
    from layertap.capture.recorder import Recorder

_OURS = ("inductor", "eager", "aot_eager", "aot_eager_decomp_partition", "cudagraphs")
"""Backends that know what to do with an operation of torch.library; others get nothing but plain outputs."""
_GRAPH_ROLES = ("input", "output")
NAMED = 4


class Uncompiled:
    """A model's modules under the names that they have without torch.compile."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def named_modules(self, *, remove_duplicate: bool = True) -> Iterator[tuple[str, nn.Module]]:
        for path, module in self._model.named_modules(remove_duplicate=remove_duplicate):
            if not _wraps(module):
                yield uncompiled_name(path), module


def uncompiled_name(path: str) -> str:
    """A module's path without what torch.compile put into it.

    >>> uncompiled_name("_orig_mod.layers.0")
    'layers.0'
    """
    return ".".join(name for name in path.split(".") if name != "_orig_mod")


def split_compiled(
    recorder: Recorder, model: nn.Module, module_taps: dict[nn.Module, ModuleTap]
) -> tuple[dict[nn.Module, ModuleTap], list[Region]]:
    """Which modules are tapped as Python calls them, and the compiled parts, inside which it calls none."""
    called, regions = dict(module_taps), []
    for module in _outermost(model):
        root: Any = module._orig_mod if _wraps(module) else module
        inner = {below: module_taps[below] for below in root.modules() if below in module_taps and below is not root}
        if root in module_taps:
            regions.append(Region(recorder, module, module_taps[root], list(inner.values())))
            for below in (root, *inner):
                called.pop(below, None)
    return called, regions


def is_compiled(model: nn.Module) -> bool:
    """Whether torch.compile was applied to it or to a part of it."""
    return next(_outermost(model), None) is not None


class Region:
    """One compiled part of a model."""

    def __init__(self, recorder: Recorder, compiled: nn.Module, root: ModuleTap, inner: list[ModuleTap]) -> None:
        self.failure = ""
        """Why it could not be compiled with taps."""
        self.calls = 0
        self._recorder, self._compiled, self._root = recorder, compiled, root
        self._lock = threading.RLock()
        self._entry = _entry(compiled)
        self._context = _context(compiled)
        self._way = "ops" if _backend(self._context) in _OURS else "plain"
        start = f"{root.path}." if root.path else ""
        # From the part's own root: equal parts of a model then share a graph.
        self._taps = {tap.path.removeprefix(start): tap for tap in inner}
        for tap in inner:
            tap.region = self
        self._outside: dict[str, bool] = {}
        self._graph_taps: dict[nn.Module, GraphTap] = {}
        self._open = False
        self._call: Any = None

    def check(self) -> None:
        """Raises if it cannot be recorded now."""
        from layertap.capture.graph_taps import tapped

        if any(tapped(tap.module) for tap in self._taps.values()):
            raise BadArgument(tr("compiled.twice", path=self._root.path or tr("capture.the_model")))

    def open(self) -> None:
        """Puts the taps on, and stands before the graph."""
        from layertap.capture.graph_taps import GraphTap, Values

        self._values: Values = Values()
        for path, tap in self._taps.items():
            choice = self._recorder.selection.get(tap.path)
            if choice is not None and set(choice.roles) & set(_GRAPH_ROLES):
                keeper = self._recorder.keeper
                values, way = self._values, self._way
                self._graph_taps[tap.module] = GraphTap.of(
                    choice, keeper, values=values, path=path, way=way, lasting=False
                )
        self._isolation_id = _isolation_id(tuple((tap.path, tap.plan) for tap in self._graph_taps.values()))
        self._attach()
        self._call = getattr(self._compiled, self._entry)
        self._before = self._compiled.__dict__.get(self._entry)
        self._installed = self._enter
        self._compiled.__dict__[self._entry] = self._installed

    def close(self) -> None:
        """Everything is as it was before, and so is the graph."""
        self._detach()
        if self._outside:
            self._recorder.notes.append(self._ran_outside())
        own = self._compiled.__dict__
        if (
            self._call is not None and own.get(self._entry) is self._installed
        ):  # else somebody has put another one there
            if self._before is None:
                del own[self._entry]
            else:
                own[self._entry] = self._before

    def why(self, role: str, total: int) -> str:
        """Why nothing came from a module inside."""
        name = self._root.path or Note("capture.the_model")
        if self.failure:
            return Note("compiled.without_taps", name=name, failure=self.failure)
        if role not in (*_GRAPH_ROLES, "param", "param_grad"):
            return Note("compiled.roles", name=name, role=role)
        if not self.calls and role in _GRAPH_ROLES:
            return Note("compiled.never_called", name=name)
        if not total and role in _GRAPH_ROLES:
            times = Note("capture.once") if self.calls == 1 else Note("capture.times", count=self.calls)
            return Note("compiled.ran", name=name, times=times)
        return ""

    def _enter(self, *args: Any, **kwargs: Any) -> Any:
        if taps.compiling():
            return self._call(*args, **kwargs)
        with self._lock:  # one call after another: there is one values, and calls are numbered
            if not self._recorder.live:
                return self._run(*args, **kwargs)
            return taps.around(self._compiled, (self._root,), self._run, args, kwargs, direct=False)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        from layertap.capture.graph_ops import recording

        recorder = self._recorder
        live = recorder.live
        with recording(live) as ready:
            values = self._values
            values.clear()
            values.on = True
            try:
                output = self._guarded(args, kwargs)
            finally:
                values.on = False
            if live:
                self.calls += 1
                with recorder.inside(self._root.path):
                    self._hand_over(values, ready)
            values.clear()
        return output

    def _guarded(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._open:
            return self._call(*args, **kwargs)
        if self._recorder.strict:
            return self._tapped(args, kwargs)
        try:
            return self._tapped(args, kwargs)
        except _refusals() as error:
            # A graph is made before it is used, so with fullgraph nothing has run yet. Without taps the user gets what
            # he would have got.
            self._detach()
            self._values.clear()
            try:
                output = self._call(*args, **kwargs)
            except BaseException:
                self._attach()  # not the taps' fault; the next call may be a good one
                raise
            text = str(error).strip().splitlines()
            self.failure = f"{type(error).__name__}: {text[0] if text else ''}"
            self._recorder.warn_once(
                Note("compiled.not_inside", path=self._root.path or Note("capture.the_model"), failure=self.failure)
            )
            return output

    def _tapped(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # Dynamo refuses, or falls back to Python, once it has made so many graphs of one function. Those with taps
        # have a number of their own, so that they are not counted with the user's. Known from torch 2.13 on.
        context = self._context
        with _open_checkpoints():
            if not hasattr(context, "_isolate_recompiles_id"):
                return self._call(*args, **kwargs)
            before = context._isolate_recompiles_id
            context._isolate_recompiles_id = self._isolation_id
            try:
                return self._call(*args, **kwargs)
            finally:
                context._isolate_recompiles_id = before

    def _hand_over(self, values: Values, ready: dict[int, Any]) -> None:
        recorder = self._recorder
        self._outside |= values.outside
        moments: dict[str, list[CallMoment]] = {}
        for path, count in values.calls.items():
            tap = self._taps[path]
            moments[path] = [tap.begin(direct=False) for _ in range(count)]
            for role in tap.counts_by_role.keys() & set(_GRAPH_ROLES):
                tap.counts_by_role[role].fired += count
        for path, tap in self._taps.items():
            if "param" in tap.counts_by_role:
                tap.take_parameters(moments[path][0] if path in moments else tap.begin(direct=False))
        for (path, role, _, _), reason in values.skipped.items():
            self._taps[path].counts_by_role[role].skip(reason_text(reason))
        slabs = []
        for (path, role, leaf, call), taken in values.taken().items():
            tap, moment = self._taps[path], moments[path][call]
            counts = tap.counts_by_role[role]
            if hasattr(taken.value, "placements"):
                tap.put(role, Leaf(leaf, taken.value), moment, counts)
                continue
            try:
                plan = recorder.record_plan(tap, role, leaf, _SeenInGraph.of(taken))
                record = recorder.pending_record(tap, plan, moment)
                if taken.measured:
                    slabs.append((record, taken.value))
                    continue
                event = ready.get(taken.value.data_ptr())
                owned = self._way == "ops" and (event is not None or not taken.value.is_cuda)
                level = recorder.level(plan, taken.value)
                recorder.sink.put(record, taken.value, level, owned=owned, ready=event)
            except Exception as error:  # noqa: BLE001
                recorder.skipped(tap.path, counts, error)
        recorder.sink.put_slabs(slabs)

    def _ran_outside(self) -> str:
        paths = [self._taps[path].path for path in self._outside]
        named = ", ".join(paths[:NAMED]) + (
            Note("capture.and_more", count=len(paths) - NAMED) if len(paths) > NAMED else ""
        )
        return Note("compiled.python_ran", named=named)

    def _attach(self) -> None:
        from layertap.capture.graph_taps import attach

        for tap in self._taps.values():
            if tap.module in self._graph_taps:
                tap.refused = attach(tap.module, self._graph_taps[tap.module])
        self._open = bool(self._graph_taps)

    def _detach(self) -> None:
        from layertap.capture.graph_taps import detach

        for module in self._graph_taps if self._open else ():
            detach(module)
        self._open = False


class _SeenInGraph:
    """What a plan says of a tensor that is still, or only ever was, inside a graph."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self.shape, self.dtype, self.device = shape, dtype, device

    @classmethod
    def of(cls, taken: Taken) -> _SeenInGraph:
        return cls(tuple(map(int, taken.shape)), taken.dtype, taken.value.device)


def _outermost(model: nn.Module, seen: set[int] | None = None) -> Iterator[nn.Module]:
    seen = set() if seen is None else seen
    if id(model) in seen:
        return
    seen.add(id(model))
    if _entry(model):
        yield model
        return
    for child in model.children():
        yield from _outermost(child, seen)


def _wraps(module: nn.Module) -> bool:
    # By name: asking torch._dynamo for the class would import all of it.
    return type(module).__name__ == "OptimizedModule"


def _entry(module: nn.Module) -> str:
    """The attribute through which a call gets into the compiled graph; empty for a module that is not compiled.

    Four ways: `torch.compile(module)`, `module.compile()`, `module.forward = torch.compile(module.forward)`, and
    `@torch.compile` on the `forward` of its class.
    """
    if _wraps(module):
        return "forward"
    if getattr(module, "_compiled_call_impl", None) is not None:
        return "_compiled_call_impl"
    forward = inspect.getattr_static(module, "forward", None)  # of the module's own or of its class: @torch.compile
    return "forward" if hasattr(forward, "_torchdynamo_orig_callable") else ""


def _context(compiled: nn.Module) -> Any:
    """Dynamo's context of a compiled module, with its backend; None if it cannot be found."""
    context: Any = getattr(compiled, "dynamo_ctx", None)
    if context is None:
        cells = getattr(getattr(compiled, _entry(compiled)), "__closure__", None) or ()
        held = [cell.cell_contents for cell in cells if not _empty(cell)]
        context = next((found for found in held if hasattr(found, "callback")), None)
    return context


def _backend(context: Any) -> str:
    """The name of the backend; empty if it is not known."""
    backend: Any = getattr(context, "callback", None)
    while hasattr(backend, "_torchdynamo_orig_backend"):
        backend = backend._torchdynamo_orig_backend
    return str(getattr(backend, "compiler_name", "") or getattr(backend, "__name__", ""))


@functools.cache
def _isolation_id(taps_: tuple[tuple[str, str], ...]) -> int:
    """A number for graphs with just these taps: equal parts share it, and the next recording finds it again."""
    from torch._dynamo import eval_frame

    return int(next(getattr(eval_frame, "_next_isolate_recompiles_id", _isolation_ids)))


_isolation_ids = itertools.count()


def _open_checkpoints() -> AbstractContextManager[Any]:
    """Dynamo lets nothing out of an activation checkpoint's body unless set not to repeat it in the backward pass."""
    from torch._dynamo import config

    option = "skip_fwd_side_effects_in_bwd_under_checkpoint"
    return config.patch(option, True) if hasattr(config, option) else nullcontext()


def _refusals() -> tuple[type[Exception], ...]:
    """What Dynamo raises instead of making a graph."""
    from torch._dynamo import exc

    limit = getattr(exc, "FailOnRecompileLimitHit", None)
    return (exc.TorchDynamoException, limit) if limit else (exc.TorchDynamoException,)


def _empty(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return True
    return False
