"""English: what layertap.table says."""

MESSAGES = {
    "table.empty": "empty: {titles}",
    "table.not_shown": "not shown, too narrow: {titles}",
}
