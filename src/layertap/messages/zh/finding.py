"""Chinese: what layertap.finding says."""

MESSAGES = {
    "finding.also": "另外：{site}（{cause}）：{evidence}",
    "finding.explained": (
        "换回参考模型在此处的输出后，最终误差消除 {share}。所见误差 {local} 中，舍入只能解释 {floor}。"
    ),
    "finding.fault": "{site} 有错误（{cause}）：{evidence}。",
    "finding.identical": "{verdict}：每个模块两侧输出逐位相同",
    "finding.model": "模型本身",
    "finding.noise": "{verdict}：没有模块超出舍入误差的范围；输出误差 {error}，仅舍入为 {floor}",
    "finding.op": "两侧从此处开始不同：{op}。",
    "finding.output_error": "输出误差为 {total}；仅舍入为 {floor}。",
    "finding.reasons": "{verdict}：{reasons}",
}
