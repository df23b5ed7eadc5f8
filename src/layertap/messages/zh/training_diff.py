"""Chinese: the messages of layertap.training_diff."""

MESSAGES = {
    "training_diff.above": "超出舍入误差始于：{place}",
    "training_diff.compared": "已比较：{steps} 步的 {records} 条记录",
    "training_diff.data_unknown": (
        "两侧从第 {step} 步的首个位置起不同，且没有记录 batch：可能是数据不同，也可能是模型不同"
    ),
    "training_diff.epoch_batch": "epoch {epoch}，batch {batch}",
    "training_diff.error": "相对误差 ≈ {error}",
    "training_diff.fault": "两者在第 {step} 步分开，差异超出舍入误差",
    "training_diff.first_bit": "首个不同的比特：{place}",
    "training_diff.grown": (
        "两者在第 {first} 步因舍入误差分开，从第 {above} 步起超出舍入误差：是误差逐步放大还是微小的错误，无法判定"
    ),
    "training_diff.identical": "{steps} 步的全部 {records} 条记录逐位相同",
    "training_diff.nothing_common": "两次训练没有共同的步和位置",
    "training_diff.only_in": "只在 {name} 中：{site}",
    "training_diff.other_data": "从第 {step} 步起输入批次不同：是数据、顺序或数据增强的差异，不是模型",
    "training_diff.rank": "rank {rank}",
    "training_diff.rounding": "两者在第 {step} 步分开，差异在舍入误差范围内",
    "training_diff.shards_disagree": "其分片不一致",
    "training_diff.sites_alone": "共有的部分逐位相同，但有 {count} 个位置只在一侧有记录",
    "training_diff.step": "第 {step} 步",
    "training_diff.steps_alone": "两侧共有的 {steps} 步逐位相同，但有 {count} 步只在一侧",
    "training_diff.steps_only_in": "{count} 步（{extra} … {extra2}）只在 {name} 中",
}
