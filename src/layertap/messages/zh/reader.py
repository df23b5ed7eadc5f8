"""Chinese: the messages of layertap.reader."""

MESSAGES = {
    "reader.count": "它接收 {count} 个输入（{names}），给出了 {count2} 个",
    "reader.no_input": "它没有输入 {name!r}；它接收 {map}",
    "reader.several": (
        "多个输出：文件没有保留 {named} 返回它们的顺序，也没有保留未使用的；其叶子按计算顺序为 v0、v1……"
    ),
    "reader.twice": "输入 {name!r} 给了两次，一次按位置，一次按名称",
}
