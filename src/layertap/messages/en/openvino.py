"""English: the messages of layertap.openvino."""

MESSAGES = {
    "openvino.asked": "precision: {asked} was requested, but on this CPU OpenVINO computes in f32",
    "openvino.folding": (
        "folding: OpenVINO merges successive constant factors (or offsets) into one; a module that ends "
        "in one, and is followed by another, may show the value before it"
    ),
    "openvino.hint": "{why}; config={{'INFERENCE_PRECISION_HINT': 'f32'}} disables that",
    "openvino.needs": "{name} needs openvino: pip install 'layertap[openvino]'",
    "openvino.no_net": "{name} is not an OpenVINO IR: there is no <net> in it",
    "openvino.no_paths": (
        "{name}: its operations have no module paths (__module.…), so modules cannot be distinguished; "
        "convert the model itself (openvino.convert_model(model, example_input=…)), not an ONNX file or "
        "an exported program"
    ),
    "openvino.precision": (
        "precision: OpenVINO computes {count} operations in {kind}, whatever dtype its tensors have"
    ),
    "openvino.tap_outputs": "each tap is an output of its own, whose tensor is called layertap:SITE",
    "openvino.unreadable": "{name} cannot be read as OpenVINO IR: {error}",
}
