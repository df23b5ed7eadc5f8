"""English: what layertap.testing says."""

MESSAGES = {
    "testing.no_such": "layertap.testing has no {name!r}; it has {all}",
}
