"""English: the messages of layertap.bake."""

MESSAGES = {
    "bake.compiled": (
        "bake requires the model from before compiling, but this is TorchScript already; save it and tap "
        "the file: lt.record(lt.open_target('model.pt'), …)"
    ),
    "bake.layout": "the layout is known after the first call: run, trace, export or compile the tapped model first",
    "bake.module": "bake requires an nn.Module, got {name}",
    "bake.never_called": (
        "never called in this forward pass (a container, a branch not taken, or its parameters used directly)"
    ),
    "bake.no_copy": "{kind_of} cannot be copied ({name}: {error}); record(model, …) needs no copy",
    "bake.no_leaves": "it was called, but the requested leaves did not occur",
    "bake.no_script": (
        "a tapped model can be traced, exported and compiled, but not scripted; script the model itself "
        "and tap the file: torch.jit.script(model).save('model.pt'), then "
        "lt.record(lt.open_target('model.pt'), …)"
    ),
    "bake.no_tap": "it has no tap; in such a file only the sites that were baked in can be seen",
    "bake.no_tensor": "no tensor: {why}",
    "bake.nothing": "none of the {count} requested modules was called with a tensor: {kinds}",
    "bake.what": "what={what!r}: a graph can return {ROLES}; for gradients use record(…)",
}
