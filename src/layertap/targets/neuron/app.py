"""A loaded app: run with captures, recorded while others run it, as a target, and the documents' own helper.

An app is what NxD Inference loads: `app.models[0]` is a wrapper whose `.model` is a ScriptModule around the device's
binary, in which no layer can be seen. Its captures come back with each call (listening.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import layertap.capture as capture
from layertap.capture.sharding import mark
from layertap.errors import NothingCaptured, TargetError
from layertap.formats.neuron import to_hf
from layertap.messages import tr
from layertap.result import Note
from layertap.site import Receipt, Site
from layertap.store import Run
from layertap.targets.neuron.decoding import NOTHING, Decoded, decode, layers_of
from layertap.targets.neuron.layout import Asked, Compiled, place
from layertap.targets.neuron.listening import ForwardCall, app_of, listen, listener_of, neuron_config_of
from layertap.targets.reader import Argument, ArtefactContents, Ran, Reader
from layertap.targets.target import Inputs, Target
from layertap.targets.trust import NOT_VARIED, moved, named, refused, second_input

_NO_LOGITS = "neuron.no_logits"
_ARGUMENTS = ("input_ids", "seq_ids", "attention_mask", "position_ids")
"""The first of `forward`, in its order."""
_EVERYTHING = {"sites": "**", "keep": "tensor"}


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
    with capture.record(target, path, **{**_EVERYTHING, **options}) as recording:
        output = target.run(inputs)
    reader: App = target.model.reader
    assert reader.decoded is not None  # a run without captures has raised
    return Recorded(output=output, run=recording.run, receipt=recording.receipt, decoded=reader.decoded)


@contextmanager
def record(app: Any, path: str | Path | None = None, **options: Any) -> Iterator[capture.Recorder]:
    """Records every call that anybody makes of the app in the block: the prompt, then each step of `generate()`.

        adapter = HuggingFaceGenerationAdapter(app)
        with neuron.record(app, "runs/device") as rec:
            adapter.generate(ids, attention_mask=mask, max_new_tokens=8)
        rec.run["model.layers.3@2"]            # the second token after the prompt

    Calls are numbered as `lt.record` numbers those of a model of Hugging Face inside its `generate()`.
    """
    target = open_app(app)
    reader: App = target.model.reader
    with capture.record(target, path, **{**_EVERYTHING, **options}) as recording:
        reader.listener.follow = lambda call: reader.replay(target.model, call)
        try:
            yield recording
        finally:
            reader.listener.follow = None
    if reader.failure is not None:
        raise reader.failure


def open_app(app: Any, name: str = "") -> Target:
    """The app (or the adapter around it) as a target: its sites are the modules that it was compiled to capture."""
    from layertap.targets.shadow import as_model

    app = app_of(app)
    return Target(model=as_model(App(app)), name=name or type(app).__name__)


class App(Reader):
    """A loaded app, read through its captures."""

    format = "NxD Inference"
    can_do_without = False
    probes_itself = True  # a call fills the key-value cache; the user's own must be the last

    def __init__(self, app: Any) -> None:
        self._app = app
        self._capture = capture_config(app)
        self.listener = listen(app)
        fused = bool(getattr(neuron_config_of(app), "qkv_kernel_fuse_residual_add", False))
        modules = dict.fromkeys(_seen(self._capture.modules_to_capture, fused), "Module")
        self.contents = ArtefactContents(kind=type(app).__name__, modules={"": "", **modules}, absent=Note(_UNSEEN))
        self.contents.arguments = tuple(Argument(name=name) for name in _ARGUMENTS)
        self.contents.remarks.append(Note("neuron.first_output"))
        self.decoded: Decoded | None = None
        """Of the last call."""
        self.failure: NothingCaptured | None = None
        """Why a call that was recorded as it came gave nothing."""
        self._probed = False
        self._replayed: ForwardCall | None = None
        self._before: Ran | None = None
        self._notes: dict[str, None] = {}

    def run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], wanted: frozenset[str]) -> Ran:
        if self._replayed is not None:
            ran = self._ran(self._replayed, wanted)
            if self._before is not None and wanted:
                ran.notes.extend(moved(ran, self._before, frozenset()))
            self._before = ran
            self._notes |= dict.fromkeys(ran.notes)
            return replace(ran, notes=list(self._notes))
        fresh = self._probe(args, kwargs, wanted)
        ran = self._call(args, kwargs, wanted)
        ran.notes.extend(fresh(ran) if fresh is not None else [])
        return ran

    def replay(self, model: Any, call: ForwardCall) -> None:
        """Records a call that somebody else has made."""
        self._replayed = call
        try:
            with torch.inference_mode():
                model(**call.inputs)
        except NothingCaptured as error:  # not into the user's generate(); the block raises it at its end
            self.failure = self.failure or error
        finally:
            self._replayed = None

    def _probe(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], wanted: frozenset[str]
    ) -> Callable[[Ran], list[str]] | None:
        """Tries a second input before the first recorded call; gives what compares it with that call."""
        if not wanted or self._probed:
            return None
        self._probed = True
        second = second_input(args, kwargs)
        if second is None:
            return lambda ran: [Note(NOT_VARIED)]
        try:
            again = self._call(*second, wanted)
        except Exception as error:  # noqa: BLE001 - the user's own call comes next, and raises what is to be raised
            refusal = refused(error)
            return lambda ran: [refusal]
        return lambda ran: moved(ran, again, frozenset())

    def _call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], wanted: frozenset[str]) -> Ran:
        before = self.listener.call
        self._app(*args, **kwargs)
        call = self.listener.call
        if call is None or call is before:
            raise NothingCaptured(tr("neuron.none_ran", name=type(self._app).__name__))
        return self._ran(call, wanted)

    def _ran(self, call: ForwardCall, wanted: frozenset[str]) -> Ran:
        self.decoded = found = decoded_of(self._app, call)
        for site, sharding in found.shardings.items():
            mark(found.captures[site], sharding)
        calls = [
            (site.path, {"": tensor})
            for site, tensor in found.captures.items()
            if site.path in wanted and site.role == "output"
        ]
        notes = list(_by_note(found.notes))
        output = call.output
        if hasattr(output, "logits"):
            if output.logits is None:
                notes.append(Note(_NO_LOGITS))
            else:
                _mark_logits(output.logits, self._app, call)
        if found.manual:
            notes.append(Note("neuron.by_hand", count=len(found.manual)))
        lost = {site.path: why for site, why in found.lost.items() if site.role == "output"}
        return Ran(output=output, calls=calls, notes=notes, lost=lost)

    def save(self, path: Path, wanted: frozenset[str]) -> str:
        raise TargetError(tr("neuron.fixed"))


_UNSEEN = "neuron.one_binary"


def _seen(modules: Iterable[str], fused: bool) -> Iterator[str]:
    """With what a capture may turn out to hold: the projections in a fused one, the MLP in a layer without its sum."""
    for module in modules:
        path = to_hf(module)
        yield path
        head, _, name = path.rpartition(".")
        if name == "Wqkv":
            yield from (f"{head.removesuffix('.qkv_proj')}.{part}_proj" for part in "qkv")
        if fused and name.isdigit():
            yield f"{path}.mlp"


def _mark_logits(logits: Any, app: Any, call: ForwardCall) -> None:
    if isinstance(logits, torch.Tensor):
        whole = Compiled(vocab_size=logits.shape[-1])  # the app has put the ranks' together
        placed = place(Site(path="lm_head"), logits, whole, Asked.of(call))
        if placed.sharding is not None:
            mark(logits, placed.sharding)


def decoded_of(app: Any, call: ForwardCall | None) -> Decoded:
    """The captures of a call, which must be over."""
    if call is None or not call.done:
        raise NothingCaptured(tr("neuron.unfinished"))
    config = capture_config(app)
    return decode(
        call.tensors,
        config.modules_to_capture,
        capture_inputs=bool(getattr(config, "capture_inputs", False)),
        compiled=Compiled.of(call.config, getattr(app, "config", None)),
        asked=Asked.of(call),
    )


def get_layer_hidden_states(app: Any = None) -> list[torch.Tensor]:
    """[0] the embedding, [1] decoder layer 0, …: 63 entries for 62 layers, of the app's last call. Never older ones.

        neuron.prepare(neuron_config, record_layer_outputs=True, num_layers=62); app.compile(path); app.load(path)
        neuron.open_app(app)            # once: from now on each call is listened to
        outputs = app(**inputs)
        states = neuron.get_layer_hidden_states()

    An error where a layer was not captured, where the last call failed, or where there was none.
    """
    listener = listener_of(app)
    if listener is None or listener.call is None:
        raise NothingCaptured(tr("neuron.no_call"))
    listener.check()
    app = listener.app
    found = decoded_of(app, listener.call)
    count = getattr(getattr(app, "config", None), "num_hidden_layers", None)
    known = {**found.captures, **found.lost}
    count = count if isinstance(count, int) else max(layers_of(known), default=-1) + 1
    wanted = [Site(path="model.embed_tokens"), *(Site(path=f"model.layers.{number}") for number in range(count))]
    missing = [
        f"{site} ({found.lost.get(site, Note('neuron.not_asked'))})" for site in wanted if site not in found.captures
    ]
    if missing:
        raise NothingCaptured(
            tr("neuron.hidden_states", count=len(missing), count2=len(wanted), missing=", ".join(missing[:3]))
        )
    return [found.captures[site] for site in wanted]


def capture_config(app: Any) -> Any:
    """What the app was compiled to capture."""
    config = getattr(neuron_config_of(app), "tensor_capture_config", None)
    if config is None or not getattr(config, "modules_to_capture", None):
        raise TargetError(tr("neuron.shape_nothing", shape=_shape(app), nothing=tr(NOTHING)))
    return config


def _shape(app: Any) -> str:
    """What such an object shows from outside."""
    models = getattr(app, "models", None) or []
    inner = getattr(models[0], "model", None) if len(models) else None
    if isinstance(inner, torch.jit.ScriptModule):
        return Note("neuron.no_hooks", name=type(app).__name__, name2=type(inner).__name__)
    return Note("neuron.captures_nothing", name=type(app).__name__)


def _by_note(notes: Mapping[Site, str]) -> Iterator[str]:
    """Each note once, with the sites of which it is true: 63 layers are padded alike."""
    sites: dict[str, list[str]] = {}
    for site, note in notes.items():
        sites.setdefault(note, []).append(str(site))
    for note, paths in sites.items():
        yield f"{named(paths)}: {note}"
