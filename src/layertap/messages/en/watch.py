"""English: the messages of layertap.watch."""

MESSAGES = {
    "watch.action": "action={text!r}: choose from 'snapshot', 'stop', 'command: …', or a URL",
    "watch.bad_option": "an option that cannot be understood",
    "watch.boolean": "true or false",
    "watch.calls_left_out": (
        "{count} calls of modules were left out: in eval mode, or under no_grad as a validation pass; phases={phases}"
    ),
    "watch.cannot_run": "{command}: cannot be run ({strerror})",
    "watch.cannot_watch": "{name} cannot be recorded: {error}",
    "watch.changed": "changed from step {step_number} on: {changes}",
    "watch.compiled": (
        "the model runs as a torch.compile'd graph: the inputs and outputs of its modules and the "
        "gradients of parameters are recorded; gradients of activations inside it are not"
    ),
    "watch.config_unreadable": "watch: {path} cannot be read ({reason})",
    "watch.died": "its process ended without a message; what was committed before is in the run",
    "watch.disk_budget": "the run reached its disk budget: of the steps up to {step}, every second one was removed",
    "watch.elsewhere": "{path} {why_elsewhere}; this one writes to {folder}",
    "watch.ended": "`{command}` ended with {value}; whether it is deterministic is not known",
    "watch.exists": "watch: exists={exists!r}: choose from resume, append, replace, error",
    "watch.expected": "watch: {name}={value!r}: expected {expected}",
    "watch.has_run": "{path} already contains a run; exists='replace' (--replace) removes it, or give another folder",
    "watch.ignored": "; {ignored} cannot be changed while it runs",
    "watch.in_use": "is in use by another watch",
    "watch.inside_missing": (
        "step {step} lacks the values inside the parts of the model that were compiled after watching began"
    ),
    "watch.log_action": "layertap: an action failed: %s: %s",
    "watch.log_cannot": "layertap: %s cannot be recorded: %s",
    "watch.log_command": "layertap: the command %r of %s ended with %s",
    "watch.log_complete": "layertap: %s is complete: its optimizers no longer exist",
    "watch.log_scalars": "layertap: live scalars stopped: %s: %s; the run itself continues",
    "watch.log_search": "layertap: the search for the model failed: %s: %s",
    "watch.log_stop": "layertap: %s at step %s stops the training, as requested",
    "watch.losses_only": (
        "step {step_number} has its losses only: the model was found to be compiled only during that step"
    ),
    "watch.module": "watch requires an nn.Module, got {name}",
    "watch.most_models": "only the first {MOST} models of a process are recorded; --model selects another",
    "watch.names": "a list of names",
    "watch.nearest": "; nearest: {near}",
    "watch.negative": "watch: ring={ring}, after={after}: numbers of steps cannot be negative",
    "watch.no_command": "no command given; give it after --, for instance: layertap watch -- python train.py",
    "watch.no_module": "no module",
    "watch.no_optimizer": "no Python process in it created a torch optimizer",
    "watch.no_option": "watch: no option {name!r}{more}; {known}",
    "watch.not_changed": "step {step_number}: not changed: {error}",
    "watch.not_config": "not a configuration",
    "watch.not_writable": "{path}: no run can be written here ({strerror})",
    "watch.nothing": "nothing was captured from `{command}`: ",
    "watch.one_run": "only one of the two has a run {name}{name2}",
    "watch.other_module": "{name} was made, but {wanted} was found behind its parameters",
    "watch.other_training": "contains another training",
    "watch.out_of_phase": (
        "{count} steps were made while the model was in eval mode; phases=['train'] leaves them out"
    ),
    "watch.phases": "watch: phases={phases}: choose from train, eval",
    "watch.plan_but": " but not {exclude}",
    "watch.plan_default": "the repeated blocks, embeddings, final norm and head",
    "watch.plan_disk": "at most {disk}; above it, older steps are thinned",
    "watch.plan_ring": "the last {ring} steps, {ring_budget} of tensors",
    "watch.plan_what": "{what}, in phase {phases}",
    "watch.policy": "watch: policy={policy!r}: choose from {POLICIES}",
    "watch.progress": "watch: progress={progress}: seconds cannot be negative",
    "watch.rank_nothing": "rank {rank} records nothing: ranks={ranks}",
    "watch.ranks_failed": "the ranks of {run} cannot be compared: {error}",
    "watch.requested": "requested",
    "watch.resumed": (
        "resumed, and {name} does not record its step: numbered on from {last}; pass start=, or set w.step = …"
    ),
    "watch.search_failed": "layertap failed while looking for the model: {name}: {error}",
    "watch.seconds_a_step": "{value:.3g} s per step",
    "watch.see_above": "see above",
    "watch.size": "a size such as '2GiB'",
    "watch.steps_skipped": "{count} steps were skipped by the AMP scaler; Inf in their gradients is not a fault",
    "watch.table": "watch: {path}: expected a table of options",
    "watch.text": "a string",
    "watch.thinned": (
        "{thinned} records were removed for the disk budget: steps up to {through} are further apart "
        "than the schedule asks for; disk= allows more"
    ),
    "watch.what": "watch: what={what}: choose from {known}",
    "watch.whole": "a whole number",
    "watch.wholes": "a list of whole numbers",
}
