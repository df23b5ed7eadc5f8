"""Chinese: the messages of layertap.rules."""

MESSAGES = {
    "rules.checked": "读取时检查",
    "rules.in_a_row": "，连续 {steps} 步",
    "rules.no_function": "rules：{name!r} 不是函数",
    "rules.no_import": "rules：无法导入 {name!r}（{error}）",
    "rules.no_option": "rules：没有选项 {strange!r}；{KEYS}",
    "rules.no_rule": (
        "rules：没有规则 {name!r}；现有 {KNOWN}，或给出 when='abs_max > 1e4'，或以 'module:function' 给出函数"
    ),
    "rules.plateau": "损失已有 {count} 步没有下降：最低 {now}，此前 {best}",
    "rules.update": "{site} 的更新是权重的 {ratio} 倍；应在 {low} 到 {high} 之间",
    "rules.vanished": "{site} 处梯度消失：每个值 {rms}，为全部中位数的 {share} 倍",
    "rules.when": "rules：when={when!r}：应为统计量、比较符和数，例如 'abs_max > 1e4'；统计量有 {NUMBERS}",
    "rules.zeros": "{site} 的值中有 {zeros} 为零",
}
