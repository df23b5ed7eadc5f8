"""English: the messages of layertap.comparable."""

MESSAGES = {
    "comparable.against": "{word} {one} against {other}",
    "comparable.and_more": " (and {count} more)",
    "comparable.and_more_files": " and {count} more",
    "comparable.at_step": " at step {step}",
    "comparable.both_dtype": "both {dtype}",
    "comparable.called_otherwise": "{name} contains {usual} tensors ({count} of {total}), but is named {dtype}",
    "comparable.differ_from": "; they differ from position {wrong} on",
    "comparable.different_inputs": "different inputs{at}: {text}",
    "comparable.different_inputs_more": "different inputs: … and {count} more, at {count2} steps",
    "comparable.differs_at": (
        "{called} differs at {count} of {size} positions, first at {where}: {item} in the reference, "
        "{item2} in the candidate"
    ),
    "comparable.differs_by": "{called} differs by ≈ {error:.2g} in relative L2 norm ({dtypes})",
    "comparable.dropped": "{name}: {dropped} tensors were not kept, because the budget was used up",
    "comparable.dtypes": "{dtype} in the reference, {dtype2} in the candidate",
    "comparable.has": "{called} has {shapes}{common}",
    "comparable.has_shapes": "{called} has shapes {shape} and {shape2}",
    "comparable.in_brackets": " ({text})",
    "comparable.input": "input {name}",
    "comparable.inputs_unknown": "inputs {whose} unknown: it is assumed that both sides had the same inputs",
    "comparable.is": "{called} is {dtypes}",
    "comparable.lengths": "lengths {shape} and {shape2}",
    "comparable.lost": "{name}: {lost} records could not be written and are missing",
    "comparable.means_differ": "{called} differs (mean {mean:.6g} and {mean2:.6g})",
    "comparable.not_comparable": "{called} cannot be compared: its values were not kept on both sides",
    "comparable.nothing_captured": "{name}: nothing was captured{more}",
    "comparable.numbers": (
        "{count} single number(s) beside the tensors differ and are not judged: {some}; give them as tensors to have "
        "them judged"
    ),
    "comparable.of_both": "of both sides",
    "comparable.of_call": "{name} of call {call}",
    "comparable.of_side": "of the {side}",
    "comparable.only_given": "only the {side} had {called} as an input",
    "comparable.only_given_mask": "only the {side} had {called} as an input; it masks nothing",
    "comparable.only_given_positions": (
        "only the {side} had {called} as an input; they count from 0, as they do when none are given"
    ),
    "comparable.only_rounding": "{text}: no more than rounding",
    "comparable.own_state": (
        "`{name}` is as the {side}'s own last call left it, so it was not recorded again and is not compared"
    ),
    "comparable.partial": "{name}: partial; {problem}{more}",
    "comparable.placebo": (
        "the candidate is the reference: all {count} tensors are bit-identical; the change between them "
        "had no effect or did not run{more}"
    ),
    "comparable.prefix_equal": "; the first {length} are equal, and nothing proves that the rest is padding",
    "comparable.shapes": "shapes {shape} and {shape2}",
    "comparable.stale_constant": "{name}: stale; every one of the {count} tensors of step {step} is constant",
    "comparable.stale_inputs": (
        "{name}: stale; the inputs of {steps} differ, all {count} recorded tensors are bit-identical"
    ),
    "comparable.stale_same": "{name}: stale; all {count} sites of step {step} contain the same tensor",
    "comparable.steps": "steps {before} and {step}",
    "comparable.stopped_and_missing": "{text}; {count} requested sites are missing",
    "comparable.stopped_early": "{name}: recording stopped early ({error})",
    "comparable.the_side": "the {side}",
    "comparable.two_dtypes": "{one} and {other}",
    "comparable.unread": "{folder}: {count} files were not read: {names}",
}
