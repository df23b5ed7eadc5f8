"""Chinese: what layertap.trigger says."""

MESSAGES = {
    "trigger.at": "触发 {rule}（{at}）：{reason}",
    "trigger.backward": "产生于 {name} 的反向计算",
    "trigger.batch": "输入批次本身含非有限值：{what}",
    "trigger.before": "；紧接在它之前的 {before} 仍是有限值",
    "trigger.damaged": "{path}：已损坏，或不是触发器的报告",
    "trigger.fired": "触发：{fired}",
    "trigger.first": "首个异常的位置是 {site}：其范数为 {value}，中位数为 {median}",
    "trigger.forward": "产生于 {name} 的前向计算",
    "trigger.grad_norm": "梯度范数超过其中位数的 {grad_norm:g} 倍",
    "trigger.input_parts": "触发报告的每个输入都应有名称、dtype、形状和指纹",
    "trigger.input": "输入 {x}：{x2} {x3}，指纹 {x4}",
    "trigger.loss": "损失为 {loss}，比最近 {count} 步的中位数 {median} 高出 {times} 倍离散度",
    "trigger.loss_born": "产生于损失函数：此前记录的一切都是有限值",
    "trigger.loss_spike": "损失高出其中位数 {loss_spike:g} 倍离散度",
    "trigger.no_batch": "；没有记录 batch，也可能来自数据",
    "trigger.none_stands_out": "没有记录的位置偏离其最近几步",
    "trigger.nonfinite": "NaN 或 Inf",
    "trigger.norm": "梯度范数为 {norm}，是最近 {count} 步中位数 {median} 的 {times} 倍",
    "trigger.ring_steps": "缓存中的第 {span} 步已写入运行记录",
    "trigger.rule_at": "第 {step} 步的 {rule}",
    "trigger.silenced": "另有 {silenced} 次触发没有报告；triggers.most = {most}",
    "trigger.stripped": "因预算丢弃了缓存中的 {stripped} 个张量；保留了统计量",
    "trigger.the_model": "模型",
    "trigger.unknown": (
        "triggers：{name}={value!r} 不是触发器；请使用 nonfinite、loss_spike、grad_norm（True 或阈值）、most"
    ),
    "trigger.update": "优化器对 {name} 的更新含非有限值",
    "trigger.values": "{site} 的 {total} 个值中有 {counts}",
    "trigger.weights": "{name} 的权重在这一步之前就已含非有限值",
}
