"""English: the messages of layertap.weights.audit."""

MESSAGES = {
    "audit.and_cast": "{first}, {second}",
    "audit.as_before": "its values are those from before loading",
    "audit.as_there": "as it is there",
    "audit.axes": "axes {order} of {shape}",
    "audit.back_through": "through {through} and back, loses {error:.2g} of its length",
    "audit.bad_source": (
        "audit takes a model, a state dict, the path of a checkpoint, or a list of these on either side, got {type}"
    ),
    "audit.built": "a {built} was built; the checkpoint was written by {named}",
    "audit.cast_exact": "{source} → {own}, loses nothing",
    "audit.cast_loses": "{source} → {own}, loses {error:.2g} of its length",
    "audit.cast_through": "{source} → {through} → {own}, loses {error:.2g} of its length",
    "audit.columns": "columns {first} to {last} of {total}",
    "audit.computed": "as its module computes it anew",
    "audit.constant": "all values are {value:g}, as a fresh tensor has them",
    "audit.cut_off": "{source} → {own}, digits cut off and not rounded, loses {error:.2g} of its length",
    "audit.differs": "differs from {name}, its tied partner",
    "audit.does_without": "the class lists it as not needed",
    "audit.empty_mapping": "the mapping contains no tensors; expected a state dict: name → tensor",
    "audit.error": "relative error {error:.3g}",
    "audit.error_first": "relative error {error:.3g}, {count} of {total} rows differ (first: {first})",
    "audit.error_rows": "relative error {error:.3g}, {count} of {total} rows differ ({first} to {last})",
    "audit.fault": "fault: {text}",
    "audit.files": "{count} files in {folder}",
    "audit.fresh_normal": (
        "looks newly initialised: normal, std {std:.3g}, as the class's initializer_range {range:g}"
    ),
    "audit.fresh_uniform": "looks newly initialised: uniform within {bound:.3g}, as nn.Linear does",
    "audit.frozen": "requires_grad differs: {names} are trained in {model} and frozen in {other}",
    "audit.head": "{verdict}: {model} against {other}: {counts}",
    "audit.holds": "has the values of {names}",
    "audit.kinds": "{source} → {own}",
    "audit.lora": "base + {by:.4g} × B·A, error {error:.2g}",
    "audit.lora_twice": "base + {by:.4g} × B·A, while the adapter's configuration has {wanted:.4g}",
    "audit.made_from": "{rule} from {parts}",
    "audit.meta": "it has no values: never loaded",
    "audit.missing_parts": "{count} of the {total} tensors that it should be made of are not in it: {names}",
    "audit.moments": "mean {mean:.3g}, std {std:.3g}",
    "audit.more": "… and {count} more lines; to_json has every tensor",
    "audit.more_rows": "{there} there, {here} here: rows 0 to {last} are the other side's, {count} more are not zero",
    "audit.multiplied": "multiplied by {by:.4g}",
    "audit.never_written": "nothing wrote it: neither the checkpoint nor the class's initialiser",
    "audit.no_checkpoint": "no checkpoint was read inside the block",
    "audit.no_load": (
        "nothing was loaded inside the block: no from_pretrained and no load_state_dict was "
        "called; where the code copies tensors by hand, name the model: loading(model)"
    ),
    "audit.no_scales": "the small numbers of the other side without their scales",
    "audit.no_tensors": "no tensors",
    "audit.nonfinite": "{count} of {total} values are NaN or infinite",
    "audit.nonfinite_both": "{count} of {total} values are NaN or infinite, on both sides",
    "audit.nonfinite_here": (
        "{count} of {total} values are NaN or infinite; the other side has none, its largest "
        "value is {largest:.4g} ({dtype} here)"
    ),
    "audit.nonfinite_other": "{count} of {total} values are NaN or infinite, {there} on the other side",
    "audit.nonfinite_sides": "{here} values are NaN or infinite here, {there} there",
    "audit.nonfinite_there": "{first}, {count} values there are NaN or infinite",
    "audit.not_checked": (
        "{count} buffers that are in no checkpoint could not be recomputed, and were not checked: {names}"
    ),
    "audit.not_computed": "not what its module computes anew: relative error {error:.3g}",
    "audit.not_loaded": "not loaded, its values are those from before loading; {first}",
    "audit.not_saved": "a buffer that is in no checkpoint, and that this side does not have",
    "audit.not_yet": "nothing was loaded yet: the audit is there after the `with loading()` block",
    "audit.note": "note: {text}",
    "audit.one_row": "{there} there, {here} here: the same values in one row",
    "audit.one_tensor": "one tensor with {name}",
    "audit.order": "its parts come in another order: first {name}",
    "audit.over_scales": "values ÷ scales of shape {shape}, error {error:.2g}",
    "audit.own_class": "the checkpoint brings its own class (auto_map: {own}), and the {built} of {where} was built",
    "audit.own_tensors": (
        "load_state_dict was given the model's own tensors, which proves nothing: read the "
        "checkpoint inside the block too"
    ),
    "audit.padded": "rows {first} to {last} are zeros, the others as they are there",
    "audit.parametrized": "a parametrization of {name}, whose value is the other side's",
    "audit.partial": (
        "{first}; the others are nowhere in this model, and most of its matrices are whole: "
        "right for one of several ranks, a loss for a whole model"
    ),
    "audit.partly_written": (
        "nothing wrote {count} of its {total} values: neither the checkpoint nor the class's initialiser"
    ),
    "audit.parts": "{count} tensors",
    "audit.parts_turned": "{count} tensors, transposed",
    "audit.pruning_lost": (
        "the checkpoint was saved without {paths}, and this {built} was built with them: "
        "load it with layertap.weights.load_pruned"
    ),
    "audit.rank": "the shard of rank {own} of {world}, where {count} tensors are of rank {rank}",
    "audit.read_order": "its parts come in the order {parts}; {fused} is read as {order}",
    "audit.rope": "interleaved against halves, heads of {size} (rope layouts)",
    "audit.rope_apart": "{own}, unlike {name}, which has to lie alike ({theirs})",
    "audit.rope_one_class": "{first}, and both sides are of the class {model_type}, which reads one of them",
    "audit.rounded_scales": "rounded to values × scales of shape {shape}, error {error:.2g}",
    "audit.rounds": "as {kind} rounds it, relative error {error:.2g}",
    "audit.rows": "rows {first} to {last} of {total}",
    "audit.rows_moved": "{count} of {total} rows in another place (first: {first})",
    "audit.rule_alone": "{rule}",
    "audit.rule_detail": "{rule}: {detail}",
    "audit.runs": "{count} runs of rows in another order",
    "audit.same_as": "the same values as {name}",
    "audit.shapes": "{there} there, {here} here",
    "audit.sketched": "relative error about {error:.2g}, cosine about {cosine:.3g}, by their sketches",
    "audit.skip_ignored": (
        "the configuration asks to skip {paths} (per_layer_config), and {built} built and "
        "runs them: it ignores that setting; layertap.weights.load_pruned keeps it"
    ),
    "audit.sources": "{count} sources",
    "audit.span": "{low} to {high}",
    "audit.state_dict": "state dict",
    "audit.status_cast": "cast",
    "audit.status_changed": "changed",
    "audit.status_constant": "constant",
    "audit.status_converted": "converted",
    "audit.status_exact": "exact",
    "audit.status_meta": "meta",
    "audit.status_missing": "missing",
    "audit.status_nonfinite": "nonfinite",
    "audit.status_shape": "shape",
    "audit.status_unexpected": "unexpected",
    "audit.status_untied": "untied",
    "audit.status_unwritten": "unwritten",
    "audit.straight_square": "not transposed, and every matrix of its kind that is not square is",
    "audit.there": "{shape} there",
    "audit.times_scales": "values × scales of shape {shape}, error {error:.2g}",
    "audit.turned_square": "transposed, and nothing that is not square shows that this is how the two sides differ",
    "audit.twice": "{name} is in more than one of the sources; give each tensor once",
    "audit.unlike": "{own}, unlike {count} others of its kind ({theirs}; {first})",
    "audit.unpadded": "{first}; the others are zeros",
    "audit.unused": "nothing in the model was made of it",
    "audit.weight_norm": "{first} × {second} over its length (weight norm)",
    "audit.woven": "{count} runs of {parts} tensors",
    "audit.woven_turned": "{count} runs of {parts} tensors, transposed",
    "audit.wrong_scales": (
        "values × scales of shape {shape}, multiplied by {by:.3g}: the scales are not those of these values"
    ),
    "audit.zeros": "all zeros",
}
