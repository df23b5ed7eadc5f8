"""English: the messages of layertap.receipt."""

MESSAGES = {
    "receipt.and_more": " and {count} more",
    "receipt.and_more_sites": " and {count} more",
    "receipt.calls": "{how}: {calls} calls",
    "receipt.changed": "modules that were replaced, added or removed while recording are not recorded: {named}",
    "receipt.direct": "called as module.forward(…)",
    "receipt.dropped": "not kept, because the budget was used up: {count} tensors",
    "receipt.kept": "{size} of tensors kept",
    "receipt.lost": "lost: {count} records could not be written",
    "receipt.maybe_part": (
        "{sites}: sharded parameters and a plain output: it may be the whole or only the part on rank "
        "{rank}; with use_local_output=False the layout is recorded too"
    ),
    "receipt.nothing_captured": "nothing was captured from the {count} requested sites:",
    "receipt.part": "{sites}: recorded is the part on rank {rank} of {ranks}, {placements}: {part} of global {whole}",
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
    "receipt.unknown_shape": "unknown shape",
}
