"""English: the messages of layertap.compare."""

MESSAGES = {
    "compare.all_identical": "all {total} sites are bit-identical",
    "compare.all_within_rounding": "all {total} sites are within what rounding explains",
    "compare.all_within_tolerances": "all {total} sites are within the tolerances",
    "compare.both_masks": "according to both attention masks",
    "compare.common_part": "compared: {part} of {whole}, from {begin}",
    "compare.file_cut": (
        "{run}/tensors/{file}: was cut by another program while {site} of step {step} was read; compare again when "
        "nothing writes to it"
    ),
    "compare.floor_other_input": "floor {name} is not a run of the reference on the same input: {reasons}",
    "compare.masks_and_ids": "according to the attention masks; the ids within them are equal",
    "compare.nothing_kept": "neither tensors nor sketches were kept",
    "compare.nothing_matched": "no site of one run could be matched with one of the other; give a mapping=",
    "compare.number_expected": "{name}={value!r}: expected a number of at least 0",
    "compare.of_run": "{name}: {text}",
    "compare.one_side_only": "the {total} matched sites agree, but {count} were recorded on one side only",
    "compare.other_part": "{part} of {whole} was recorded in the reference, and another part in the candidate",
    "compare.one_mask": (
        "according to the attention mask of the {side}; nothing is known of the inputs of the other side"
    ),
    "compare.overlap": (
        "lengths {key} and {key2}: the {part} {both} positions have the same values at {sites} (relative distance ≈ "
        "{distance:.1g}), so only these are compared"
    ),
    "compare.padding_ids": "on the {end} of the {side} there are {extra} ids {flat}; the rest is equal",
    "compare.part_needs_tensors": "{part}; keep='tensor' on both sides to compare it",
    "compare.part_of": "{site}: {part}",
    "compare.parts_in_common": "{count} of {total} pairs have only a part of a tensor in common; {first}",
    "compare.sites_above": "{count} of {total} sites are above what rounding explains",
    "compare.sites_not_judged": "{count} of {total} sites cannot be judged: {why}",
    "compare.sites_or_mapping": (
        "sites= (--sites) restricts the verdict to the sites that it names, a mapping= pairs sites whose names differ"
    ),
    "compare.sites_outside": "{count} of {total} sites are outside the tolerances",
    "compare.summand": (
        "{site} is recorded as a summand of rank {rank} ({placements}), not as a value; record it after the reduction"
    ),
    "compare.tolerance_and_floor": "rtol and atol replace the floor; give them or floor=, not both",
    "compare.unknown_part": (
        "only a part of {site} was recorded ({part}), and where it lies in the whole is not known; "
        "record the whole, or compare runs of the same layout"
    ),
    "compare.without_padding": (
        "compared without padding: {real} real positions of {lengths} in the reference and of {lengths2} "
        "in the candidate ({why})"
    ),
}
