"""Chinese: the messages of layertap.show."""

MESSAGES = {
    "show.change": "Δ：相对于前一层的同一模块；≈ 由草图估算",
    "show.depth": "沿深度的 mean |x|（对数刻度）  {sparkline}",
    "show.fingerprint": "  指纹 {fingerprint:016x}  保存 {kept}",
    "show.first_nonfinite": "首个含 NaN 或 Inf 的步",
    "show.first_of": "  首值    {values}",
    "show.first_values": "首个非有限值：{site}（{nan} 个 NaN，{inf} 个 Inf）",
    "show.last": "最后一步",
    "show.moment": "第 {step} 步 {phase} rank {rank}",
    "show.one_step": "显示第 {step} 步（{which}）；用 --step 查看其他步，给出 SITE 查看某一位置的全部步",
    "show.problem": "问题：{problem}",
    "show.records": "{count} 条记录，mean |x|  {sparkline}",
    "show.tensor": "{shape} {dtype}，位于 {device}",
}
