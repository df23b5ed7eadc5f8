"""English: the messages of layertap.finding."""

MESSAGES = {
    "finding.also": "also: {site} ({cause}): {evidence}",
    "finding.column_own": "own error",
    "finding.column_total": "total error",
    "finding.evidence": "{cause}: {evidence}",
    "finding.explained": (
        "Putting the reference's output back removes {share} of the final error. Rounding explains "
        "{floor} of the observed {local}."
    ),
    "finding.fault": "{site} is wrong ({cause}): {evidence}.",
    "finding.identical": "{verdict}: every module returns the same bits on both sides",
    "finding.model": "the model",
    "finding.no_repro": "there is nothing to reproduce: the verdict is {verdict}, and no module is named",
    "finding.noise": (
        "{verdict}: no module's error exceeds what rounding explains; output error {error}, rounding alone {floor}"
    ),
    "finding.op": "The two sides first differ at {op}.",
    "finding.output_error": "The output's error is {total}; rounding alone causes {floor}.",
    "finding.reasons": "{verdict}: {reasons}",
    "finding.repro_elsewhere": (
        "this finding was made in another process or read from a file; finding.repro() works where find_fault ran"
    ),
}
