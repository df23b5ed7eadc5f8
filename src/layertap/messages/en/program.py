"""English: the messages of layertap.program."""

MESSAGES = {
    "program.no_stack": (
        "its nodes have no nn_module_stack, so modules cannot be distinguished (was it made from "
        "decomposed or hand-made graphs?); export the model again with torch.export.export"
    ),
    "program.none": "{name} contains no program: there is no models/NAME.json in it",
    "program.of": "{name}: {why}",
    "program.other_form": (
        "{name}: {member} is not written as torch.export of torch 2.8 or later does it ({name2}: {error})"
    ),
}
