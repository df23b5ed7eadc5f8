"""English: the messages of layertap.compare.layouts."""

MESSAGES = {
    "layouts.candidate": "candidate",
    "layouts.first_call": (
        "at {steps} steps of the {side} the first call is left out: it is not part of the batch (torch's pipelining "
        "looks at shapes)"
    ),
    "layouts.merged": "the {ranks} ranks of the {side} were read as one: slices put together, summands added",
    "layouts.microbatches": (
        "the {count} calls of each module of the {side} are microbatches: put together along the first dimension"
    ),
    "layouts.not_whole": "the ranks cannot be read as one, and each is compared by itself: {why}",
    "layouts.ranks_at_fault": "{site} at step {step}: the error lies in the part of rank {ranks}",
    "layouts.ranks_differ": (
        "{site} is on several ranks, whose tensors differ at step {step}: {ranks}; the first of them was compared"
    ),
    "layouts.reference": "reference",
    "layouts.replicas": "replicas differ between the ranks {ranks}, which must be bit-identical",
    "layouts.stages": (
        "the {ranks} ranks of the {side} are {stages} stages of a pipeline: their modules were read as one model's"
    ),
}
