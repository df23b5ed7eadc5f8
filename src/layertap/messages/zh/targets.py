"""Chinese: the messages of layertap.targets."""

MESSAGES = {
    "targets.and_more": " 等另外 {count} 个",
    "targets.archive_damaged": "{name}：压缩包已损坏或不完整；请重新复制",
    "targets.arguments": "arguments={arguments!r} 只用于工厂函数（file.py:factory）；{text} 不接受参数",
    "targets.at_leaf": "（{leaf} 处）",
    "targets.baked_as": "烘焙为 {role} 的 {level}；用 layout.split(raw) 取出",
    "targets.baked_drift_unknown": "烘焙：探针是文件的一部分，因此无法得知相对于不带探针文件的漂移",
    "targets.baked_not_loaded": "{name} 含有烘焙探针的布局，但无法加载：{error}",
    "targets.config": "config={dict!r} 用于 OpenVINO 的 .xml 文件；{spec} 没有这样的设置",
    "targets.expected": "应为 {KINDS}",
    "targets.export_load": "{name}：torch.export.load 报错 {error}",
    "targets.factory_has": "{name}：{file} {what}；其中有 {names}",
    "targets.factory_inputs": "{name} 返回的输入类型是 {name2}；应为 dict、元组或张量",
    "targets.factory_near": "{name}：{file} {what}；您是否指 {near!r}？其中有 {names}",
    "targets.factory_returned": "{name} 返回了 {shown}；应为 nn.Module，或 (nn.Module, inputs)",
    "targets.file_has": "（文件中有 {names}）",
    "targets.forward_failed": "{name} 在前向计算中失败：{error}",
    "targets.has_no": "没有 {factory!r}",
    "targets.has_other": "有 {factory!r}，但它是 {name}",
    "targets.hf_folder": (
        "{name}：没有文件夹 {folder}；hf: 需要本机上的文件夹，例如用 'hf download {folder} --local-dir DIR' 获取"
    ),
    "targets.hf_kernel": (
        "{name}：config.json 要求使用外部代码的内核 {config!r}；请删除 {key}，或在自己的文件中加载模型并"
        "以 file.py:factory 打开"
    ),
    "targets.hf_missing": "{name}：有 {count} 个参数不在检查点中，已随机初始化：{shown}",
    "targets.hf_needs": "{name} 需要 transformers；安装命令：pip install 'layertap[hf]'",
    "targets.hf_no_class": "{name}：transformers {version} 没有 {architectures}",
    "targets.hf_no_config": "{name}：{folder} 没有 config.json，因此不是 Hugging Face 模型",
    "targets.hf_not_json": "{name}：{file} 不是有效的 JSON：{reason}",
    "targets.hf_not_object": "{name}：{file} 中是 {name2}；应为对象",
    "targets.hf_outside": "{name}：{name2} 把权重放在文件夹之外的 {file!r}；拒绝打开",
    "targets.hf_own_code": "其代码在文件夹中（auto_map），layertap 不执行它",
    "targets.hf_raised": "{name}：加载 {name2} 时报错 {error}",
    "targets.hf_reason": "；{reason}",
    "targets.hf_tokenizer": "{name}：加载分词器时报错 {error}",
    "targets.hf_unreadable": "{name}：无法读取 {file}（{reason}）",
    "targets.hf_way_out": "；请在自己的文件中加载它，并以 file.py:factory 打开",
    "targets.import_raised": "{name}：导入 {name2} 时报错 {error}",
    "targets.inputs": "输入：{inputs}",
    "targets.inputs_type": "输入的类型是 {name}；应为关键字（dict）、位置参数（元组）或一个张量",
    "targets.is_folder": "{name} 是文件夹，不是文件；Hugging Face 的文件夹以 hf:{name} 打开",
    "targets.it_names": "其中有 {found}",
    "targets.jit_load": "{name}：torch.jit.load：{first}",
    "targets.kinds": (
        "file.py:factory（返回模型，或模型及其输入的函数）、hf:PATH（文件夹），或编译后的文件："
        "TorchScript（.pt）、torch.export（.pt2）、.onnx、OpenVINO（.xml）"
    ),
    "targets.list_in_file": "，……（完整列表在文件的 layertap_taps 中）",
    "targets.looks_hf": "它像是 Hugging Face 文件夹：hf:{text}",
    "targets.member_not_json": "{name}：{member} 不是 JSON：{error}",
    "targets.member_not_text": "{name}：{member} 不是文本：{error}",
    "targets.member_size": "{name}：{member} 占 {size} 字节，超过上限 {LARGEST}",
    "targets.member_unreadable": "{name}：无法读取 {member}：压缩包已损坏；请重新复制",
    "targets.name_factory": "请写出工厂函数的名称：{text}:{names}",
    "targets.needs": "{name} 需要 {missing}",
    "targets.needs_iree": "{name} 需要 iree 的运行时：pip install 'layertap[iree]'",
    "targets.needs_operator": "运行它需要：{unknown}",
    "targets.no_arguments": "{name} 是模型而不是工厂函数，不接受参数（{arguments}）",
    "targets.no_file": "{name}：没有文件 {path}（从 {cwd} 查找）",
    "targets.no_functions": "没有函数和类",
    "targets.no_import": "{name}：Python 无法导入 {path}",
    "targets.no_inputs": "{name} 没有输入；请给出输入，例如来自 make_inputs(target)",
    "targets.no_module_stack": (
        "{name}：其节点没有 nn_module_stack，无法区分模块（是否来自分解过的或手工构造的图？）；请用 "
        "torch.export.export 重新导出"
    ),
    "targets.no_target": "{text!r} 不是 target；{way_out}",
    "targets.no_target_object": "{name} 不是 target；应为模型，或 {KINDS}",
    "targets.none_tappable": "{name}：{chosen} 都不能加探针：",
    "targets.not_compiled": "{name} 不是编译后的文件，没有可加探针的产物；编译前使用：lt.bake(model, sites=…)",
    "targets.not_from_this_bake": "编译后的形式没有 {lost}；它是由这次 bake 得到的吗？",
    "targets.not_seen": "无法看到：{collapse}：{why}",
    "targets.not_torch_save": "它不是 torch.save 写的文件",
    "targets.operator": (
        "算子 {shown} 在此进程中没有注册；请先导入其模块：layertap record --import {module} …，或在 "
        "open_target 之前 import {module}{where}"
    ),
    "targets.outline_run": "文件概要不能运行",
    "targets.outline_save": "文件概要不能保存",
    "targets.own_output": "模型自己的输出无需探针",
    "targets.pickle_refused": (
        "{name}：{member} 是包含张量以外内容的 pickle；因为可能执行代码（{why}），拒绝打开。如果信任该文"
        "件，请自行加载：lt.open_target(torch.export.load(path))；或用 "
        "torch.serialization.add_safe_globals 允许该类"
    ),
    "targets.pickle_unreadable": "无法读取的 pickle：{error}",
    "targets.raised": "{name} 报错 {error}",
    "targets.returns_tuple": "它返回 (output, taps)，其中 taps 是 {count} 个张量的元组：{names}",
    "targets.summary": "{name}：{format} {kind}，{modules} 个模块中有 {sites} 个可以记录",
    "targets.taps_already": "此文件已有探针；若要其他探针，请重新烘焙并编译模型",
    "targets.tuple_of": "含 {count} 个元素的元组",
    "targets.vmfb_by_place": ".vmfb 按位置接收输入；而 {kwargs} 是按名称给出的",
    "targets.where_name": "，其中 NAME 是注册它的 Python 模块",
    "targets.with_baked_taps": "带烘焙探针的 {form}",
}
