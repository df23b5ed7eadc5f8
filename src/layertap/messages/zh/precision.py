"""Chinese: the messages of layertap.precision."""

MESSAGES = {
    "precision.all": "精度：{why}，这解释了全部误差",
    "precision.no_proof": "但没有证据：任何这样大小和分布的误差都会如此",
    "precision.parameters": "候选模型的参数是 {dtype}，参考模型的不是",
    "precision.partly": "精度：{why}；这解释了部分误差，只有超出的部分才算",
    "precision.runtime": "候选模型的运行时报告以 {dtype} 计算",
    "precision.size": "精度：{total} 个位置中有 {count} 个的误差与 {dtype} 的舍入相当，尽管张量标为 float32",
    "precision.values": "候选侧 {site} 的每个值都可以用 {dtype} 表示",
}
