"""Layouts of other tools, into the store, and three of them out of it.

    open_run     a run, a run's folder, a foreign folder, an .npz: whatever it is, as a `Run`
    read_layers  `layer_1_output.pt` ... with statistics.pt and metadata.pt
    read_monitor `epoch_1_batch_0_alias.pt`
    read_neuron  `captured_tensors_cte_step_1_module_layers.0_output.pt`, by NxD Inference's capture hook
    read_npz     `mode_{mode}_input`, `mode_{mode}_output` in one .npz, or any .npz
    read_msprobe `dump.json` and `dump_tensor_data`, by msprobe
    read_dumper  `step=0___rank=0___dump_index=1___name=x.pt`, by SGLang's dumper
    read_passes  `Pass00000.pt`, by SGLang's debug hook
    read_files   any other folder or file of tensors: `NAME.pt`, `NAME.npy`, `.safetensors`, Polygraphy's JSON
    read_values  a dict or a tuple of tensors in memory
    export       the way back, into layers, monitor or npz -> Exported

    suspicion    files that may be damaged or hostile: no code of theirs runs, one bad file does not spoil the others
    numbers      statistics as those layouts define them, and whether they fit their tensors
    naming       a model's own paths -> embedding, layer_1 ..., final_norm, logits
    staging      files that appear together or not at all

A foreign run is in memory: every file is loaded once to be measured and dropped; a tensor is loaded again when it is
asked for. What could not be read, or contradicts itself, is reported in `run.problems`.
"""

from layertap.formats.detect import open_run
from layertap.formats.export import LAYOUTS, Exported, LeftOut, export
from layertap.formats.files import read_files
from layertap.formats.layers import read_layers
from layertap.formats.monitor import read_monitor
from layertap.formats.msprobe import read_msprobe
from layertap.formats.neuron import read_neuron
from layertap.formats.npz import read_npz
from layertap.formats.sglang import read_dumper, read_passes
from layertap.formats.values import read_values

__all__ = [
    "LAYOUTS",
    "Exported",
    "LeftOut",
    "export",
    "open_run",
    "read_dumper",
    "read_files",
    "read_layers",
    "read_monitor",
    "read_msprobe",
    "read_neuron",
    "read_npz",
    "read_passes",
    "read_values",
]
