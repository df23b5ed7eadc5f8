"""Chinese: the messages of layertap.onnx."""

MESSAGES = {
    "onnx.cross_agree": "ORT_DISABLE_ALL：关闭 ONNX Runtime 的优化后，所有记录的相对差异不超过 {error}",
    "onnx.cross_differ": "ORT_DISABLE_ALL：ONNX Runtime 的优化使 {where} 相对变化 {error}，为估算下限的 {ratio} 倍",
    "onnx.cross_identical": "ORT_DISABLE_ALL：关闭 ONNX Runtime 的优化后，所有记录逐位相同",
    "onnx.integers": "其输出被舍入为整数，而文件中没有对应的比例，因此无法与浮点数比较",
    "onnx.merged": "合并：假定 {output} 是 {scope} 的最后一个操作",
    "onnx.merged_after": (
        "它之后的操作（归一化、激活）被并入其节点，因此不计算它自己的输出；要保留它，请不加优化地导出，然后再量化"
    ),
    "onnx.needs": "{name} 需要 onnx 和 onnxruntime：pip install 'layertap[onnx]'",
    "onnx.no_graph": "{name} 中没有图：文件为空，或不是 ONNX 文件",
    "onnx.no_names": (
        "名称：节点没有模块路径（{SCOPES}），其名称中也没有；因此每个张量以自己的名称列出。要看到模块，请"
        "用 torch.onnx.export(model, …, dynamo=True) 导出，并在之后的工具中保留元数据"
    ),
    "onnx.no_operation": "{name} 中没有进行计算的算子",
    "onnx.quantised": (
        "量化：{quantised} 个操作舍入为 8 位或更少的整数；所记录的是模块反量化后的输出，与下一模块读取的相同"
    ),
    "onnx.tap_outputs": "每个探针都是单独的输出，名称与图中的值相同；元数据 layertap.taps 中有它的位置",
    "onnx.the_output": "输出",
    "onnx.rounded_activation": (
        "合并：{scope} 之后的激活 {output} 已被量化工具移除，因为舍入起到了同样的作用；"
        "该激活的模块不可见，{scope} 显示的是舍入之前的值"
    ),
    "onnx.unreadable": "无法将 {name} 作为 ONNX 读取：{name2}：{error}",
    "onnx.value_names": (
        "名称：只能由值的名称（/layer1/conv/Conv_output_0）得知模块，这是旧版导出器的写法；被优化器改名的值无法看到"
    ),
    "onnx.weights_missing": "{name}：其权重在 {file} 中，而该文件不在旁边；请把两个文件一起复制",
    "onnx.weights_outside": "{name}：其权重声明在文件夹之外的 {file!r} 中；拒绝打开",
}
