"""English: the messages of layertap.repro."""

MESSAGES = {
    "repro.exists": "{path} already exists; give a new folder",
    "repro.models_gone": (
        "the models of this finding no longer exist; keep both until finding.repro() has been called"
    ),
    "repro.never_called": "{path} was never called, so there is no call to reproduce",
    "repro.not_saved": "neither pickled ({line}) nor exported ({line2})",
}
