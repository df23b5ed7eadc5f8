"""Chinese: the messages of layertap.where."""

MESSAGES = {
    "where.state": "它留在参数中的内容",
    "where.call": "{where}，第 {call} 次调用",
    "where.input": "{module} 的输入",
    "where.output": "它的输出",
    "where.grad_input": "它的输入的梯度",
    "where.grad_output": "传到 {module} 的梯度",
    "where.leaf": "{where}（{leaf}）",
    "where.mask": "{path} 的掩码",
    "where.param_grad": "它的参数的梯度",
    "where.the_input": "输入",
}
