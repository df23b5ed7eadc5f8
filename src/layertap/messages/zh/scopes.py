"""Chinese: the messages of layertap.scopes."""

MESSAGES = {
    "scopes.ambiguous": "它被连续调用多次，或多次调用其子模块：文件不区分各次调用，因此无法确定它的输出",
    "scopes.gone": "文件中没有它的节点：它返回输入（nn.Identity），或已被合并或折叠",
    "scopes.merged": (
        "它的最后一个操作被导出器的规则 {fused} 并入之后的操作：不计算它自己的输出；要保留它，请不加优化地导出"
    ),
}
