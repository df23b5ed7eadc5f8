"""English: what layertap.plan says."""

MESSAGES = {
    "plan.action": "{pattern}: {wish!r} is not an action of a plan; expected 'skip'",
    "plan.already": "{done} is skipped already; undo that first, or leave it out of the plan",
    "plan.block_adds": (
        "{block} does not add what {value} return (scaled residuals, or norms behind the branches); name the "
        "modules whose outputs are added"
    ),
    "plan.block_shape": "{block} does not return a tensor of the shape of its input; name the modules themselves",
    "plan.bypassed": "{name}: {plan}; the weights are still in the model",
    "plan.check_differs": (
        "the model with bypassed branches and the one without them return different values ({plan}); not pruned"
    ),
    "plan.damaged": "{value} is damaged: {error}",
    "plan.how": "how={how!r}: choose 'bypass' or 'physical'",
    "plan.kind": "a plan must be a string or a mapping of paths to 'skip', got {name}",
    "plan.no_blocks": (
        "{name} has no repeated blocks with attention or feed-forward parts that layertap recognises; name the "
        'modules themselves: plan={{"encoder.3.branch": "skip"}}'
    ),
    "plan.no_branch": "{pattern!r} is not a branch of the model; it has {near}",
    "plan.no_class": "transformers has no {name}; give a whole model of the class: load_pruned(folder, model)",
    "plan.no_file": "{path} has no {plan_file}: it was not written by save_pruned",
    "plan.no_layer": "{term!r}: there is no layer {numbers}, the model has {count}",
    "plan.no_stand_in": "{path} does not return a tensor of the shape of its input, so it cannot be skipped",
    "plan.no_tensor": "a skipped branch was called without a tensor",
    "plan.no_vocabulary": (
        "{name} has no vocabulary from which inputs could be made; give inputs=, with which its branches are "
        "confirmed by a run"
    ),
    "plan.not_pruned": "this {name} is not pruned; prune it first: small = lt.prune(model, plan)",
    "plan.not_run": "{value} did not run with these inputs, so it cannot be confirmed as a branch",
    "plan.nothing": "the plan skips nothing",
    "plan.range": "{term!r}: {part!r} is not a layer or a range; n is the number of layers ({count})",
    "plan.reload_differs": "{path}: the reloaded model computes other values than the saved one",
    "plan.skip": "skip {value}",
    "plan.tensors": "{path}: {count} tensors beyond the plan are missing or unexpected (first: {lost})",
    "plan.term": "{term!r} is not part of a plan; expected {kinds} with layers in brackets: mlp[n//2:]",
    "plan.transformers": "loading this model needs transformers; install it with: pip install 'layertap[hf]'",
}
