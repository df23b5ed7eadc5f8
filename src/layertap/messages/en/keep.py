"""English: the messages of layertap.keep."""

MESSAGES = {
    "keep.index": "keep={whole!r}: {part!r} is not an index; write integers, a:b:c, or ...",
    "keep.level": (
        'keep={level!r} is not a level; use "stats", "tensor", "histogram", a slice such as "[:, -1]", '
        "or a function of a tensor"
    ),
    "keep.returned": "{site}: keep={name} returned {name2}, expected a tensor",
    "keep.slice": "keep={index!r}: a slice consists of integers, slices and ..., not {part!r}",
}
