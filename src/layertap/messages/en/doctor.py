"""English: what layertap.weights.doctor says."""

MESSAGES = {
    "doctor.all_run": "the change: all branches run",
    "doctor.and_more": "{first}; and {count} more",
    "doctor.cache": "CACHE",
    "doctor.cache_line": "cache: {gap}",
    "doctor.cache_not_told": (
        "right without a cache, wrong with one: {gap}; a skipped attention has to tell the cache of its tokens"
    ),
    "doctor.cache_wrong": "right without a cache, wrong with one: {gap}",
    "doctor.cheap": "the cuts are made as planned and cost little: {cost}",
    "doctor.class_lost": (
        "the class that was built ({built}) runs {paths}, which the plan skips, with weights "
        "that no checkpoint holds: the pruned class was lost when the model was saved and "
        "loaded"
    ),
    "doctor.code": "CODE",
    "doctor.comparing": "comparing weights",
    "doctor.compiled": "the change: the candidate is compiled, so its calls cannot be counted",
    "doctor.computes_else": "{site} computes something else than {against}: {cause}, {evidence}",
    "doctor.computes_else_bare": "{site} computes something else than {against}: {cause}",
    "doctor.cost": "what the cuts cost: {cost}",
    "doctor.decoding": "decoding with a cache and without",
    "doctor.each": "each cut alone, the worst first: {worst}",
    "doctor.finding": "finding the fault in what remains",
    "doctor.gap": "with a cache the logits differ by {theirs:.2g} from those without (reference: {ours:.2g})",
    "doctor.gap_counted": "{gap}; it counts {length} of {tokens} tokens",
    "doctor.harm": "{site} (KL {kl:.3g})",
    "doctor.head": "{answer}: {sentence}",
    "doctor.healthy": "HEALTHY",
    "doctor.idea": "IDEA",
    "doctor.idea_wrong": (
        "weights, code and cache are right: it is the cut itself; {cost}; the most harmful is {site}"
    ),
    "doctor.inconclusive": "INCONCLUSIVE",
    "doctor.loading": "LOADING",
    "doctor.measuring": "measuring what the cuts cost",
    "doctor.no_change": "branches are cut, and the output does not change on these inputs",
    "doctor.no_decoding": "cache: the models do not decode step by step",
    "doctor.no_effect": "the change: the output is the reference's, bit for bit, although branches are cut",
    "doctor.no_ids": "cache: not asked, the inputs hold no token ids",
    "doctor.not_comparable": "cache: not asked, the output changes by itself",
    "doctor.not_repeatable": (
        "repeated: {model} gives another output for the same inputs (relative difference {error:.2g})"
    ),
    "doctor.not_run": "the change: {count} branches are not run: {paths}",
    "doctor.not_skipped": "the plan skips {paths}, and {built} runs them: they were called and computed",
    "doctor.placebo": (
        "the plan skips {paths}, and {built} runs them: its output is the reference's, bit for bit: a placebo"
    ),
    "doctor.ran_all_the_same": "the change: {count} of {total} branches of the plan ran all the same",
    "doctor.rest": "the rest, against {against}: {verdict}",
    "doctor.rest_at": "the rest, against {against}: {verdict} at {site}",
    "doctor.row": "{name} ({status}: {detail})",
    "doctor.row_bare": "{name} ({status})",
    "doctor.running": "running both",
    "doctor.same": "the candidate computes what the reference computes",
    "doctor.tensor": "one tensor is not what the reference has: {row}",
    "doctor.tensors": "{count} tensors are not what the reference has; the first is {row}",
    "doctor.the_candidate": "the candidate",
    "doctor.the_cut_reference": "the reference with the same cuts",
    "doctor.the_model": "the model itself",
    "doctor.the_reference": "the reference",
    "doctor.top1": "top-1 agrees at {top1:.0%} of the tokens",
    "doctor.top1_perplexity": "top-1 agrees at {top1:.0%} of the tokens, perplexity {ratio:.3g} ×",
    "doctor.unknown": "whether the rest is right cannot be told: {why}",
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
