"""Chinese: the messages of layertap.trust."""

MESSAGES = {
    "trust.checked": "检验：以上检验所需的运行由 layertap 自行完成，这些位置只做一次；所列时间均不包含它们",
    "trust.constant": "常量：{sites} 与输入无关：已被编译器折叠，或只取决于形状",
    "trust.drift": (
        "观测漂移：加探针后输出{where}相对变化 {error}，为估算下限的 {ratio} 倍：探针改变了计算，这些记录"
        "不代表不带探针时的运行"
    ),
    "trust.drift_rounding": (
        "观测漂移：加探针后输出{where}相对变化 {error}，为估算下限的 {ratio} 倍：属于融合方式不同造成的舍入"
    ),
    "trust.kind": "{name}：{paths}{more}",
    "trust.moved": "新鲜度：换一个输入后，{tested} 个记录中有 {moved} 个发生变化",
    "trust.no_drift": "观测漂移：无；带探针的输出与不带探针的输出逐位相同",
    "trust.not_varied": "新鲜度：未检验，没有可以改变的输入（掩码、位置和单个值保持不变）",
    "trust.observer_drift": "观测漂移：{drift:.2g}，为估算下限的 {drift2:.2g} 倍",
    "trust.refused": "新鲜度：未检验，由第一个输入构造的第二个输入被拒绝：{error}",
    "trust.structure": "结构：输出没有恢复为模型自己的形式",
    "trust.unmoved": "未变化：{sites} 在第二个输入下数值相同；可能是陈旧数据，或与所改变的输入无关",
    "trust.values": "数值：相对误差 {error:.2g}{where}，为估算下限的 {error2:.2g} 倍",
}
