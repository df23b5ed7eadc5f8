"""A loaded app: run with captures, as a target, and the documents' own helper.

An app is what NxD Inference loads: `app.models[0]` is a wrapper whose `.model` is a ScriptModule around the device's
binary, in which no layer can be seen. Its captures come back with each call, through `tensor_capture_hook`.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import layertap.capture as capture
from layertap.errors import NothingCaptured, TargetError
from layertap.site import Receipt, Site
from layertap.store import Run
from layertap.store.foreign.neuron import to_hf
from layertap.targets.neuron.decoding import NOTHING, Decoded, decode
from layertap.targets.reader import Argument, Contents, Ran, Reader
from layertap.targets.target import Inputs, Target
from layertap.targets.trust import NOT_VARIED, moved, named, refused, second_input
from layertap.words import say

_NO_LOGITS = (
    "logits: None. With sampling on the device the model returns tokens, and logits only if it was compiled with "
    "output_logits=True together with an OnDeviceSamplingConfig; layertap.targets.neuron.prepare sets both"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One recorded call of an app."""

    output: Any
    """What the app returned, as it is."""
    run: Run
    receipt: Receipt
    decoded: Decoded


def run(app: Any, inputs: Inputs, path: str | Path | None = None, **options: Any) -> Recorded:
    """Runs the app once and records what it captured; `options` are those of `lt.record`.

    found = neuron.run(app, {"input_ids": ids, "attention_mask": mask, "position_ids": positions}, "runs/device")
    print(found.receipt); report = lt.diff("runs/reference", found.run)
    """
    target = open_app(app)
    with capture.record(target, path, **{"sites": "**", "keep": "tensor", **options}) as recording:
        output = target.run(inputs)
    reader: App = target.model.reader
    assert reader.decoded is not None  # a run without captures has raised
    return Recorded(output=output, run=recording.run, receipt=recording.receipt, decoded=reader.decoded)


def open_app(app: Any, name: str = "") -> Target:
    """The app as a target: its sites are the modules that it was compiled to capture."""
    from layertap.targets.shadow import as_model

    return Target(model=as_model(App(app)), name=name or type(app).__name__)


class App(Reader):
    """A loaded app, read through its captures."""

    format = "NxD Inference"
    can_do_without = False
    probes_itself = True  # a call fills the key-value cache; the user's own must be the last

    def __init__(self, app: Any) -> None:
        self._app = app
        self._capture = capture_config(app)
        attach(app)
        modules = {to_hf(module): "Module" for module in self._capture.modules_to_capture}
        self.contents = Contents(kind=type(app).__name__, modules={"": "", **modules}, absent=_UNSEEN)
        self.contents.arguments = tuple(Argument(name=name) for name in ("input_ids", "attention_mask", "position_ids"))
        self.contents.remarks.append(
            "Neuron: only a module's first output tensor is captured; what else it returned cannot be seen"
        )
        self.decoded: Decoded | None = None
        """Of the last call."""
        self._probed = False

    def run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], wanted: frozenset[str]) -> Ran:
        fresh = self._probe(args, kwargs, wanted)
        ran = self._call(args, kwargs, wanted)
        ran.notes.extend(fresh(ran) if fresh is not None else [])
        return ran

    def _probe(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], wanted: frozenset[str]
    ) -> Callable[[Ran], list[str]] | None:
        """Tries a second input before the first recorded call; gives what compares it with that call."""
        if not wanted or self._probed:
            return None
        self._probed = True
        second = second_input(args, kwargs)
        if second is None:
            return lambda ran: [say(NOT_VARIED)]
        try:
            again = self._call(*second, wanted)
        except Exception as error:  # noqa: BLE001 - the user's own call comes next, and raises what is to be raised
            told = refused(error)
            return lambda ran: [told]
        return lambda ran: moved(ran, again, frozenset())

    def _call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], wanted: frozenset[str]) -> Ran:
        output = self._app(*args, **kwargs)
        self.decoded = found = decoded_of(self._app, self._capture, args, kwargs)
        calls = [
            (site.path, {"": tensor})
            for site, tensor in found.captures.items()
            if site.path in wanted and site.role == "output"
        ]
        notes = list(_by_note(found.notes))
        if hasattr(output, "logits") and output.logits is None:
            notes.append(say(_NO_LOGITS))
        if found.manual:
            notes.append(
                f"{len(found.manual)} tensors were registered by hand in the model's source; they have no site"
            )
        lost = {site.path: why for site, why in found.lost.items() if site.role == "output"}
        return Ran(output=output, calls=calls, notes=notes, lost=lost)

    def save(self, path: Path, wanted: frozenset[str]) -> str:
        raise TargetError(
            "what an app captures is fixed when it is compiled: neuron.prepare(neuron_config, sites) first"
        )


_UNSEEN = (
    "the compiled model is one binary (a ScriptModule without layers); only what it was told to capture can be seen"
)


class _Call:
    """What one call of an app handed out."""

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.args, self.kwargs = args, kwargs
        self.tensors: list[torch.Tensor] | None = None
        self.done = False


_calls: weakref.WeakKeyDictionary[Any, _Call] = weakref.WeakKeyDictionary()
_last: weakref.ref[Any] | None = None


def attach(app: Any) -> Any:
    """From now on each call of the app, by whomever, forgets what the call before captured and keeps its own."""
    if getattr(app, "_layertap_attached", False):
        return app
    forward = app.forward

    @functools.wraps(forward)
    def listening(*args: Any, **kwargs: Any) -> Any:
        global _last
        call = _calls[app] = _Call(args, kwargs)
        _last = weakref.ref(app)
        theirs = kwargs.pop("tensor_capture_hook", None)

        def hook(model: Any, tensors: Any) -> None:
            # Copied: a device may hand out the same buffers next time.
            call.tensors = None if tensors is None else [tensor.detach().cpu().clone() for tensor in tensors]
            if theirs is not None:
                theirs(model, tensors)

        output = forward(*args, tensor_capture_hook=hook, **kwargs)
        if call.tensors is None and getattr(output, "captured_tensors", None):
            call.tensors = [tensor.detach().cpu().clone() for tensor in output.captured_tensors]
        call.done = True
        return output

    app.forward = listening
    app._layertap_attached = True
    return app


def decoded_of(app: Any, config: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Decoded:
    """The captures of the app's last call, which must be over."""
    call = _calls.get(app)
    if call is None or not call.done:
        raise NothingCaptured(
            "the app's last call did not end, so there are no captures of it; an older call's are gone"
        )
    neuron_config = _neuron_config(app)
    return decode(
        call.tensors,
        config.modules_to_capture,
        capture_inputs=bool(getattr(config, "capture_inputs", False)),
        span=_span(args, kwargs),
        tp_degree=int(getattr(neuron_config, "tp_degree", 1) or 1),
        hidden_size=getattr(getattr(app, "config", None), "hidden_size", None),
    )


def get_layer_hidden_states(app: Any = None) -> list[torch.Tensor]:
    """[0] the embedding, [1] decoder layer 0, …: 63 entries for 62 layers, of the app's last call. Never older ones.

        neuron.prepare(neuron_config, record_layer_outputs=True, num_layers=62); app.compile(path); app.load(path)
        neuron.open_app(app)            # once: from now on each call is listened to
        outputs = app(**inputs)
        states = neuron.get_layer_hidden_states()

    An error where a layer was not captured, where the last call failed, or where there was none.
    """
    app = app if app is not None else (_last() if _last is not None else None)
    if app is None or app not in _calls:
        raise NothingCaptured(
            "no call of an app was listened to yet: layertap.targets.neuron.open_app(app) once, then run it"
        )
    call = _calls[app]
    found = decoded_of(app, capture_config(app), call.args, call.kwargs)
    count = getattr(getattr(app, "config", None), "num_hidden_layers", None)
    known = [site for site in (*found.captures, *found.lost) if site.role == "output"]
    numbers = [int(site.path.rpartition(".")[2]) for site in known if _is_layer(site)]
    count = count if isinstance(count, int) else max(numbers, default=-1) + 1
    wanted = [Site(path="model.embed_tokens"), *(Site(path=f"model.layers.{number}") for number in range(count))]
    missing = [f"{site} ({found.lost.get(site, 'not asked for')})" for site in wanted if site not in found.captures]
    if missing:
        raise NothingCaptured(
            f"{len(missing)} of the {len(wanted)} hidden states were not captured: {', '.join(missing[:3])}; those "
            "that were are in neuron.run(app, inputs).run, by name. All come with prepare(…, record_layer_outputs=True)"
        )
    return [found.captures[site] for site in wanted]


def capture_config(app: Any) -> Any:
    """What the app was compiled to capture."""
    config = getattr(_neuron_config(app), "tensor_capture_config", None)
    if config is None or not getattr(config, "modules_to_capture", None):
        raise TargetError(f"{_shape(app)}. {NOTHING}")
    return config


def _neuron_config(app: Any) -> Any:
    text = getattr(getattr(app, "text_config", None), "neuron_config", None)
    return text if text is not None else getattr(app, "neuron_config", None)


def _shape(app: Any) -> str:
    """What such an object shows from outside."""
    models = getattr(app, "models", None) or []
    inner = getattr(models[0], "model", None) if len(models) else None
    if isinstance(inner, torch.jit.ScriptModule):
        return (
            f"{type(app).__name__}.models[0].model is a {type(inner).__name__} without layers: hooks cannot be put on "
            "it, and only its outputs can be seen"
        )
    return f"{type(app).__name__} was not compiled to capture anything"


def _is_layer(site: Site) -> bool:
    head, _, number = site.path.rpartition(".")
    return head == "model.layers" and number.isdigit()


def _span(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[int, int] | None:
    """The first and last true token of a batch whose mask says so; else the length of the ids."""
    mask = kwargs.get("attention_mask", args[1] if len(args) > 1 else None)
    ids = kwargs.get("input_ids", args[0] if args else None)
    if isinstance(mask, torch.Tensor) and mask.ndim == 2 and mask.any():
        used = mask.bool().any(0).nonzero().reshape(-1)
        return int(used[0]), int(used[-1]) + 1
    return (0, int(ids.shape[1])) if isinstance(ids, torch.Tensor) and ids.ndim == 2 else None


def _by_note(notes: Mapping[Site, str]) -> Iterator[str]:
    """Each note once, with the sites of which it is true: 63 layers are padded alike."""
    sites: dict[str, list[str]] = {}
    for site, note in notes.items():
        sites.setdefault(note, []).append(str(site))
    for note, paths in sites.items():
        yield f"{named(paths)}: {note}"
