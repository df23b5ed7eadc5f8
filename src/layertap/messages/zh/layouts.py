"""Chinese: the messages of layertap.compare.layouts."""

MESSAGES = {
    "layouts.candidate": "候选",
    "layouts.first_call": ("{side}有 {steps} 步的第一次调用不属于该批次（torch 的流水线用它查看形状），因此略去"),
    "layouts.merged": "{side}的 {ranks} 个 rank 已合并读取：切片拼接，加数相加",
    "layouts.microbatches": ("{side}每个模块的 {count} 次调用是微批次：沿第一个维度拼接"),
    "layouts.not_whole": "各 rank 无法合并读取，因此逐个比较：{why}",
    "layouts.ranks_at_fault": "{site} 第 {step} 步：误差位于 rank {ranks} 的部分",
    "layouts.ranks_differ": "{site} 位于多个 rank 上，第 {step} 步的内容不同：{ranks}；比较的是其中第一个",
    "layouts.reference": "参考",
    "layouts.replicas": "rank {ranks} 之间的副本不同，而它们必须逐比特相同",
    "layouts.stages": ("{side}的 {ranks} 个 rank 是流水线的 {stages} 个阶段：其模块按一个模型的模块读取"),
}
