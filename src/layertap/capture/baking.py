"""`bake`: a model whose taps are outputs of its graph, for every compiler there is.

Extra outputs are the one thing that all of them preserve. The tapped model is a copy that shares the original's
parameters and buffers; the original is not touched.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from layertap.capture.graph_taps import GraphTap, Key, Values, attach, children
from layertap.capture.keep import Keeper
from layertap.capture.leaves import reason_text
from layertap.capture.taps import compiling
from layertap.errors import BadArgument, NothingCaptured
from layertap.messages import tr
from layertap.result import Note
from layertap.select import Selection, select
from layertap.select.tree import kind_of
from layertap.site import Site
from layertap.store.layout import Layout, TapPlace

_ROLES = ("input", "output")


def bake(
    model: nn.Module,
    sites: Any = None,
    *,
    exclude: Any = None,
    what: str | tuple[str, ...] = ("output",),
    keep: Any = "tensor",
) -> Tapped:
    """The model with taps as further outputs: trace it, export it, compile it, and `split` what comes back.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    >>> tapped = bake(model, sites="*")
    >>> program = torch.export.export(tapped, (torch.ones(1, 2),))
    >>> output, taps = tapped.split(program.module()(torch.zeros(1, 2)))
    >>> list(taps), torch.equal(output, taps["1"])
    ([Site('0'), Site('1')], True)

    `sites`, `exclude` and `keep` are those of `record`; `what` may be `input` and `output`. With `keep="stats"` the
    statistics are computed inside the graph and only they leave it.
    """
    if not isinstance(model, nn.Module):
        raise BadArgument(tr("bake.module", name=type(model).__name__))
    if isinstance(model, torch.jit.ScriptModule):
        raise BadArgument(tr("bake.compiled"))
    model = getattr(model, "_orig_mod", model)  # of torch.compile: the graph is made anew from what is tapped
    roles = (what,) if isinstance(what, str) else tuple(what)
    if not roles or not set(roles) <= set(_ROLES):
        raise BadArgument(tr("bake.what", what=what, ROLES=" and ".join(_ROLES)))
    return Tapped(model, select(model, sites, exclude=exclude, what=roles), Keeper(model, keep))


class Tapped(nn.Module):
    """A model that returns a flat tuple: the tensors of its own output, then those of its taps. Made by `bake`."""

    __jit_unused_properties__ = ("layout",)

    def __init__(self, model: nn.Module, selection: Selection, keeper: Keeper) -> None:
        super().__init__()
        self.selection = selection
        """The plan: which sites are tapped. Print it."""
        shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        try:
            self.model = copy.deepcopy(model, shared)
        except Exception as error:
            # Whatever its own attributes raise.
            raise BadArgument(
                tr("bake.no_copy", kind_of=kind_of(model), name=type(error).__name__, error=error)
            ) from error
        self.training = model.training
        self._values = Values()
        self._number = _Learned.number()
        self._refused: dict[str, str] = {}
        for choice in selection:
            module = self.model.get_submodule(choice.path)
            tap = GraphTap.of(choice, keeper, values=self._values, path=choice.path, way="portable", lasting=True)
            refused = attach(module, tap)
            if refused:
                self._refused[choice.path] = refused
        # Tracers and exporters name the inputs by the signature of `forward`.
        self.__class__ = type(type(self).__name__, (type(self),), {"forward": _forward_like(model)})

    @property
    def layout(self) -> Layout:
        """What the outputs are: as last traced, exported or compiled, else as last called."""
        known = _learned.get(self._number)
        if not known:
            raise _NotYet
        traced = [learned for learned in known.values() if learned.traced]
        return (traced or list(known.values()))[-1].layout(self)

    def __getattr__(self, name: str) -> Any:
        if name == "layout":  # python asks here once more when a property has raised an AttributeError
            raise _NotYet
        return super().__getattr__(name)

    def split(self, raw: Any) -> tuple[Any, dict[Site, Any]]:
        """The model's own output, and site → tensor, from what the tapped or compiled model returned."""
        layout, count = self.layout, len(raw) if isinstance(raw, (tuple, list, Mapping)) else 1
        if layout.own + len(layout.taps) != count:
            # Some models take another way while they are traced, and so have more taps there, or fewer.
            others = _learned[self._number]
            layout = others[count].layout(self) if count in others else layout
        return layout.split(raw)

    def __prepare_scriptable__(self) -> None:
        # torch.jit.script reads source, and a tap is not in the model's.
        raise BadArgument(tr("bake.no_script"))

    def run_flat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        """The forward pass."""
        values = self._values
        values.clear()
        values.on = True
        output = self.model(*args, **kwargs)
        values.on = False
        own: list[torch.Tensor] = []
        form = _form(output, own)
        taps = [(key, found[2]) for key, found in values.found.items()]
        flat = (*own, *[found[0] for found in values.found.values()])
        traced = compiling()
        notes = (tuple(values.skipped.items()), tuple(values.calls.items()))
        _learn(self._number, traced, form, len(own), tuple(taps), *notes)
        values.clear()  # a tensor left on the module would be taken for a part of it
        return flat


def _forward_like(model: nn.Module) -> Any:
    def forward(self: Tapped, *args: Any, **kwargs: Any) -> Any:
        return self.run_flat(args, kwargs)

    signature = inspect.signature(model.forward)
    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    forward.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[first, *signature.parameters.values()], return_annotation=inspect.Signature.empty
    )
    return forward


def _form(value: Any, own: list[torch.Tensor]) -> tuple[Any, ...]:
    """The form of an output as nested constants, its tensors appended to `own`; traced, like all that a tap does."""
    if isinstance(value, torch.Tensor):
        own.append(value)
        return ("tensor", len(own) - 1)
    if value is None or isinstance(value, (bool, int, float, str)):
        return ("value", value)
    if isinstance(value, dict) and type(value) is dict:
        return ("dict", tuple([(key, _form(value[key], own)) for key in value]))
    if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return (kind, tuple([_form(item, own) for item in value]))
    name = type(value).__module__ + ":" + type(value).__qualname__
    parts = tuple([(part, _form(item, own)) for part, item in children(value)])
    rebuilt = isinstance(value, (Mapping, tuple)) or dataclasses.is_dataclass(value)
    # A cache or its like comes back as its fields: only it knows how it is made.
    return ("class" if rebuilt else "fields", name, parts) if parts else ("lost", name)


class _NotYet(BadArgument, AttributeError):
    """An AttributeError too: torch.jit looks at every attribute before it traces."""

    def __str__(self) -> str:
        return tr("bake.layout")


class _Learned:
    """What a trace has shown of one tapped model."""

    def __init__(self, traced: bool, form: Any, own: int, taps: Any, skipped: Any, calls: Any) -> None:
        self.traced, self.form, self.own, self.taps = traced, form, own, taps
        self.skipped, self.calls = dict(skipped), dict(calls)

    _count = 0

    @classmethod
    def number(cls) -> int:
        cls._count += 1
        return cls._count

    def layout(self, tapped: Tapped) -> Layout:
        kinds = {choice.path: choice.kind for choice in tapped.selection}
        if not self.taps:
            raise NothingCaptured(tr("bake.nothing", count=len(kinds), kinds=", ".join(list(kinds)[:4])))
        seen = {(path, role) for (path, role, _, _), _ in self.taps}
        silent = {
            str(Site(path=choice.path, role=role)): tapped._refused.get(choice.path) or self._why(choice.path, role)
            for choice in tapped.selection
            for role in choice.roles
            if (choice.path, role) not in seen
        }
        return Layout(
            model=kind_of(tapped.model),
            own=self.own,
            output=_listed(self.form),
            taps=tuple(TapPlace(site=_site(key), kind=kinds[key[0]], level=level) for key, level in self.taps),
            skipped={_site(key): reason_text(why) for key, why in self.skipped.items()},
            silent=silent,
        )

    def _why(self, path: str, role: str) -> str:
        why = {reason_text(reason) for key, reason in self.skipped.items() if key[:2] == (path, role)}
        if why:
            return Note("bake.no_tensor", why=", ".join(sorted(why)))
        if path not in self.calls:
            return Note("bake.never_called")
        return Note("bake.no_leaves")


_learned: dict[int, dict[int, _Learned]] = {}
"""Number of the tapped model → number of outputs → what was learned last."""


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _learn(number: int, traced: bool, form: Any, own: int, taps: Any, skipped: Any, calls: Any) -> int:
    # A tracer runs this once, with constants; kept outside of the module, which some exporters restore afterwards.
    known = _learned.setdefault(number, {})
    known.pop(own + len(taps), None)
    known[own + len(taps)] = _Learned(traced, form, own, taps, skipped, calls)
    return number


def _site(key: Key) -> str:
    path, role, leaf, call = key
    return str(Site(path=path, role=role, leaf=leaf, call=call))


def _listed(form: Any) -> Any:
    return [_listed(item) for item in form] if isinstance(form, (tuple, list)) else form
