"""English: the messages of layertap.onnx."""

MESSAGES = {
    "onnx.cross_agree": (
        "ORT_DISABLE_ALL: without ONNX Runtime's optimisations all captures agree to {error} of their size"
    ),
    "onnx.cross_differ": (
        "ORT_DISABLE_ALL: ONNX Runtime's optimisations change {where} by {error} of its length, {ratio} "
        "× the modelled floor"
    ),
    "onnx.cross_identical": "ORT_DISABLE_ALL: without ONNX Runtime's optimisations every capture is bit-identical",
    "onnx.integers": (
        "its output is rounded to integers whose scale is not in the file, so it cannot be compared with floats"
    ),
    "onnx.merged": "merged: {output} is assumed to be the last operation of {scope}",
    "onnx.merged_after": (
        "the operation after it (a normalisation, an activation) was merged into its node, so its own "
        "output is not computed; export without optimisation, and quantise after that, to keep it"
    ),
    "onnx.needs": "{name} needs onnx and onnxruntime: pip install 'layertap[onnx]'",
    "onnx.no_graph": "{name} contains no graph: it is empty, or not an ONNX file",
    "onnx.no_names": (
        "names: nodes have no module paths ({SCOPES}), and their names have none either; so each tensor "
        "is listed by its own name. To see modules, export with torch.onnx.export(model, …, "
        "dynamo=True), and keep the metadata in later tools"
    ),
    "onnx.no_operation": "{name} contains no operation that computes anything",
    "onnx.quantised": (
        "quantised: {quantised} operations round to integers of 8 bits or fewer; what is recorded of a "
        "module is its output after dequantisation, as the next module reads it"
    ),
    "onnx.tap_outputs": (
        "each tap is an output of its own, named as the value in the graph; metadata layertap.taps has its site"
    ),
    "onnx.the_output": "the output",
    "onnx.rounded_activation": (
        "merged: the activation {output} after {scope} was taken out by a quantiser, because rounding does its work; "
        "the module of the activation is not visible, and {scope} is shown before rounding"
    ),
    "onnx.unreadable": "{name} cannot be read as ONNX: {name2}: {error}",
    "onnx.value_names": (
        "names: modules are known only by the names of values (/layer1/conv/Conv_output_0), as the older "
        "exporter writes them; values that an optimiser renamed are not visible"
    ),
    "onnx.weights_missing": "{name}: its weights are in {file}, which is not beside it; copy both files together",
    "onnx.weights_outside": "{name}: its weights are declared to be in {file!r}, outside its folder; that is refused",
}
