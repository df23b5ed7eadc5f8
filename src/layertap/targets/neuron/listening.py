"""Every call of an app, by whomever it is made: what it was given, and what it captured.

`HuggingFaceGenerationAdapter` keeps the app's `forward` from the moment when it was made, so a listener around
`forward` misses its calls, and what it holds is an older call's. Two places lie on the way of every call: the wrapper
of each compiled model, a module that gets a hook, and `_get_constructed_outputs`, which `forward` looks up on the app.
A call that reaches a wrapper makes what was captured before it void, whether or not it ends.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from layertap.errors import TargetError
from layertap.messages import tr

_ENDS = "_get_constructed_outputs"
_HERE = "_layertap_listener"


@dataclass(slots=True, kw_only=True)
class ForwardCall:
    """One call of an app."""

    model: str
    """Which of its compiled models ran: `context_encoding_model`, `token_generation_model`."""
    config: Any
    """That model's own NeuronConfig."""
    ids: torch.Tensor | None
    mask: torch.Tensor | None
    positions: torch.Tensor | None
    sequences: torch.Tensor | None
    tensors: list[torch.Tensor] | None = None
    """What it captured, copied: a device may hand out the same buffers next time."""
    output: Any = None
    done: bool = False

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        """By the names that the app's `forward` gives them."""
        names = {"input_ids": self.ids, "attention_mask": self.mask, "position_ids": self.positions}
        given = {**names, "seq_ids": self.sequences}
        return {name: value for name, value in given.items() if value is not None}


_last: weakref.ref[Any] | None = None


class Listener:
    """Listens to one app until it is released."""

    def __init__(self, app: Any) -> None:
        wrappers = list(getattr(app, "models", None) or [])
        ends = getattr(app, _ENDS, None)
        if ends is None or not wrappers or not all(isinstance(wrapper, torch.nn.Module) for wrapper in wrappers):
            raise TargetError(tr("neuron.not_an_app", name=type(app).__name__, ENDS=_ENDS))
        self.call: ForwardCall | None = None
        """The last one that began."""
        self.follow: Callable[[ForwardCall], None] | None = None
        """What is called with each call that has ended."""
        self._app = weakref.ref(app)
        self._ends: Callable[..., Any] = ends
        self._wrappers = wrappers
        self._handles = [wrapper.register_forward_pre_hook(self._begin, with_kwargs=True) for wrapper in wrappers]
        self._ours = self._end
        app.__dict__[_ENDS] = self._ours

    @property
    def app(self) -> Any:
        return self._app()

    def check(self) -> None:
        """Raises if the app has got compiled models since that are not listened to."""
        app = self._app()
        if app is not None and list(app.models) != self._wrappers:
            raise TargetError(tr("neuron.other_models", name=type(app).__name__))

    def release(self) -> None:
        """The app is as it was; what somebody else has put there since stays."""
        app = self._app()
        for handle in self._handles:
            handle.remove()
        if app is not None:
            if app.__dict__.get(_ENDS) is self._ours:
                del app.__dict__[_ENDS]
            app.__dict__.pop(_HERE, None)

    def _begin(self, wrapper: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        global _last
        first = [value if isinstance(value, torch.Tensor) else None for value in args[:4]]
        ids, mask, positions, sequences = first + [None] * (4 - len(first))
        config = getattr(wrapper, "neuron_config", None)
        self.call = ForwardCall(
            model=str(getattr(wrapper, "tag", "")),
            config=config,
            ids=ids,
            mask=mask,
            positions=positions,
            sequences=sequences,
        )
        _last = self._app

    def _end(self, *args: Any, **kwargs: Any) -> Any:
        output = self._ends(*args, **kwargs)
        call = self.call
        if call is not None and not call.done:
            found = getattr(output, "captured_tensors", None)
            call.tensors = [tensor.detach().cpu().clone() for tensor in found] if found else None
            call.output, call.done = output, True
            if self.follow is not None:
                self.follow(call)
        return output


def listen(app: Any) -> Listener:
    """Listens to an app from now on; the same listener for everybody who asks."""
    found: Listener | None = app.__dict__.get(_HERE)
    if found is None:
        config = neuron_config_of(app)
        if getattr(config, "async_mode", False):
            raise TargetError(tr("neuron.async_on"))
        found = app.__dict__[_HERE] = Listener(app)
    found.check()
    return found


def listener_of(app: Any) -> Listener | None:
    """The app's listener; of no app in particular, that of the app that was called last."""
    app = app if app is not None else (_last() if _last is not None else None)
    return None if app is None else app_of(app).__dict__.get(_HERE)


def release(app: Any) -> None:
    """Stops listening; the app is as it was before it was opened. Once more does nothing."""
    found = listener_of(app)
    if found is not None:
        found.release()


def app_of(app: Any) -> Any:
    """The app itself: an adapter for `generate()` contains one."""
    inner = getattr(app, "neuron_model", None)
    return app if inner is None else inner


def neuron_config_of(app: Any) -> Any:
    """Its NeuronConfig; of a model for images and text, that of the text."""
    text = getattr(getattr(app, "text_config", None), "neuron_config", None)
    return text if text is not None else getattr(app, "neuron_config", None)
