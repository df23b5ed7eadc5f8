"""Chinese: what layertap.testing says."""

MESSAGES = {
    "testing.no_such": "layertap.testing 中没有 {name!r}；可用的有 {all}",
}
