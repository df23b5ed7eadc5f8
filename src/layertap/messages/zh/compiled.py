"""Chinese: the messages of layertap.compiled."""

MESSAGES = {
    "compiled.never_called": "{name} 是编译过的，在记录期间从未被调用",
    "compiled.not_inside": "没有记录 {path} 的内部：{failure}",
    "compiled.python_ran": (
        "{named} 由 Python 而不是编译图运行，记录的是前者（图中断、torch.compiler.disable，或 Dynamo 的重编译上限）"
    ),
    "compiled.ran": "{name} 以编译图运行了 {times}，在图中它没有被调用，或该图不带探针",
    "compiled.roles": "{name} 是编译过的：图只显示模块的输入和输出，不显示 {role}；请在未编译时记录",
    "compiled.twice": "{path} 是编译过的，且正在被记录；请先结束那次记录",
    "compiled.without_taps": "{name} 无法带探针编译，因此未带探针运行：{failure}",
}
