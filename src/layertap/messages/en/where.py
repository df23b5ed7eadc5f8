"""English: the messages of layertap.where."""

MESSAGES = {
    "where.state": "what it leaves in its arguments",
    "where.call": "{where}, call {call}",
    "where.input": "the input of {module}",
    "where.output": "its output",
    "where.grad_input": "the gradient of its input",
    "where.grad_output": "the gradient that arrives at {module}",
    "where.leaf": "{where} ({leaf})",
    "where.mask": "the mask of {path}",
    "where.param_grad": "the gradient of its parameter",
    "where.the_input": "the input",
}
