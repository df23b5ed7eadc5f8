"""English: the messages of layertap.targets."""

MESSAGES = {
    "targets.and_more": " and {count} more",
    "targets.archive_damaged": "{name}: the archive is damaged or incomplete; copy it again",
    "targets.arguments": "arguments={arguments!r} are for a factory (file.py:factory); {text} takes none",
    "targets.at_leaf": " at {leaf}",
    "targets.baked_as": "baked as {level} of {role}; layout.split(raw) gives those",
    "targets.baked_drift_unknown": (
        "baked: the taps are part of the file, so its drift against a file without them is not known"
    ),
    "targets.baked_not_loaded": "{name} has a layout of baked taps, but cannot be loaded: {error}",
    "targets.config": "config={dict!r} is for OpenVINO's .xml files; {spec} has no such setting",
    "targets.expected": "expected {KINDS}",
    "targets.export_load": "{name}: torch.export.load raised {error}",
    "targets.factory_has": "{name}: {file} {what}; it has {names}",
    "targets.factory_inputs": "{name} returned inputs of type {name2}; expected a dict, a tuple or a tensor",
    "targets.factory_near": "{name}: {file} {what}; did you mean {near!r}? It has {names}",
    "targets.factory_returned": "{name} returned {shown}; expected an nn.Module, or (nn.Module, inputs)",
    "targets.file_has": " (the file has {names})",
    "targets.forward_failed": "{name} failed in its forward pass: {error}",
    "targets.has_no": "has no {factory!r}",
    "targets.has_other": "has {factory!r}, but that is a {name}",
    "targets.hf_folder": (
        "{name}: there is no folder {folder}; hf: takes a folder on this machine, fetched for instance "
        "by 'hf download {folder} --local-dir DIR'"
    ),
    "targets.hf_kernel": (
        "{name}: config.json requests the kernel {config!r}, which is external code; remove {key}, or "
        "load the model in a file of your own and open that as file.py:factory"
    ),
    "targets.hf_missing": (
        "{name}: {count} parameters are not in the checkpoint and were initialised at random: {shown}"
    ),
    "targets.hf_needs": "{name} needs transformers; install it with: pip install 'layertap[hf]'",
    "targets.hf_no_class": "{name}: transformers {version} has no {architectures}",
    "targets.hf_no_config": "{name}: {folder} has no config.json, so it is not a Hugging Face model",
    "targets.hf_not_json": "{name}: {file} is not valid JSON: {reason}",
    "targets.hf_not_object": "{name}: {file} contains a {name2}; expected an object",
    "targets.hf_outside": "{name}: {name2} puts weights in {file!r}, outside the folder; that is refused",
    "targets.hf_own_code": "its code is in the folder (auto_map), which layertap does not run",
    "targets.hf_raised": "{name}: loading {name2} raised {error}",
    "targets.hf_reason": "; {reason}",
    "targets.hf_tokenizer": "{name}: loading its tokenizer raised {error}",
    "targets.hf_unreadable": "{name}: {file} cannot be read ({reason})",
    "targets.hf_way_out": "; load it in a file of your own and open that as file.py:factory",
    "targets.import_raised": "{name}: importing {name2} raised {error}",
    "targets.inputs": "inputs: {inputs}",
    "targets.inputs_type": (
        "the inputs are of type {name}; expected keywords (a dict), positional arguments (a tuple) or one tensor"
    ),
    "targets.is_folder": "{name} is a folder, not a file; a Hugging Face folder is opened as hf:{name}",
    "targets.it_names": "it names {found}",
    "targets.jit_load": "{name}: torch.jit.load: {first}",
    "targets.kinds": (
        "file.py:factory (a function that returns the model, or the model and its inputs), hf:PATH (a "
        "folder), or a compiled file: TorchScript (.pt), torch.export (.pt2), .onnx, OpenVINO (.xml)"
    ),
    "targets.list_in_file": ", … (the list is in the file as layertap_taps)",
    "targets.looks_hf": "it looks like a Hugging Face folder: hf:{text}",
    "targets.member_not_json": "{name}: {member} is not JSON: {error}",
    "targets.member_not_text": "{name}: {member} is not text: {error}",
    "targets.member_size": "{name}: {member} takes {size} bytes, more than the limit of {LARGEST}",
    "targets.member_unreadable": "{name}: {member} cannot be read: the archive is damaged; copy it again",
    "targets.name_factory": "give the name of the factory: {text}:{names}",
    "targets.needs": "{name} needs {missing}",
    "targets.needs_iree": "{name} needs iree's runtime: pip install 'layertap[iree]'",
    "targets.needs_operator": "to run it, this is needed: {unknown}",
    "targets.no_arguments": "{name} is a model, not a factory, and takes no arguments ({arguments})",
    "targets.no_file": "{name}: there is no file {path} (looked from {cwd})",
    "targets.no_functions": "no functions and no classes",
    "targets.no_import": "{name}: Python cannot import {path}",
    "targets.no_inputs": "{name} came without inputs; give some, for instance from make_inputs(target)",
    "targets.no_module_stack": (
        "{name}: its nodes have no nn_module_stack, so modules cannot be distinguished (was it made from "
        "decomposed or hand-made graphs?); export the model again with torch.export.export"
    ),
    "targets.no_target": "{text!r} is not a target; {way_out}",
    "targets.no_target_object": "a {name} is not a target; expected a model, or {KINDS}",
    "targets.none_tappable": "{name}: none of {chosen} can be tapped: ",
    "targets.not_compiled": (
        "{name} is not a compiled file, so there is no artefact to tap; before compiling it: lt.bake(model, sites=…)"
    ),
    "targets.not_from_this_bake": "the compiled form has no {lost}; was it made from this bake?",
    "targets.not_seen": "not visible: {collapse}: {why}",
    "targets.not_torch_save": "it is not a file of torch.save",
    "targets.operator": (
        "the operator {shown}, which is not registered in this process; import its module first: "
        "layertap record --import {module} …, or import {module} before open_target{where}"
    ),
    "targets.outline_run": "an outline cannot be run",
    "targets.outline_save": "an outline cannot be saved",
    "targets.own_output": "the model's own output is there without a tap",
    "targets.pickle_refused": (
        "{name}: {member} is a pickle that contains more than tensors; it is refused, since it could run "
        "code ({why}). If you trust the file, load it yourself: lt.open_target(torch.export.load(path)); "
        "or allow the class with torch.serialization.add_safe_globals"
    ),
    "targets.pickle_unreadable": "a pickle that cannot be read: {error}",
    "targets.raised": "{name} raised {error}",
    "targets.returns_tuple": "it returns (output, taps), where taps is a tuple of {count} tensors: {names}",
    "targets.summary": "{name}: {format} {kind}, {sites} of {modules} modules can be recorded",
    "targets.taps_already": "this file already has its taps; for others, bake and compile the model again",
    "targets.tuple_of": "a tuple of {count}",
    "targets.vmfb_by_place": "a .vmfb takes its inputs by position; {kwargs} came by name",
    "targets.where_name": ", where NAME is the Python module that registers it",
    "targets.with_baked_taps": "{form} with baked taps",
}
