"""English: the messages of layertap.capture."""

MESSAGES = {
    "capture.and_more": " and {count} more",
    "capture.compares_type": "{name} compares its own type, which a tap inside a graph would change",
    "capture.held": "the limit is {most} bytes",
    "capture.held_tensor": "the limit is {allowed} bytes, a tensor has {nbytes}",
    "capture.known": "recorded by an earlier call, and not changed since",
    "capture.log_output": "layertap: %s stopped at %s: %s; the run itself continues",
    "capture.log_record": "layertap could not write a record and continues without it: %s",
    "capture.memory_short": "little memory was left, so only the statistics of these tensors were kept: {why}",
    "capture.no_class": "the class of {name} cannot be replaced by a tapped one ({name2}: {error})",
    "capture.once": "once",
    "capture.other_reasons": "other reasons",
    "capture.own_share": "the module returned its input itself, so its own part of the gradient is not known",
    "capture.sparse": "a sparse tensor inside a graph",
    "capture.the_model": "the model",
    "capture.times": "{count} times",
}
