"""English: the messages of layertap.script."""

MESSAGES = {
    "script.data": "{name}: data.pkl is {error}",
    "script.for_root": "for its root",
    "script.foreign": "{name} needs the class {foreign}: the library that registers it must be imported",
    "script.input_missing": "input {missing} is missing; it takes {map}",
    "script.no_class": "{name}: its code has no class {root}",
    "script.no_forward": (
        "the code of {name} has no forward with a declared return type; it cannot be saved with taps"
    ),
    "script.no_own_value": (
        "{kind} has no value of its own in the file (it returns its input, or its result was never "
        "used); tap the module before it"
    ),
    "script.no_value": "{short} has no value of its own in the file (it returns its input, or none)",
    "script.not_called": "nothing in the file calls it",
    "script.not_script": "{name}: {member} is not TorchScript's code: {error}",
    "script.recursive": "a module that contains itself: {path}…",
    "script.returns": "it returns (output, taps), where taps is a list of (site, tensor) in order of execution",
    "script.types": "{kind} returns {types}, of which no tensor can be tapped; tap the modules that it calls",
}
