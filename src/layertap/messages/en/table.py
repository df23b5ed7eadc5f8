"""English: the messages of layertap.table."""

MESSAGES = {
    "table.empty": "empty: {titles}",
    "table.error": "error",
    "table.fault": "fault",
    "table.floor": "floor",
    "table.identical": "identical",
    "table.inconclusive": "inconclusive",
    "table.jump": "jump",
    "table.kind": "kind",
    "table.module": "module",
    "table.noise": "noise",
    "table.not_shown": "not shown, too narrow: {titles}",
    "table.ratio": "ratio",
    "table.site": "site",
    "table.step": "step",
    "table.verdict": "verdict",
    "table.where": "where",
}
