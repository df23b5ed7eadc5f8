"""English: the messages of layertap.weights.knockout."""

MESSAGES = {
    "knockout.change": "change",
    "knockout.cosine": "cosine",
    "knockout.head": "{count} parts left out one by one, {tokens} tokens, perplexity {perplexity:.4g} whole",
    "knockout.interval": "95 %",
    "knockout.joint": (
        "{plan}: {size:.0%} of the parameters, KL {kl:.4g}, top-1 {top1:.1%}, perplexity {perplexity:.4g}"
    ),
    "knockout.kl": "KL",
    "knockout.left": "without all {count} branches {share:.0%} of the parameters are left",
    "knockout.more": "… and {count} more parts; to_json has every one",
    "knockout.no_heads": "{path}: the number of its heads is not known",
    "knockout.no_inputs": "knockout needs at least one batch of inputs",
    "knockout.no_logits": (
        "the model returns no logits; knockout compares distributions over the last axis of its output"
    ),
    "knockout.no_model": "the result's model does not exist in this process; call knockout(model, inputs) again to plan",
    "knockout.no_projection": "{path}: its output projection is not known (one of {names})",
    "knockout.perplexity": "ppl",
    "knockout.share": "size",
    "knockout.size": "size={size}: the share of the parameters to keep, between 0 and 1",
    "knockout.span": "{low:.3g} to {high:.3g}",
    "knockout.top1": "top-1",
}
