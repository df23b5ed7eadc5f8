"""Chinese: the messages of layertap.record."""

MESSAGES = {
    "record.below_depth": "{name}，深于 {depth} 层",
    "record.durability": "durability={durability!r}：请从 {DURABILITIES} 中选择",
    "record.log_incomplete": "layertap 无法完成记录：%s",
    "record.log_stopped": "layertap 停止了记录：%s",
    "record.log_tensor": "layertap：%s：有一个张量无法记录（%s）；继续",
    "record.model_gone": "此次记录的模型已不存在",
    "record.module": "record 需要 nn.Module 或已打开的 target，得到的是 {name}",
    "record.nothing_yet": "还没有记录任何内容；请使用 `with record(…) as rec:` 或 rec.start()",
    "record.policy": "policy={policy!r}：请从 {POLICIES} 中选择",
    "record.seen_already": "{name}，已出现过",
    "record.used": "此记录器已经使用过；请用 record(…) 创建新的",
    "record.what": "what={what!r}：请从 {ROLES} 中选择",
    "record.without_tensors": "{name}，不含张量",
}
