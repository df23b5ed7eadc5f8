"""Verdicts and what all results share."""

MESSAGES = {
    "result.candidate": "candidate",
    "result.fault": "FAULT",
    "result.identical": "IDENTICAL",
    "result.inconclusive": "INCONCLUSIVE",
    "result.joined": "{first}; {second}",
    "result.noise": "NOISE",
    "result.reference": "reference",
}
