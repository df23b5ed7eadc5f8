"""Verdicts and what all results share."""

MESSAGES = {
    "result.candidate": "candidate",
    "result.fault": "FAULT",
    "result.identical": "IDENTICAL",
    "result.inconclusive": "INCONCLUSIVE",
    "result.joined": "{first}; {second}",
    "result.no_form": "{name} has no {form} form",
    "result.noise": "NOISE",
    "result.reference": "reference",
    "result.unwritable": "{path}: no report can be written here ({strerror})",
}
