"""Chinese: the messages of layertap.opaque."""

MESSAGES = {
    "opaque.around_neff": (
        "{name} 是包着 Neuron 可执行文件的 TorchScript（类 {holder}）：各层在 NEFF 内部，无法看到，且此进"
        "程没有 torch_neuronx，无法运行。编译前：layertap.targets.neuron.prepare(neuron_config, sites)；"
        "之后用 layertap.targets.neuron.run(app, …) 记录"
    ),
    "opaque.bake": (
        'tapped = lt.bake(model, sites="…")，然后编译 tapped 而不是 model；output, taps = tapped.split(raw)'
    ),
    "opaque.damaged": "{text}：压缩包已损坏或不完整；请重新复制",
    "opaque.device_code": "它只包含融合后的设备代码及其输出",
    "opaque.empty": "{name} 是空的",
    "opaque.frozen": "冻结把它合并为一个图并去掉了模块名称；请打开 torch.jit.freeze 之前的文件",
    "opaque.frozen_script": "冻结的 TorchScript",
    "opaque.invisible": "{name} 是{what}：无法看到其中的层，因为{why}。编译前：{BAKE}",
    "opaque.iree": "它只包含设备代码及其输出；其中没有模块或算子的名称",
    "opaque.is_engine": "TensorRT 引擎",
    "opaque.is_neff": "Neuron 可执行文件（NEFF）",
    "opaque.is_package": "AOTInductor 二进制包",
    "opaque.is_so": "共享库（AOTInductor）",
    "opaque.is_vmfb": "IREE 字节码",
    "opaque.machine_code": "它只包含机器码及其输出",
    "opaque.needs_class": (
        "{name} 需要类 torch.classes.{holder}，而此进程中没有；请先导入注册它的库。该类内部的运行无法看到"
        "。编译前：{BAKE}"
    ),
    "opaque.neff": "它只包含设备指令及其输出；其中没有模块名称",
    "opaque.no_file_of": "{name} 不是 torch.jit.save 或 torch.export.save 写的文件",
    "opaque.no_module_names": "它只包含机器码及其输出；其中没有模块名称",
    "opaque.open_model": "请打开它们所属的模型：file.py:factory 或 hf:PATH",
    "opaque.pickle": "{text}：这是 pickle，可能执行代码，因此不打开；{way_out}",
    "opaque.weights": "{name} 中是权重或 pickle 的模型（torch.save），不是可以运行的程序；{way_out}",
}
