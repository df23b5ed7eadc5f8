"""Chinese: the messages of layertap.openvino."""

MESSAGES = {
    "openvino.asked": "精度：请求了 {asked}，但在此 CPU 上 OpenVINO 以 f32 计算",
    "openvino.folding": (
        "折叠：OpenVINO 把相继的常量因子（或偏移）合并为一个；以此结尾且后面还有一个的模块，可能显示合并之前的值"
    ),
    "openvino.hint": "{why}；config={{'INFERENCE_PRECISION_HINT': 'f32'}} 可以关闭",
    "openvino.needs": "{name} 需要 openvino：pip install 'layertap[openvino]'",
    "openvino.no_net": "{name} 不是 OpenVINO IR：其中没有 <net>",
    "openvino.no_paths": (
        "{name}：其操作没有模块路径（__module.…），无法区分模块；请转换模型本身（"
        "openvino.convert_model(model, example_input=…)），而不是 ONNX 文件或导出的程序"
    ),
    "openvino.precision": "精度：OpenVINO 以 {kind} 计算 {count} 个操作，与其张量的类型无关",
    "openvino.tap_outputs": "每个探针都是单独的输出，其张量名为 layertap:SITE",
    "openvino.unreadable": "无法将 {name} 作为 OpenVINO IR 读取：{error}",
}
