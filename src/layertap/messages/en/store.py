"""English: what layertap.store says."""

MESSAGES = {
    "store.in_use": "{folder} is in use; this one writes to {own}",
}
