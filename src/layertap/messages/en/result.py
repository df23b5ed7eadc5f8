"""Verdicts and what all results share."""

MESSAGES = {
    "result.identical": "IDENTICAL",
    "result.noise": "NOISE",
    "result.fault": "FAULT",
    "result.inconclusive": "INCONCLUSIVE",
}
