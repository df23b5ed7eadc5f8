"""Chinese: the messages of layertap.schedule."""

MESSAGES = {
    "schedule.as_they_come": "{text}（epoch 和 batch 在出现时决定）",
    "schedule.at_least_one": "schedule={count}：每 n 步中的 n 至少为 1",
    "schedule.decade": "schedule 'log {per_decade}'：每个数量级至少 1 步",
    "schedule.empty": "计划为空：{HELP}",
    "schedule.every_nth": "每 {count} 步",
    "schedule.every_step": "每一步",
    "schedule.first": "前 {count} 步",
    "schedule.first_steps": "{text}：{named}；前 {steps} 步中的 {count} 步",
    "schedule.help": (
        "请使用整数（每 n 步）、range、步的列表、谓词、文本（如 'every 10'、'first 5'、'steps 3,20-30'、"
        "'epochs 1,5'、'batches 0'、'log 3'、'never'，可用 'and'、'or' 连接），或由这些组成的映射"
    ),
    "schedule.in_range": "{schedule} 中的步",
    "schedule.log": "对数间隔的步，每个数量级 {per_decade} 步",
    "schedule.no_numbers": "schedule：{word} 没有给出数字；{HELP}",
    "schedule.no_step": "没有步",
    "schedule.predicate": "由 {getattr} 选择的步",
    "schedule.span": "schedule：{strip!r} 既不是数字，也不是 20-30 这样的范围",
    "schedule.unknown": "schedule={schedule!r}：{HELP}",
    "schedule.unknown_rule": "schedule {rule!r}：{HELP}",
}
