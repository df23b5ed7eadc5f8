"""Chinese: the messages of layertap.keep."""

MESSAGES = {
    "keep.index": "keep={whole!r}：{part!r} 不是下标；请写整数、a:b:c 或 ...",
    "keep.level": (
        'keep={level!r} 不是有效的级别；请使用 "stats"、"tensor"、"histogram"、切片（如 "[:, -1]"）或以张量为参数的函数'
    ),
    "keep.returned": "{site}：keep={name} 返回了 {name2}，应为张量",
    "keep.slice": "keep={index!r}：切片由整数、切片和 ... 组成，不能是 {part!r}",
}
