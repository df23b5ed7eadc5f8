"""English: the messages of layertap.weights.pruning."""

MESSAGES = {
    "pruning.adds_else": (
        "{block} adds something else than what {branches} return (scaled residuals, or norms "
        "of the whole stream); name the modules whose outputs are added themselves"
    ),
    "pruning.already": "{path} is skipped already; undo that first, or leave it out of the plan",
    "pruning.beyond": "{path}: {count} tensors beyond the plan are missing or unexpected (first: {first})",
    "pruning.block_shape": (
        "{path} does not return a tensor of the shape that it is given; name the modules themselves"
    ),
    "pruning.damaged": "{path} is damaged: {error}",
    "pruning.did_not_run": "{path} did not run with these inputs, so it cannot be confirmed as a branch",
    "pruning.empty": "the plan skips nothing",
    "pruning.how": "how={how}: choose 'bypass' or 'physical'",
    "pruning.loaded_differs": "{path}: the model that was loaded again computes something else than the one saved",
    "pruning.no_blocks": (
        "{model} has no repeated blocks with attention or feed-forward parts that layertap "
        'knows; name the modules themselves: plan={{"encoder.3.branch": "skip"}}'
    ),
    "pruning.no_branch": "{pattern} is not a branch of the model; it has {near}",
    "pruning.no_file": "{path} has no {file}: it was not written by save_pruned",
    "pruning.no_layer": "{term}: there is no layer {layer}, the model has {count}",
    "pruning.no_tensor": "a skipped branch was called without a tensor",
    "pruning.no_vocabulary": (
        "{model} has no vocabulary from which inputs could be made; give inputs=, with which "
        "its branches are confirmed by a run"
    ),
    "pruning.not_called": (
        "{path} is never called: its caller reads its parameters without calling it, so it "
        "cannot be skipped; not pruned"
    ),
    "pruning.not_its_shape": (
        "{path} does not return a tensor of the shape that it is given: nothing can stand in for it"
    ),
    "pruning.not_pruned": "this {model} is not pruned; prune it first: small = lt.prune(model, plan)",
    "pruning.nothing": "nothing",
    "pruning.plan_type": "a plan is text or a mapping of paths to 'skip', got {type}",
    "pruning.range": "{term}: {part} is not a layer or a range; n is the number of layers ({count})",
    "pruning.skip": "skip {paths}",
    "pruning.still_there": "{model}: {plan}; the weights are still there",
    "pruning.term": "{term} is not part of a plan; expected {kinds} with layers in brackets: mlp[n//2:]",
    "pruning.ways_differ": (
        "the model that goes round its branches and the one without them differ ({plan}); not pruned"
    ),
    "pruning.wish": "{pattern}: {wish} is not an action of a plan; expected 'skip'",
}
