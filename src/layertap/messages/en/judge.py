"""English: the messages of layertap.judge."""

MESSAGES = {
    "judge.channel_share": "channel {index} has {share} of the error",
    "judge.choice_by_rounding": (
        "{dtype} values differ{share}: rounding may change a choice between nearly equal values; pass floor= to decide"
    ),
    "judge.choice_differs": "{why}; a discrete choice made here differs, which rounding may explain",
    "judge.equal_values": "equal values, as {one} and as {other}",
    "judge.identical": "bit for bit",
    "judge.identical_with_nan": "bit for bit; {count} values are NaN on both sides",
    "judge.integers_differ": "{dtype} values differ{share}; integers must be equal",
    "judge.layout_needed": "a mapping with a layout relates them",
    "judge.leftovers": "{why}; but the two are paired only because no others remained; a mapping= settles it",
    "judge.measured": "measured",
    "judge.merged_axes": "{why}; but one side merges axes, and no site shows in which order",
    "judge.modelled": "modelled",
    "judge.needs_floor": "pass floor= (a measured floor) to decide",
    "judge.no_common_part": "{shapes}, and nothing proves which part is the same",
    "judge.nonfinite_counts": "NaN/Inf counts differ: {nonfinite} against {nonfinite2}",
    "judge.nothing_finite": "no value is finite on both sides",
    "judge.nothing_to_compare": "nothing to compare",
    "judge.one_side_only": "{parts} on one side only",
    "judge.outside_tolerance": "{count} of {total} values are outside {tolerance}",
    "judge.over_floor": "{ratio} × the {kind} floor",
    "judge.over_similar": "{ratio} × the typical error of the others",
    "judge.quiet_before": "the {count} sites before it differ only by rounding",
    "judge.record_ids": "record the input ids or the mask on both sides",
    "judge.record_ids_or_slice": (
        "record the input ids or the mask on both sides, or name the part in a mapping whose "
        "layout is slice({axis},0,{short})"
    ),
    "judge.row_share": "row {index} has {share} of the error",
    "judge.shapes": "shapes differ: {one} against {other}",
    "judge.share_of_places": " in {value:.2%} of the positions",
    "judge.statistics_only": "only statistics were kept: they agree, which proves nothing",
    "judge.tolerance_needs_tensors": "{tolerance} cannot be applied: the tensors were not kept",
    "judge.within_tolerance": "all values within {tolerance}",
}
