"""English: the messages of layertap.measure."""

MESSAGES = {
    "measure.cannot": "cannot measure this tensor: {reason}",
    "measure.freed": "its memory has been freed",
    "measure.layout": "layout {removeprefix}; only dense tensors are measured",
    "measure.merge_empty": "merge needs at least one part",
    "measure.merge_mixed": "merge got parts with a sketch and parts without one; measure all parts in the same way",
    "measure.meta": "a meta tensor has no values",
    "measure.nested": "a nested tensor",
    "measure.no_memory": "{kind} has no memory of its own",
    "measure.one_complex": "one side is complex: reference {dtype}, candidate {dtype2}",
    "measure.out_of_memory": "no memory for the comparison of two tensors",
    "measure.pair_bytes": "the {side} is {dtype} {shape}: expected {expected} raw bytes, got {got}",
    "measure.pair_dtype": "the {side}'s dtype {dtype} cannot be compared; supported: {MANTISSA}",
    "measure.partly_freed": "part of its memory has been freed",
    "measure.place": "a tensor of shape {shape} is not the part of shape {part} that its place in the whole says",
    "measure.quantized": "a quantized tensor ({dtype}); dequantize it first",
    "measure.rebuild_parts": "{LIBRARY} was built from another parts.c; run `pip install -e .` again",
    "measure.rebuild_signs": "{LIBRARY} was built from another signs.c; run `pip install -e .` again",
    "measure.rebuild_onepass": "{LIBRARY} was built from another onepass.c; run `pip install -e .` again",
    "measure.rebuild_pair": "{LIBRARY} was built from another pair.c; run `pip install -e .` again",
    "measure.shapes": "shapes differ: reference {shape}, candidate {shape2}",
    "measure.sketch_bytes": "a sketch has {value} bytes, got {count}; was the tensor measured without one?",
    "measure.slab": (
        "expected a contiguous tensor and {SLAB_BYTES} aligned bytes, got strides {stride} and {numel} "
        "bytes at {data_ptr:#x}"
    ),
    "measure.statistic_numbers": "expected {LENGTH} numbers of a statistic, got {count}",
    "measure.tolerances": "expected rtol and atol of at least 0 and eps of at least 1e-30, got {rtol}, {atol}, {eps}",
    "measure.two_tensors": "expected two contiguous tensors of one shape, got {sides}",
    "measure.vmap": "a tensor inside torch.vmap represents many tensors",
    "measure.with_strides": "{shape} with strides {stride}",
    "measure.words": "{size} bytes are not a whole number of contiguous words of {size2} bytes",
    "measure.wraps": "{name} wraps other tensors; measure those",
}
