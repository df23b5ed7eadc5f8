"""English: what layertap.knockout says."""

MESSAGES = {
    "knockout.all_left": "without all {count} branches {value:.0%} of the parameters are left",
    "knockout.head": (
        "{count} parts left out one by one, {tokens} tokens, perplexity of the whole model {perplexity:.4g}"
    ),
    "knockout.heads": "{path}: the number of its heads is not known",
    "knockout.joint": "{plan}: {kept}, KL {kl:.4g}, top-1 {top1:.1%}, perplexity {perplexity:.4g}",
    "knockout.no_logits": (
        "the model returns no logits; knockout compares distributions over the last axis of its output"
    ),
    "knockout.no_model": "this result has no model; call knockout(model, inputs) again for a plan",
    "knockout.projection": "{path}: its output projection is not known (expected one of {projections})",
    "knockout.range": "{low} to {high}",
    "knockout.size": "{size:.0%} of the parameters",
    "knockout.size_range": "size={size}: expected the share of the parameters to keep, between 0 and 1",
}
