"""Models compiled by NxD Inference for AWS Neuron: asked for their layers before compiling, decoded after running.

    prepare                  sets the capture, logits and sampling fields of a NeuronConfig; before `app.compile()`
    run                      one call of the app, recorded like any model → Recorded
    record                   every call that others make, `generate()` for instance, step by step
    open_app, release        the app as a target, for `lt.record(target, …)`; the app as it was
    get_layer_hidden_states  [embedding, layer 0, …] of the app's last call, or an error
    decode                   captured tensors → sites, parts and flags; a pure function (layout.py: which part)
    read_neuron              a folder that NxD Inference's own capture hook wrote
    to_neuron, to_hf         module paths there and here

Nothing here imports neuronx until `prepare` needs its classes. **Never run on Neuron hardware**: written against NxD
Inference's public source and documentation, tested on a stand-in app around a traced, saved and reloaded ScriptModule.
The newer stack, `torch.compile(model, backend="neuron")`, needs none of this: `lt.record` taps compiled models.
"""

from layertap.formats.neuron import read_neuron, to_hf, to_neuron
from layertap.targets.neuron.app import Recorded, get_layer_hidden_states, open_app, record, run
from layertap.targets.neuron.decoding import Decoded, decode
from layertap.targets.neuron.layout import Asked, Compiled
from layertap.targets.neuron.listening import release
from layertap.targets.neuron.preparing import CapturePlan, prepare

__all__ = [
    "Asked",
    "CapturePlan",
    "Compiled",
    "Decoded",
    "Recorded",
    "decode",
    "get_layer_hidden_states",
    "open_app",
    "prepare",
    "read_neuron",
    "record",
    "release",
    "run",
    "to_hf",
    "to_neuron",
]
