"""Verdicts and what all results share."""

MESSAGES = {
    "result.not_a": "这不是 {name} 的字典：{error}",
    "result.not_mapping": "应为 {name} 的字典，实际是 {given}",
    "result.candidate": "候选",
    "result.fault": "存在错误",
    "result.identical": "完全一致",
    "result.inconclusive": "无法判定",
    "result.joined": "{first}；{second}",
    "result.no_form": "{name} 没有 {form} 形式",
    "result.noise": "仅舍入误差",
    "result.reference": "参考",
    "result.separator": "；",
    "result.unwritable": "{path}：无法在此写入报告（{strerror}）",
}
