"""English: the messages of layertap.store.dims and layertap.store.stated."""

MESSAGES = {
    "dims.at": "{problem}\n    {text}\n    {mark}",
    "dims.axis": "the mesh has no axis {axis!r}, it has {axes}; use one of these, or add the axis to the mesh",
    "dims.axis_twice": "the axis {axis!r} is used twice; an axis cuts one dimension, or its ranks hold summands",
    "dims.count": (
        "{site}: {count} words for a tensor of {dims} dimensions, {shape}; write one word for each dimension"
    ),
    "dims.divide": (
        "{site}: {length} places of dimension {dim} cannot be cut into {parts} equal parts over {axis!r}; check the "
        "dimension, the order and the size of the axis"
    ),
    "dims.held": (
        "{site}: as annotated, rank 0 holds {stated} of it, but each rank holds another shape, rank 0 {held}; correct "
        "the annotation or the mesh"
    ),
    "dims.in_rule": "{where}: rule {pattern!r}: {problem}",
    "dims.mesh": (
        "mesh: expected the axes in rank order with their sizes, as {{'cp': 2, 'tp': 2}}, or a DeviceMesh with "
        "mesh_dim_names; got {given!r}"
    ),
    "dims.mesh_missing": (
        "{where}: the rule {pattern!r} has dims, and the mapping has no mesh; add 'mesh': {{'cp': 2, 'tp': 2}}, the "
        "axes in rank order"
    ),
    "dims.mesh_ranks": (
        "the mesh ({mesh}) has {count} ranks, the reference has {reference} and the candidate {candidate}; name all "
        "axes of the run that holds parts"
    ),
    "dims.mesh_world": "the mesh ({mesh}) has {count} ranks and the job {world}; name all axes of the job",
    "dims.not_in_mesh": "rank {rank} is not in the mesh ({mesh}, ranks {ranks})",
    "dims.order": "unknown order {order!r}; expected {orders}, or none for one chunk after the other",
    "dims.reduction": "{way!r}: expected {ways}, the same for all axes",
    "dims.unused": "mapping: the dims of rule {pattern!r} match no site; a pattern matches a site's whole name",
    "dims.word": "expected words such as t, t[cp] or t[cp:zigzag], and +tp behind the last one for summands",
}
