"""Chinese: the messages of layertap.repro."""

MESSAGES = {
    "repro.exists": "{path} 已存在；请给出新的文件夹",
    "repro.models_gone": "此结论所涉及的模型已不存在；请在调用 finding.repro() 之前保留两个模型",
    "repro.never_called": "{path} 从未被调用，因此没有可重现的调用",
    "repro.not_saved": "既不能 pickle（{line}），也不能导出（{line2}）",
}
