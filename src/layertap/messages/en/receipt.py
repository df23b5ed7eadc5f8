"""English: what layertap.receipt says."""

MESSAGES = {
    "receipt.and_more": " and {count} more",
    "receipt.calls": "{how}: {calls} calls",
    "receipt.direct": "called as module.forward(…)",
    "receipt.dropped": "not kept, because the budget was used up: {count} tensors",
    "receipt.kept": "{size} of tensors kept",
    "receipt.lost": "lost: {count} records could not be written",
    "receipt.reason": "  {names}{more}: {why}",
    "receipt.recomputed": "recomputed by activation checkpointing",
    "receipt.recorded": (
        "recorded {records} tensors from {fired} of {sites} sites in {steps} step(s), {kept}; {seconds} "
        "s, of which {overhead} s ({share}) inside layertap"
    ),
    "receipt.silent": "without data: {count} of {total} sites",
    "receipt.skipped": "values that are not tensors: {listed}",
    "receipt.statistics_only": "statistics only",
    "receipt.stopped": "stopped early: {error}",
}
