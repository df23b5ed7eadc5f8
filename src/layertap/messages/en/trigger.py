"""English: the messages of layertap.trigger."""

MESSAGES = {
    "trigger.and_rank": ", rank {rank}",
    "trigger.at": "{rule} at {at}: {reason}",
    "trigger.backward": "it first occurs in the backward pass of {name}",
    "trigger.batch": "the batch itself is not finite: {what}",
    "trigger.before": "; {before}, right before it, is finite",
    "trigger.damaged": "{path}: damaged, or not a trigger's report",
    "trigger.fired": "triggers: {fired}",
    "trigger.first": (
        "the first site that differs from its last steps is {site}: its norm is {value}, its median {median}"
    ),
    "trigger.forward": "it first occurs in the forward pass of {name}",
    "trigger.grad_norm": "gradient norm above {grad_norm:g} × its median",
    "trigger.input_parts": "each input of a trigger report has a name, a dtype, a shape and a fingerprint",
    "trigger.input": "input {x}: {x2} {x3}, fingerprint {x4}",
    "trigger.loss": "the loss is {loss}, {times} × its spread above the median {median} of the last {count} steps",
    "trigger.loss_born": "it first occurs in the loss: all values recorded before it are finite",
    "trigger.loss_spike": "loss above its median by {loss_spike:g} × its spread",
    "trigger.no_batch": "; no batch was recorded, so it may be in the data",
    "trigger.none_stands_out": "no recorded site differs from its last steps",
    "trigger.nonfinite": "NaN or Inf",
    "trigger.norm": "the gradient norm is {norm}, {times} × the median {median} of the last {count} steps",
    "trigger.ring_steps": "steps {span} of the ring are in the run",
    "trigger.rule_at": "{rule} at step {step}",
    "trigger.silenced": "{silenced} more triggers were not reported; triggers.most = {most}",
    "trigger.step": "step {step}",
    "trigger.step_text": "step {step}: {texts}",
    "trigger.stripped": "{stripped} tensors of the ring were dropped for its budget; their statistics were kept",
    "trigger.the_model": "the model",
    "trigger.unknown": (
        "triggers: {name}={value!r} is not a trigger; use nonfinite, loss_spike, grad_norm (True or a threshold), most"
    ),
    "trigger.update": "the optimizer's update of {name} is not finite",
    "trigger.values": "{site} has {counts} of {total} values",
    "trigger.weights": "the weights of {name} were not finite before this step",
}
