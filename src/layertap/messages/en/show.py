"""English: the messages of layertap.show."""

MESSAGES = {
    "show.change": "Δ: relative to the same module one layer before; ≈ estimated from sketches",
    "show.depth": "mean |x| over depth, log scale  {sparkline}",
    "show.fingerprint": "  fingerprint {fingerprint:016x}  kept {kept}",
    "show.first_nonfinite": "the first with NaN or Inf",
    "show.first_of": "  first    {values}",
    "show.first_values": "first non-finite values: {site} ({nan} NaN, {inf} Inf)",
    "show.last": "the last",
    "show.moment": "step {step} {phase} rank {rank}",
    "show.one_step": "shown: step {step}, {which}; --step shows another, SITE one site over all steps",
    "show.problem": "problem: {problem}",
    "show.records": "{count} records, mean |x|  {sparkline}",
    "show.tensor": "{shape} {dtype} on {device}",
}
