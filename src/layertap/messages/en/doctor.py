"""English: the messages of layertap.weights.doctor."""

MESSAGES = {
    "doctor.all_run": "the change: all branches run",
    "doctor.and_more": "{first}; and {count} more",
    "doctor.cache": "CACHE",
    "doctor.cache_line": "cache: {gap}",
    "doctor.cache_wrong": "right without a cache, wrong with one: {gap}",
    "doctor.cheap": "the cuts are made as planned and have little effect: {cost}",
    "doctor.class_lost": (
        "the class that was built ({built}) runs {paths}, which the plan skips, with weights "
        "that are in no checkpoint: the pruned class was lost when the model was saved and "
        "loaded"
    ),
    "doctor.code": "CODE",
    "doctor.comparing": "comparing weights",
    "doctor.compiled": "the change: the candidate is compiled, so its calls cannot be counted",
    "doctor.computes_else": "{site} computes other values than {against}: {cause}, {evidence}",
    "doctor.computes_else_bare": "{site} computes other values than {against}: {cause}",
    "doctor.cost": "effect of the cuts: {cost}",
    "doctor.decoding": "decoding with a cache and without",
    "doctor.each": "each cut alone, the most harmful first: {worst}",
    "doctor.finding": "searching the fault in the rest",
    "doctor.gap": "with a cache the logits differ by {theirs:.2g} from those without (reference: {ours:.2g})",
    "doctor.gap_counted": "{gap}; the cache has {length} of {tokens} tokens",
    "doctor.gap_not_updated": "{gap}; a skipped attention must still update the cache",
    "doctor.harm": "{site} (KL {kl:.3g})",
    "doctor.head": "{answer}: {sentence}",
    "doctor.healthy": "HEALTHY",
    "doctor.idea": "IDEA",
    "doctor.idea_wrong": (
        "weights, code and cache are right: it is the cut itself; {cost}; the most harmful is {site}"
    ),
    "doctor.inconclusive": "INCONCLUSIVE",
    "doctor.loading": "LOADING",
    "doctor.measuring": "measuring the effect of the cuts",
    "doctor.no_change": "branches are cut, and the output does not change on these inputs",
    "doctor.no_decoding": "cache: the models do not decode step by step",
    "doctor.no_effect": "the change: the output is bit-identical to the reference's, although branches are cut",
    "doctor.no_ids": "cache: not checked, the inputs contain no token ids",
    "doctor.not_comparable": "cache: not checked, the output changes from run to run",
    "doctor.not_repeatable": (
        "repeated: {model} gives another output for the same inputs (relative difference {error:.2g})"
    ),
    "doctor.not_run": "the change: {count} branches are not run: {paths}",
    "doctor.not_skipped": "the plan skips {paths}, but {built} runs them: they were called, and computed values",
    "doctor.placebo": (
        "the plan skips {paths}, but {built} runs them: the output is bit-identical to the "
        "reference's: the change has no effect"
    ),
    "doctor.ran_all_the_same": "the change: {count} of {total} branches of the plan still ran",
    "doctor.rest": "the rest, against {against}: {verdict}",
    "doctor.rest_at": "the rest, against {against}: {verdict} at {site}",
    "doctor.row": "{name} ({status}: {detail})",
    "doctor.row_bare": "{name} ({status})",
    "doctor.running": "running both models",
    "doctor.same": "the candidate computes the same as the reference",
    "doctor.tensor": "one tensor differs from that of the reference: {row}",
    "doctor.tensors": "{count} tensors differ from those of the reference; the first is {row}",
    "doctor.the_candidate": "the candidate",
    "doctor.the_cut_reference": "the reference with the same cuts",
    "doctor.the_model": "the model itself",
    "doctor.the_reference": "the reference",
    "doctor.top1": "top-1 agrees at {top1:.0%} of the tokens",
    "doctor.top1_perplexity": "top-1 agrees at {top1:.0%} of the tokens, perplexity {ratio:.3g} ×",
    "doctor.unknown": "it cannot be decided whether the rest is right: {why}",
    "doctor.unrepeatable": (
        "the output of {model} changes from run to run on the same inputs, so nothing can be compared"
    ),
    "doctor.weights": "weights: {counts}",
    "doctor.weights_cut": "weights: {counts}; {cut} branches are cut",
    "doctor.weights_wrong": "weights: {counts}; {rows}",
    "doctor.without_cache": (
        "without a cache the output is {error:.2g} off as well, so the cache alone does not explain it"
    ),
}
