"""English: the messages of layertap.store.assembly."""

MESSAGES = {
    "assembly.cannot_reduce": "{site}: {dtype} parts cannot be combined by {reduction!r}; read one with .at(rank=...)",
    "assembly.dtype": "{site}: parts of dtype {dtype} cannot be put together; read one with .at(rank=...)",
    "assembly.gaps": (
        "{site}: the recorded parts of step {step} do not fill {shape} without gaps and overlaps, or where they lie is "
        "not known; read one with .at(rank=...)"
    ),
    "assembly.meshes": (
        "{site}: at step {step} the ranks {ranks} have different tensors (data parallelism?); choose the ranks of one, "
        "as in .at(rank=(0, 1))"
    ),
    "assembly.microbatch": (
        "{site} at step {step}: the calls cannot be put together along the batch: it is not known where the part of a "
        "rank lies"
    ),
    "assembly.missing": (
        "{site}: {count} of {total} ranks of the mesh recorded step {step}; the parts at {some} of the mesh are "
        "missing. Read one with .at(rank=...)"
    ),
    "assembly.no_fingerprint": (
        "{site}: the fingerprint of the whole at step {step} is not known: the ranks have summands, or a part was "
        "recorded without its sums in the whole; read one part with .at(rank=...)"
    ),
    "assembly.no_parts": (
        "{site}: at step {step} the ranks {ranks} did not record parts of one distributed tensor; choose one with "
        ".at(rank=...)"
    ),
    "assembly.not_kept": (
        "{site}: only statistics of the parts were kept at step {step}; record again with keep='tensor'"
    ),
    "assembly.reductions": "{site}: {placements} cannot be put together; read one part with .at(rank=...)",
    "assembly.replicas": (
        "{site}: replicas differ at step {step}: the ranks {ranks} have different bits; read one with .at(rank=...)"
    ),
    "assembly.same_place": "{site}: two ranks have the same place in the mesh at step {step}",
    "assembly.summands": (
        "{site}: the ranks have summands at step {step}; the statistics of their sum cannot be computed from theirs; "
        ".tensor() adds them up where they were kept"
    ),
    "assembly.unknown_mesh": (
        "{site}: the run does not record which of the ranks {ranks} form a mesh of {mesh}; read one with .at(rank=...)"
    ),
}
