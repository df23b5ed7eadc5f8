"""Chinese: the messages of layertap.ranks."""

MESSAGES = {
    "ranks.agree": "记录中没有发现它们之间的差异",
    "ranks.first_nan": "首个 NaN 出现在第 {step} 步，{ranks}",
    "ranks.head": "{count} 个进程（rank），共同记录了 {steps} 步",
    "ranks.losses": "rank {rank}：平均损失 {mean:.6g}，最大 {most:.6g}",
    "ranks.no_weights": "没有在所有 rank 上都记录权重；what='param,step_grad' 可显示它们是否不同",
    "ranks.parted": "各 rank 不一致：从第 {step} 步起 {site} 在 rank {groups} 上不相同",
    "ranks.rank_site": "rank {rank}（{site}）",
    "ranks.same_batch": "在 {steps} 步中的 {count} 步，所有 rank 得到同一个 batch：采样器是否按 rank 划分？",
    "ranks.sampled": "比较了 {total} 步中的 {count} 步",
    "ranks.stands_out": "rank {rank} 与其他不同：在 {steps} 步中的 {count} 步，{site} 超过其他 rank 的 {far} 倍",
}
