"""Chinese: the messages of layertap.capture."""

MESSAGES = {
    "capture.and_more": " 等另外 {count} 个",
    "capture.compares_type": "{name} 比较自身的类型，图中的探针会改变该类型",
    "capture.held": "上限为 {most} 字节",
    "capture.held_tensor": "上限为 {allowed} 字节，一个张量有 {nbytes} 字节",
    "capture.known": "已由之前的调用记录，此后未改变",
    "capture.log_output": "layertap：%s 在 %s 处停止：%s；运行本身继续",
    "capture.log_record": "layertap 无法写入一条记录，跳过它继续：%s",
    "capture.memory_short": "内存不足，因此这些张量只保留了统计量：{why}",
    "capture.no_class": "无法把 {name} 的类换成带探针的类（{name2}：{error}）",
    "capture.once": "一次",
    "capture.other_reasons": "其他原因",
    "capture.own_share": "模块返回了输入本身，因此无法得知它自己的那部分梯度",
    "capture.sparse": "图中的稀疏张量",
    "capture.the_model": "模型",
    "capture.times": "{count} 次",
}
