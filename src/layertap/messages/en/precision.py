"""English: the messages of layertap.precision."""

MESSAGES = {
    "precision.all": "precision: {why}, which explains every error",
    "precision.no_proof": "this is not proven: other errors of this size and spread look the same",
    "precision.parameters": "the candidate's parameters are {dtype}, the reference's are not",
    "precision.partly": "precision: {why}; that explains part of the errors, and only what exceeds it counts",
    "precision.runtime": "the candidate's runtime reports that it computes in {dtype}",
    "precision.size": (
        "precision: at {count} of {total} sites the error has the size of {dtype} rounding, although the "
        "tensors are float32"
    ),
    "precision.values": "every value of the candidate's {site} can be represented in {dtype}",
}
