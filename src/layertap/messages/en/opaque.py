"""English: the messages of layertap.opaque."""

MESSAGES = {
    "opaque.around_neff": (
        "{name} is TorchScript around a Neuron executable (class {holder}): its layers are inside the "
        "NEFF and not visible, and this process has no torch_neuronx to run it. Before compiling: "
        "layertap.targets.neuron.prepare(neuron_config, sites); then layertap.targets.neuron.run(app, …) "
        "records it"
    ),
    "opaque.bake": (
        'tapped = lt.bake(model, sites="…"), then compile tapped instead of model; output, taps = tapped.split(raw)'
    ),
    "opaque.damaged": "{text}: the archive is damaged or incomplete; copy it again",
    "opaque.device_code": "it contains only fused device code and its outputs",
    "opaque.empty": "{name} is empty",
    "opaque.frozen": (
        "freezing merged it into one graph and removed the names of its modules; open the file from "
        "before torch.jit.freeze"
    ),
    "opaque.frozen_script": "frozen TorchScript",
    "opaque.invisible": "{name} is {what}: its layers are not visible, since {why}. Before compiling: {BAKE}",
    "opaque.iree": "it contains only the device's code and its outputs; modules and operators have no names in it",
    "opaque.is_engine": "a TensorRT engine",
    "opaque.is_neff": "a Neuron executable (NEFF)",
    "opaque.is_package": "a package of AOTInductor binaries",
    "opaque.is_so": "a shared library (AOTInductor)",
    "opaque.is_vmfb": "IREE bytecode",
    "opaque.machine_code": "it contains only machine code and its outputs",
    "opaque.needs_class": (
        "{name} needs the class torch.classes.{holder}, which this process does not have; import the "
        "library that registers it first. What runs inside that class is not visible. Before compiling: "
        "{BAKE}"
    ),
    "opaque.neff": "it contains only the device's instructions and its outputs; modules have no names in it",
    "opaque.no_file_of": "{name} is not a file of torch.jit.save or torch.export.save",
    "opaque.no_module_names": "it contains only machine code and its outputs; modules have no names in it",
    "opaque.open_model": "open the model that they belong to: file.py:factory or hf:PATH",
    "opaque.pickle": "{text}: a pickle, which is not opened, since it could run code; {way_out}",
    "opaque.weights": (
        "{name} contains weights, or a pickled model (torch.save), not a program that can be run; {way_out}"
    ),
}
