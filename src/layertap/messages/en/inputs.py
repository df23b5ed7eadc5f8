"""English: the messages of layertap.inputs."""

MESSAGES = {
    "inputs.empty": "{path} contains no inputs; expected tensors by name",
    "inputs.exclusive": "a prompt and an input file exclude each other; give one of them",
    "inputs.factory": "factory's input",
    "inputs.file": "input file",
    "inputs.missing": "input {missing} is missing",
    "inputs.no_file": "there is no input file {path} (looked from {cwd})",
    "inputs.no_suffix": "a file without suffix",
    "inputs.no_tokenizer": (
        "{name} has no tokenizer, so a prompt cannot be read; give ids in an input file (.npz, .json, …)"
    ),
    "inputs.no_tokens": "the prompt {prompt!r} gives no tokens; give a longer one",
    "inputs.no_vocabulary": (
        "{name}: no inputs to run it with, and {name2} has no vocabulary to draw ids from; let the "
        "factory return (model, inputs), or give an input file"
    ),
    "inputs.none": (
        "{name}: no inputs to run it with; give an input file (.npz, .safetensors, .json, .pt) with {takes}"
    ),
    "inputs.not_object": '{path} contains a {name}; expected an object such as {{"input_ids": [[1, 2]]}}',
    "inputs.seq_len": "seq_len={length} leaves nothing to run; give 1 or more",
    "inputs.seq_len_own": "seq_len={seq_len} is for random ids; the {source} has its own length",
    "inputs.suffix": "{path}: {suffix} is not a supported input; use {READERS}",
    "inputs.unknown": "{path} has {map}, which {name} does not take; it takes {named}",
    "inputs.unreadable": "{path} cannot be read as {suffix} input: {reason}",
}
