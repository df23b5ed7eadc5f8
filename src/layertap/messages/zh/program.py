"""Chinese: the messages of layertap.program."""

MESSAGES = {
    "program.no_stack": (
        "其节点没有 nn_module_stack，无法区分模块（是否来自分解过的或手工构造的图？）；请用 "
        "torch.export.export 重新导出"
    ),
    "program.none": "{name} 中没有程序：其中没有 models/NAME.json",
    "program.of": "{name}：{why}",
    "program.other_form": "{name}：{member} 的写法与 torch 2.8 及之后的 torch.export 不同（{name2}：{error}）",
}
