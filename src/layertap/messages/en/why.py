"""English: the messages of layertap.why."""

MESSAGES = {
    "why.added": "it was added while recording; start a new recording for it",
    "why.artefact": "an artefact shows its modules' outputs and its own inputs, but not the inputs of a module",
    "why.container": "{kind} is a container, which torch never calls; select its children",
    "why.dropped": "not kept, because the budget was used up, {dropped} times",
    "why.fast_path": "{name} ran its fused fast path, which computes its children without calling them",
    "why.left": "{name} was left by {ended} before this module was reached, or took a branch without it",
    "why.model_never_called": (
        "the model was never called while recording; if it was compiled, record what torch.compile(model) returned"
    ),
    "why.never_due": "no step was selected; the schedule is {schedule}",
    "why.no_backward": "no gradient reached it while recording; run backward() inside the block",
    "why.no_gradients": "none of its parameters requires a gradient, or modules below it were selected for them",
    "why.no_parameters": "it has no parameters",
    "why.no_tensor": "no tensor that can be recorded: {listed}",
    "why.no_tensor_in_role": "it was called, but had no tensor in this role",
    "why.not_taken": "{name} ran {times} without calling it (a branch not taken, or its parameters used directly)",
    "why.nothing_required": "none of its tensors required a gradient",
    "why.params_below": "its parameters were recorded at the modules below it",
    "why.raised": "it was called, and {ended} was raised before it returned",
    "why.removed": "it was removed from the model while recording",
    "why.replaced": "another module replaced it while recording; start a new recording for that one",
    "why.script": (
        "{name} is TorchScript, whose calls are not visible to Python; open it: target = lt.open_target(model)"
    ),
    "why.stopped": "recording stopped before a tensor of it was recorded ({error})",
}
