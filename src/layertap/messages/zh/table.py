"""Chinese: the messages of layertap.table."""

MESSAGES = {
    "table.empty": "空列：{titles}",
    "table.error": "误差",
    "table.fault": "错误",
    "table.floor": "下限",
    "table.identical": "一致",
    "table.inconclusive": "无法判定",
    "table.jump": "跳变",
    "table.kind": "类型",
    "table.module": "模块",
    "table.noise": "舍入",
    "table.not_shown": "因宽度不足未显示：{titles}",
    "table.ratio": "倍数",
    "table.site": "位置",
    "table.step": "步",
    "table.verdict": "判定",
    "table.where": "所在",
}
