"""English: the messages of layertap.testing."""

MESSAGES = {
    "testing.no_such": "layertap.testing has no {name!r}; it has {all}",
}
