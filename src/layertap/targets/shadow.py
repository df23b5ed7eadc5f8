"""An artefact as a tree of modules, so that `record` sees it as it sees any model.

Taps can only be put on modules that Python calls. A compiled file has none, so each module that it was made from gets a
*shadow* here, of the same path and the same class name. Calling the root runs the artefact with its taps and then calls
the shadows in the order of execution, each of which returns what its module gave. Selection, receipts, calls (`@1`),
levels and schedules are those of every other recording: there is no second capture mechanism.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import torch
from torch import nn

from layertap.artefact import ArtefactState
from layertap.capture import taps
from layertap.result import Note
from layertap.targets.reader import ArtefactContents, Reader, Values
from layertap.targets.trust import CHECKED, check

CONTAINERS = ("ModuleList", "ModuleDict")


class Shadow(nn.Module):
    """Stands for one module of an artefact."""

    def __init__(self, lost: str = "") -> None:
        super().__init__()
        self.__dict__["layertap_artefact"] = ArtefactState(lost=lost)
        self.__dict__["_values"] = None

    layertap_artefact: ArtefactState

    def forward(self) -> Any:
        values: Values = self.__dict__["_values"]
        return values[""] if list(values) == [""] else values


class Artefact(Shadow):
    """The root: calling it runs the file."""

    def __init__(self, reader: Reader) -> None:
        super().__init__()
        self.__dict__["reader"] = reader
        self.__dict__["shadows"] = _grow(self, reader.contents)
        self.layertap_artefact.format = reader.format
        self.layertap_artefact.notes = list(reader.contents.remarks)
        self.__dict__["_checked"] = {}
        self.eval()

    reader: Reader
    shadows: dict[str, nn.Module]
    _checked: dict[frozenset[str], list[str]]
    """Taps → what a check of them has shown; it is made once."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        wanted = frozenset(path for path in self.reader.contents.paths if path and taps.wanted(self.shadows[path]))
        ran = self.reader.run(args, kwargs, wanted)
        state = self.layertap_artefact
        state.computes_in |= ran.computes
        if wanted:
            if wanted not in self._checked:
                began = time.perf_counter()
                self._checked[wanted] = [*check(self.reader, args, kwargs, wanted, ran), Note(CHECKED)]
                state.seconds_checking += time.perf_counter() - began
            notes = [*self.reader.contents.remarks_on(wanted), *self._checked[wanted], *ran.notes]
            state.notes = list(dict.fromkeys(notes))
        for path, why in ran.lost.items():
            shadow = self.shadows[path]
            if isinstance(shadow, Shadow):
                shadow.layertap_artefact.lost = why
        for path, values in ran.calls:
            shadow = self.shadows[path]
            shadow.__dict__["_values"] = values
            shadow()
            shadow.__dict__["_values"] = None
        return ran.output


def as_model(reader: Reader) -> Artefact:
    """The artefact's tree; its root has the class name that the file remembers."""
    root: Artefact = _named(reader.contents.kind, Artefact)(reader)
    return root


def _grow(root: nn.Module, contents: ArtefactContents) -> dict[str, nn.Module]:
    found: dict[str, nn.Module] = {"": root}
    for path in sorted(_with_parents(contents.modules), key=lambda path: path.count(".")):
        if not path:
            continue
        kind = contents.modules.get(path) or _container(path, contents)
        lost = contents.lost.get(path, "")
        if not lost and path not in contents.modules:
            lost = contents.absent or Note("select.container", kind=kind)
        found[path] = _named(kind, Shadow)(lost)
    # Children in the order of the file, parents before children: numbers must not come as text.
    for path in _with_parents(contents.modules):
        if path:
            parent, _, name = path.rpartition(".")
            # Not add_module: a model may have a child of a name that nn.Module uses itself.
            found[parent]._modules[name] = found[path]
    for name, tensor in contents.parameters.items():
        path, _, own = name.rpartition(".")
        if path not in found:  # of a module that the file no longer names: its dtype still counts
            path, own = "", name.replace(".", "_")
        found[path]._parameters[own] = nn.Parameter(tensor, requires_grad=False)
    return found


def _with_parents(modules: dict[str, str]) -> list[str]:
    paths: dict[str, None] = {"": None}
    for path in modules:
        parts = path.split(".") if path else []
        for length in range(1, len(parts) + 1):
            paths[".".join(parts[:length])] = None
    return list(paths)


def _container(path: str, contents: ArtefactContents) -> str:
    below = [other[len(path) + 1 :].partition(".")[0] for other in contents.modules if other.startswith(f"{path}.")]
    return CONTAINERS[0] if all(name.isdigit() for name in below) else CONTAINERS[1]


@functools.cache
def _named(kind: str, base: type[Any]) -> type[Any]:
    """A class of that name: patterns such as `type:Linear`, defaults and receipts go by it."""
    return type(kind, (base,), {"__module__": __name__})


def data_of(tensor: Any) -> torch.Tensor:
    """A tensor without autograd's part, for `nn.Parameter`."""
    return tensor.detach() if isinstance(tensor, torch.Tensor) else torch.as_tensor(tensor)
