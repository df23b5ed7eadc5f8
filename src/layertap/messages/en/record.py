"""English: the messages of layertap.record."""

MESSAGES = {
    "record.below_depth": "{name} below depth {depth}",
    "record.durability": "durability={durability!r}: choose from {DURABILITIES}",
    "record.log_incomplete": "layertap could not complete the recording: %s",
    "record.log_stopped": "layertap stopped recording: %s",
    "record.log_tensor": "layertap: %s: a tensor cannot be recorded (%s); going on",
    "record.model_gone": "the model of this recording no longer exists",
    "record.module": "record requires an nn.Module or an opened target, got {name}",
    "record.nothing_yet": "nothing has been recorded yet; use `with record(…) as rec:` or rec.start()",
    "record.policy": "policy={policy!r}: choose from {POLICIES}",
    "record.seen_already": "{name} seen already",
    "record.used": "this recorder has been used already; create a new one with record(…)",
    "record.what": "what={what!r}: choose from {ROLES}",
    "record.without_tensors": "{name} without tensors",
}
