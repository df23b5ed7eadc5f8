"""Chinese: what layertap.table says."""

MESSAGES = {
    "table.empty": "空列：{titles}",
    "table.not_shown": "因宽度不足未显示：{titles}",
}
