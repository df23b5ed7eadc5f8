"""Chinese: the messages of layertap.report."""

MESSAGES = {
    "report.all_rows": "全部 {total} 行：-v、--json、--html、report.rows",
    "report.and_more": " 等另外 {count} 个",
    "report.closest": "最接近错误的位置：{site}，{why}",
    "report.at_step": "{site}（第 {step} 步）",
    "report.first": "首个偏离：{site}（{kind}），相对误差 {error}",
    "report.first_without_kind": "首个偏离：{site}，相对误差 {error}",
    "report.floor_measured": "把握：误差下限是实测的（参考模型以候选精度运行所得）",
    "report.floor_modelled": "把握：误差下限由数据类型和深度估算；用 floor=RUN（参考模型以候选精度运行）可以实测",
    "report.floor_tolerance": "把握：按给定的容差（{tolerance}）判定，而不是按舍入误差",
    "report.growth": "到最后一个位置，误差为该处的 {growth} 倍",
    "report.how_sure": "把握：{why}。{hint}",
    "report.legend": (
        "误差：相对 L2 误差；下限：舍入可以解释的误差；倍数：误差 ÷ 下限（整个张量或其最差的行或通道"
        "）；跳变：与上一行误差之比"
    ),
    "report.more_notes": "……另有 {count} 条说明（finding.notes）",
    "report.more_rows": "……另有 {count} 行",
    "report.no_report": "{name} 没有报告；可以生成报告的有 {documents}",
    "report.note": "注意：{text}",
    "report.note_line": "注意：{note}",
    "report.offline_hint": (
        "离线记录只能说明误差最先出现在哪里，不能说明是哪一层造成的；要确定来源，请对两个模型使用 lt.find_fault。"
    ),
    "report.only_in": "只在{side}侧：{site}",
    "report.plan": "步骤：{step}",
    "report.scale": "误差（对数刻度）",
    "report.the_model": "（整个模型）",
    "report.verdict": "{verdict}：{candidate} 对比 {reference}：{reasons}",
    "report.worst": "超出下限最多的位置：{named}",
}
