"""English: the messages of layertap.reader."""

MESSAGES = {
    "reader.count": "it takes {count} inputs ({names}), {count2} were given",
    "reader.no_input": "it has no input {name!r}; it takes {map}",
    "reader.several": (
        "several outputs: the file does not keep the order in which {named} returned them, nor unused "
        "ones; their leaves are v0, v1, … in order of computation"
    ),
    "reader.twice": "input {name!r} was given twice, by position and by name",
}
