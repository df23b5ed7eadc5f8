"""English: the messages of layertap.monitor."""

MESSAGES = {
    "monitor.alias": "layers_to_monitor[{layer!r}]: alias {alias!r} must be a string",
    "monitor.batch_indices": (
        "When any layer has record_type='single', batch_indices must be specified and non-empty."
    ),
    "monitor.compiled_condition": "{layer}: inside a compiled graph the condition is not evaluated",
    "monitor.config_object": "{path}: expected a JSON object with monitor_layers, monitor_epochs, …",
    "monitor.config_unreadable": "{path}: no configuration can be read from it: {reason}",
    "monitor.configuration": "the configuration has no '{CONFIG}'; it has {map}",
    "monitor.duplicate_alias": "Duplicate alias '{name}' in layers_to_monitor.",
    "monitor.every": "every={every!r}: each n-th batch needs a whole n of at least 1",
    "monitor.exists": "exists={exists!r}: choose 'append', 'replace' or 'error'",
    "monitor.file_name": "save_custom_output: {name!r} is not a plain file name; it is written into {folder}",
    "monitor.files": "files={files!r}: choose 'pt', 'npz' or None",
    "monitor.goes_on": "{where}: {error}; training continues",
    "monitor.has_run": "{output_dir} already contains a run; exists='append' continues it, 'replace' removes it",
    "monitor.hooks_removed": "epoch {epoch} is not recorded: remove_hooks() was called before it",
    "monitor.into_memory": "{error}; recording into memory instead",
    "monitor.layer_name": "layers_to_monitor: {layer!r} is not a layer's name, expected a string",
    "monitor.layer_options": (
        "layers_to_monitor[{layer!r}]: expected a dict with alias and record_type, got {options!r}"
    ),
    "monitor.layers_missing": (
        "The following layers specified in 'layers_to_monitor' do not exist in the model: {missing}{hints}\n"
        "Available layers: {named}"
    ),
    "monitor.list_or_dict": "layers_to_monitor must be a list or dict.",
    "monitor.log_attention": "layertap: %s: its attention weights could not be computed (%s); None is recorded",
    "monitor.log_callback": (
        "layertap: %s takes no epoch_callback; nothing is recorded unless it calls monitor.set_epoch itself"
    ),
    "monitor.module": "Monitor requires an nn.Module, got {name}",
    "monitor.nearest_to": "\nNearest to '{name}': {found}",
    "monitor.no_batches": "none of batch_indices {batch_indices} occurred",
    "monitor.no_batches_in_epoch": "none of batch_indices {batches} occurred in a recorded epoch",
    "monitor.no_epoch_came": "none of the epochs {epochs} occurred; the last one set was {last}",
    "monitor.no_epochs": "epochs_to_record cannot be empty. At least one epoch must be specified for recording.",
    "monitor.no_layer": "no layer or alias {name!r} is monitored; there are {known}",
    "monitor.no_layers": "layers_to_monitor is empty; name at least one layer",
    "monitor.no_set_epoch": "set_epoch was never called",
    "monitor.not_called": "it was not called in this epoch, or the condition refused its outputs",
    "monitor.not_kept": (
        "{layer}: the tensors of {count} outputs, first at epoch {epoch}, batch {batch}, are not in the "
        "run (keep, budget, or a full disk); see monitor.receipt"
    ),
    "monitor.nothing": "nothing was recorded: {why}",
    "monitor.nothing_in_epoch": "{layer}: nothing recorded in epoch {epoch}: {why}",
    "monitor.over_budget": (
        "{layer}: epoch {epoch} is larger than the budget: its batches are written to separate files"
    ),
    "monitor.plot_missing": ", {missing} not finite",
    "monitor.plot_no_finite": "no finite value",
    "monitor.plot_sample": "sample={sample}: the batch has {count}",
    "monitor.plot_shape": "attention weights of shape {shape}; expected [heads, target, source], or a batch of that",
    "monitor.plot_suffix": "{path}: plots are written as .svg or .png",
    "monitor.record_type": "Invalid record_type: {record_type}. Must be 'single' or 'epoch_full'.",
    "monitor.tensorboard": (
        "TensorBoard's files need the tensorboard package; install it with: pip install 'layertap[tensorboard]'"
    ),
    "monitor.unknown_key": "layers_to_monitor[{layer!r}]: unknown key {map!r}; expected alias, record_type",
    "monitor.whole_numbers": "{name}={given!r}: expected a list of whole numbers, for instance {example}",
}
