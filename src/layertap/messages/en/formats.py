"""English: the messages of layertap.formats."""

MESSAGES = {
    "formats.compiled": "{path}: a model, not a run of it; record it first: layertap record {path} -o RUN",
    "formats.a_expected_tensor": "a {name}, expected a tensor",
    "formats.a_run": "a run of layertap",
    "formats.alias_taken": (
        "{site}, step {step}: epoch {epoch}, batch {batch} has that alias already; it is called {alias} here"
    ),
    "formats.all_stats_only": "{path}: every layer is {stats_only}",
    "formats.already": "{there} already exists; exists='replace' (--replace) replaces it, or give another path",
    "formats.already_files": (
        "{folder} already contains {count} file(s) of the {layout} layout ({stale} ...); exists='replace' "
        "(--replace) replaces them, or give another folder"
    ),
    "formats.changed": (
        "{path}: changed since it was opened; {site} is no longer the tensor that was measured, open it again"
    ),
    "formats.contains": "contains {value}{value2}",
    "formats.dtype": "{dtype}, expected numbers (numpy cannot save bfloat16: widen it to float32)",
    "formats.dtypes": "dtype {dtype} there, {dtype2} in the tensor",
    "formats.empty": "is empty",
    "formats.epoch_batch_layer": (
        "{path}: epoch {epoch!r}, batch_idx {batch!r}, layer {layer!r}; expected two whole numbers and a string"
    ),
    "formats.exists": "exists={exists!r}: expected 'error' or 'replace'",
    "formats.expanded": "a tensor of shape {shape} over a small storage: {why}",
    "formats.expected_dict": "{value}: {name} is a {name2}, expected a dict",
    "formats.expected_dict_with": "{path}: contains a {name}, expected a dict with {keys}",
    "formats.expected_tensor": "{path}: {name} is a {name2}, expected a tensor",
    "formats.files_of": "files of the {found} layout",
    "formats.folder": "{folder}: {strerror}; expected a folder of recorded files",
    "formats.give_file": " Give the file itself: {value}.",
    "formats.in_memory": "values in memory",
    "formats.irregular": "is neither a folder nor a regular file",
    "formats.key_contains": "{file}: {key} contains {error}",
    "formats.layout": "layout={layout!r}: expected {value}",
    "formats.left_out": "left out: {shown}: {why}",
    "formats.metadata_place": "metadata.pt has a place for {inputs} only",
    "formats.missing": "does not exist",
    "formats.missing_keys": "{path}: has no {missing}; expected a dict with {keys}",
    "formats.mixed": "{folder} contains {what}, which an export would mix with its own files; give another folder",
    "formats.mode_name": "mode {other!r} cannot be a name in an .npz; leave out slashes",
    "formats.model_itself": "the model itself",
    "formats.modes": "modes {modes}",
    "formats.more": " and {value} more",
    "formats.name_and_file": (
        "{path}: epoch {name}, batch {name2} in the name, epoch {epoch}, batch {batch} in the file; the file is used"
    ),
    "formats.names_letters": (
        "names: {path!r} cannot be called {name!r}; a name consists of letters, digits, '_', '-' and '.'"
    ),
    "formats.names_twice": "names: {value} is given to more than one site",
    "formats.names_unknown": "names: the run has no {path!r}",
    "formats.nearest": "; nearest: {near}",
    "formats.nested_deeper": "{path} (nested deeper than {depth})",
    "formats.neuron_manual": "{value}: registered manually, and belongs to no module; it is left out",
    "formats.neuron_shard": "rank 0's shard under tensor parallelism",
    "formats.no_blocks": (
        "{name}: nothing to export as layers: no numbered blocks among {value}; name them: names="
        "{{'path': 'layer_1'}} (--name path=layer_1)"
    ),
    "formats.no_epoch": "{missing} not recorded: steps count as batches from 0, in epoch 1 where there is none",
    "formats.no_file": "{path}: {name} has no file that can be read, so it is {stats_only}",
    "formats.no_mode": "{file}#{mode}: no such mode; the file has {there}",
    "formats.no_modes": "no modes (keys mode_NAME_input, mode_NAME_output)",
    "formats.no_output_kept": "{name}: nothing to export: no output tensor was kept; record with keep='tensor'",
    "formats.no_outputs": "no outputs",
    "formats.no_place": (
        "not the embedding, a block, the final norm or the head; names={{path: name}} gives it a place"
    ),
    "formats.no_ranks": "the layout has no ranks; rank {rank} is exported",
    "formats.no_role": "{name}: no {role} was recorded; record with what=('input', 'output')",
    "formats.no_run": "{folder} {there}, so it is not a run.{hint} {understood}",
    "formats.no_runner": "{path}#{runner}: no such runner; the file has {value}",
    "formats.no_shape": "{path}: {name} has no shape, so it cannot be compared",
    "formats.no_step": "step={step}: the run has {steps}",
    "formats.no_suffix": "file without a suffix",
    "formats.no_tensor": "{path}: contains no tensor",
    "formats.no_tensors_in": "{name}: no tensors in a {name2}{some}; expected {{site: tensor or array}}",
    "formats.no_tensors_or_stats": "it contains no tensors and no statistics",
    "formats.not_array": "not an array",
    "formats.not_its_name": "its content does not match its name",
    "formats.not_json": "{path}: not JSON, or not readable; the arrays are used without it",
    "formats.not_msprobe": "not msprobe's: expected JSON with 'data'",
    "formats.not_npz": "not an .npz",
    "formats.not_numbers": "not numbers",
    "formats.none_measured": "{name}: none of the tensors can be measured: {some}",
    "formats.not_read": "{path}: not read: {some}",
    "formats.not_regular": "{path}: not a regular file",
    "formats.not_safetensors": "not a safetensors file",
    "formats.not_there": "{path} {there}. {understood}",
    "formats.not_torch": "{path}: damaged, or not saved by torch.save ({reason})",
    "formats.note": "note: {note}",
    "formats.nothing_kept": (
        "{name}: nothing to export: no input or output tensor was kept; record with keep='tensor'"
    ),
    "formats.nothing_read": "{name}: nothing in it could be read: {problems}",
    "formats.npz_names": "names={names!r}: this layout has {roles}: {{'path:input': 'input'}}",
    "formats.numbers": "{name} {found:.6g} there, {value:.6g} in the tensor",
    "formats.of_no_mode": "{file}: {value}: not part of a mode, left out",
    "formats.one_layer": "the layout has a place for one layer's input and output; choose with names= (--name)",
    "formats.one_run": "the {layout} layout takes one run, {count} were given; only npz takes several",
    "formats.one_step": "the layout has a place for one step, and step {chosen} was taken; choose with step=",
    "formats.one_tensor": "the layout has a place for one tensor per layer: the first leaf of the first call",
    "formats.output_contains": "{path}: its output contains {error}",
    "formats.output_no_tensor": "{path}: its output contains no tensor",
    "formats.output_shape": "{path}: output_shape is {stated}, the output's shape is {found}; the output is used",
    "formats.part_kept": "only {kept} of it was kept",
    "formats.path_contains": "{path}: contains {error}",
    "formats.path_expected_dict": "{path}: contains a {name}, expected a dict",
    "formats.path_too_nested": "{path}: more than {places} nested values",
    "formats.pickled": "it contains pickled objects, and layertap runs no code from a file",
    "formats.polygraphy": "{path}: not Polygraphy's results: expected [runner, iterations], got {value}",
    "formats.record_tensor": "{how}; record with keep='tensor'",
    "formats.refused": (
        "{path}: refused: it needs {needs}, and layertap runs no code from a file; save plain tensors, numbers, "
        "strings, tuples and dicts"
    ),
    "formats.roles_only": "the layout has a place for {roles} tensors only",
    "formats.run_expected": "no run was given; expected a run, or {{mode: run}}",
    "formats.shapes": "shape {value} there, {shape} in the tensor",
    "formats.single": "{path}: a single {suffix}; give the folder it is in. {understood}",
    "formats.site_contains": "{path}: {site} contains {error}",
    "formats.site_step_why": "{path}: {site} at step {step}: {why}",
    "formats.size": "{what}: {count} bytes, expected {expected} for {dtype} {shape}",
    "formats.stale": (
        "{value}: {name} differs from the tensor in {file} ({wrong}): one of the two is stale or was edited; the "
        "tensor is used"
    ),
    "formats.stale_array": (
        "{path}: mode {mode}, {role} differs from the array ({wrong}): one of the two is stale or was edited; the "
        "array is used"
    ),
    "formats.stale_site": (
        "{value}: {site} differs from the tensor in {file} ({wrong}): one of the two is stale or damaged; the "
        "tensor is used"
    ),
    "formats.stats_only": (
        "known from its statistics alone: no tensor, fingerprint or sketch; NaN and Inf count as 1 where there are "
        "any, zeros and mean |x| are unknown"
    ),
    "formats.stats_written": "{why_not}; its statistics are written",
    "formats.step": "step {other}",
    "formats.steps": "steps {value}",
    "formats.steps_span": "{count} steps, {steps} to {steps2}",
    "formats.tensor_not_kept": "its tensor was not kept",
    "formats.the_layer": "{name}: the layer is {path}",
    "formats.the_value": "the value",
    "formats.too_nested": "more than {places} nested values; expected the tensors of one output",
    "formats.twice": "{name} (twice)",
    "formats.two_layouts": (
        "{folder} contains files of two layouts, {found}; put them into two folders, or choose one with "
        "layertap.formats.read_layers or read_monitor"
    ),
    "formats.undecoded": "an array that cannot be decoded",
    "formats.understood": (
        "layertap opens a run's folder (run.json), a folder of layer_1_output.pt ... or statistics.pt, a folder of "
        "epoch_1_batch_0_NAME.pt, a folder of Neuron's captured_tensors_..., msprobe's dump.json, SGLang's dumps, "
        "a folder of NAME.pt, NAME.npy or NAME.safetensors, one such file, Polygraphy's JSON, and an .npz (file.npz"
        "#mode)"
    ),
    "formats.unreadable": "{path}: cannot be read ({strerror})",
    "formats.unwritable": "{path}: cannot be written ({strerror}); nothing was exported",
    "formats.values": "{name} {value} there, {there} in the tensor",
    "formats.where_expected_tensor": "a {name}{where}, expected a tensor",
    "formats.which_mode": "{file} has {count} modes; choose one: {value}",
    "formats.which_runner": "{path} has {count} runners; choose one: {value}",
    "formats.widened": "mode {mode}, {role}: numpy has no {dtype}; widened to {name}, exactly",
    "formats.wrote": "wrote {count} file(s) in the {layout} layout to {path}",
}
