"""English: the messages of layertap.compiled."""

MESSAGES = {
    "compiled.never_called": "{name}, which is compiled, was never called while recording",
    "compiled.not_inside": "the inside of {path} is not recorded: {failure}",
    "compiled.python_ran": (
        "Python ran {named}, not a compiled graph, and that is what was recorded there (a graph break, "
        "torch.compiler.disable, or Dynamo's recompile limit)"
    ),
    "compiled.ran": (
        "{name} ran {times} as a compiled graph, in which it is not called, or from a graph made without taps"
    ),
    "compiled.roles": (
        "{name} is compiled: a graph shows what its modules take and return, not {role}; record it uncompiled"
    ),
    "compiled.twice": "{path} is compiled and is already being recorded; close that recording first",
    "compiled.without_taps": "{name} cannot be compiled with taps, so it ran without: {failure}",
}
