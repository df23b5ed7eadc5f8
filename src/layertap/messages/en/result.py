"""Verdicts and what all results share."""

MESSAGES = {
    "result.not_a": "this is not the dictionary of a {name}: {error}",
    "result.not_mapping": "expected the dictionary of a {name}, got a {given}",
    "result.candidate": "candidate",
    "result.fault": "FAULT",
    "result.identical": "IDENTICAL",
    "result.inconclusive": "INCONCLUSIVE",
    "result.joined": "{first}; {second}",
    "result.no_form": "{name} has no {form} form",
    "result.noise": "NOISE",
    "result.reference": "reference",
    "result.separator": "; ",
    "result.unwritable": "{path}: no report can be written here ({strerror})",
}
