"""Chinese: the messages of layertap.finding."""

MESSAGES = {
    "finding.also": "另外：{site}（{cause}）：{evidence}",
    "finding.column_own": "自身误差",
    "finding.column_total": "总误差",
    "finding.evidence": "{cause}：{evidence}",
    "finding.explained": (
        "换回参考模型在此处的输出后，最终误差消除 {share}。所见误差 {local} 中，舍入只能解释 {floor}。"
    ),
    "finding.fault": "{site} 有错误（{cause}）：{evidence}。",
    "finding.identical": "{verdict}：每个模块两侧输出逐位相同",
    "finding.model": "模型",
    "finding.no_repro": "没有可重现的内容：结论为 {verdict}，未指出任何模块",
    "finding.noise": "{verdict}：没有模块超出舍入误差的范围；输出误差 {error}，仅舍入为 {floor}",
    "finding.op": "两侧从此处开始不同：{op}。",
    "finding.output_error": "输出误差为 {total}；仅舍入为 {floor}。",
    "finding.reasons": "{verdict}：{reasons}",
    "finding.repro_elsewhere": "此结论来自其他进程或文件；finding.repro() 只能在运行 find_fault 的进程中使用",
}
