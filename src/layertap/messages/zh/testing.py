"""Chinese: the messages of layertap.testing."""

MESSAGES = {
    "testing.no_such": "layertap.testing 中没有 {name!r}；可用的有 {all}",
}
