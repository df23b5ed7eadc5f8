"""Chinese: the messages of layertap.weights.knockout."""

MESSAGES = {
    "knockout.change": "改变",
    "knockout.cosine": "余弦",
    "knockout.head": "逐个去掉 {count} 个部分，{tokens} 个 token，完整模型困惑度 {perplexity:.4g}",
    "knockout.interval": "95 %",
    "knockout.joint": "{plan}：剩余 {size:.0%} 的参数，KL {kl:.4g}，top-1 {top1:.1%}，困惑度 {perplexity:.4g}",
    "knockout.kl": "KL",
    "knockout.left": "去掉全部 {count} 个分支后仍剩 {share:.0%} 的参数",
    "knockout.more": "……另有 {count} 个部分；to_json 含全部",
    "knockout.no_heads": "{path}：不知道其头数",
    "knockout.no_inputs": "knockout 至少需要一批输入",
    "knockout.no_logits": "模型不返回 logits；knockout 比较的是输出最后一维上的分布",
    "knockout.no_model": "此结果的模型不在本进程中；请重新调用 knockout(model, inputs) 来制定计划",
    "knockout.no_projection": "{path}：不知道其输出投影（{names} 之一）",
    "knockout.perplexity": "困惑度",
    "knockout.share": "占比",
    "knockout.size": "size={size}：要保留的参数占比，介于 0 与 1 之间",
    "knockout.span": "{low:.3g} 至 {high:.3g}",
    "knockout.top1": "top-1",
}
