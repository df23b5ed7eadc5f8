"""Verdicts and what all results share."""

MESSAGES = {
    "result.identical": "完全一致",
    "result.noise": "仅舍入误差",
    "result.fault": "存在错误",
    "result.inconclusive": "无法判定",
}
