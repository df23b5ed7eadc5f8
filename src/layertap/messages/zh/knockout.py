"""Chinese: what layertap.knockout says."""

MESSAGES = {
    "knockout.all_left": "去掉全部 {count} 个分支后剩余 {value:.0%} 的参数",
    "knockout.head": "逐个去掉 {count} 个部分，{tokens} 个 token，完整模型的困惑度 {perplexity:.4g}",
    "knockout.heads": "{path}：头数未知",
    "knockout.joint": "{plan}：{kept}，KL {kl:.4g}，top-1 {top1:.1%}，困惑度 {perplexity:.4g}",
    "knockout.no_logits": "模型没有返回 logits；knockout 比较的是输出最后一维上的分布",
    "knockout.no_model": "该结果不带模型；如需计划请重新调用 knockout(model, inputs)",
    "knockout.projection": "{path}：输出投影未知（应为 {projections} 之一）",
    "knockout.range": "{low} 到 {high}",
    "knockout.size": "{size:.0%} 的参数",
    "knockout.size_range": "size={size}：应为保留参数的比例，在 0 和 1 之间",
}
