"""Chinese: the messages of layertap.neuron."""

MESSAGES = {
    "neuron.all_padding": "rank 0 持有桶的前 {size} 个位置，全部是填充",
    "neuron.async_mode": "async_mode：无法区分捕获属于哪次调用；layertap 拒绝这样的 app",
    "neuron.async_on": (
        "async_mode 已打开：一次调用会提前启动下一次，无法区分捕获属于哪次调用；请以 async_mode=False 编译"
    ),
    "neuron.bucketing": "分桶已打开：只有第一个桶的捕获是真实的，其他的是占位",
    "neuron.by_hand": "模型源码中手工注册了 {count} 个张量；它们没有对应的位置",
    "neuron.captures_nothing": "{name} 编译时没有配置任何捕获",
    "neuron.experts": "专家：在张量并行下，其输出是 rank 0 的加数；请捕获其外层模块",
    "neuron.first_output": "Neuron：只捕获模块的第一个输出张量；它返回的其他内容无法看到",
    "neuron.fixed": "app 捕获什么在编译时就已确定：请先调用 neuron.prepare(neuron_config, sites)",
    "neuron.fused_kernels": "融合内核已打开：权重由内核使用的模块不会被调用，只给出占位",
    "neuron.fused_residual": "qkv_kernel_fuse_residual_add：对于提示词，一层的捕获是其 MLP 的输出，而不是隐藏状态",
    "neuron.hidden_states": (
        "{count2} 个隐藏状态中有 {count} 个没有捕获：{missing}；已捕获的在 neuron.run(app, inputs).run 中"
        "，按名称存放。用 prepare(…, record_layer_outputs=True) 可全部捕获"
    ),
    "neuron.its_input": "它的输入",
    "neuron.its_output": "它的输出",
    "neuron.last_token": "只有最后一个 token：设备在此不计算其他 token",
    "neuron.later": (
        "qkv_kernel_fuse_residual_add 把一层最后的加法移到下一层的内核中，因此设备上没有任何一个张量是"
        "{what}；要捕获隐藏状态，请在编译时关闭它"
    ),
    "neuron.layer_outputs": "record_layer_outputs=True 需要 num_layers=，即解码器层数",
    "neuron.lm_head": "lm_head：对于提示词，设备只计算最后一个 token",
    "neuron.needs_layers": "sites：{text!r} 需要 num_layers=（或 model=，一个 Hugging Face 模型）",
    "neuron.needs_nxdi": (
        "prepare 需要 NxD Inference（neuronx-distributed-inference），来自 Neuron 自己的软件源：pip "
        "install neuronx-distributed-inference --extra-index-url，地址见 AWS 的安装指南"
    ),
    "neuron.no_call": "尚未观察到 app 的调用：先调用一次 layertap.targets.neuron.open_app(app)，再运行它",
    "neuron.no_hooks": "{name}.models[0].model 是没有层的 {name2}：不能加钩子，只能看到它的输出",
    "neuron.no_logits": (
        "logits 为 None：在设备上采样时模型只返回 token；编译时须同时设置 output_logits=True 和 "
        "OnDeviceSamplingConfig 才会返回 logits；layertap.targets.neuron.prepare 会一并设置"
    ),
    "neuron.no_tensor": "没有得到它的张量：编译的模型捕获的模块比列出的少",
    "neuron.none_ran": "{name} 被调用了，但其编译的模型都没有运行",
    "neuron.not_an_app": (
        "{name} 不是 NxD Inference 的 app：应有 models（ModelWrapper 列表）和 {ENDS}；每次调用都经过它们"
        "，缺少它们时捕获可能属于更早的调用"
    ),
    "neuron.not_asked": "未请求",
    "neuron.nothing": (
        "设备没有返回任何捕获。只有编译时同时设置 tensor_capture_config、output_logits=True 和 "
        "on_device_sampling_config，才会返回捕获，否则为 None 且不报错："
        "layertap.targets.neuron.prepare(neuron_config, sites) 会设置这三项；然后重新编译"
    ),
    "neuron.one_binary": "编译后的模型是一个二进制（没有层的 ScriptModule）；只能看到配置为捕获的内容",
    "neuron.only_lists": "sites：{text!r}：没有 model= 时只支持数字列表，如 [0,30,61]",
    "neuron.other_models": "{name} 的编译模型与打开时不同，其调用没有被观察到：先 neuron.release(app)，再重新打开",
    "neuron.padded": "填充到 {size} 个 token，截到实际的 {true} 个",
    "neuron.padding": "NaN 填充：此处没有捕获",
    "neuron.placeholder": (
        "占位 zeros(1)：模块没有被调用（名称是否正确？其权重是否由融合内核使用？），或此桶在第一个之后编"
        "译，而只有第一个桶有捕获"
    ),
    "neuron.plan": "将捕获 {count} 个模块；请现在编译：它们是编译模型的一部分",
    "neuron.plan_nothing": "没有要捕获的内容：配置保持不变，没有开销",
    "neuron.qkv": "query、key、value 在同一个张量中，其宽度未知",
    "neuron.sampling_on": "设备上采样原为关闭；已打开，否则捕获为 None",
    "neuron.sequence_parallel": "sequence_parallel_enabled：对于提示词，残差流中只捕获 rank 0 的 token",
    "neuron.shape_nothing": "{shape}。{nothing}",
    "neuron.shard": "rank 0 的分片，沿最后一轴 {degree} 份之一：{whole} 中的 {width}",
    "neuron.summand": "rank 0 的加数，{degree} 份之一：专家的输出在此模块之后相加",
    "neuron.tokens_of_rank": "{true} 个 token 中 rank 0 的 {here} 个，{tp_degree} 份之一（序列并行）",
    "neuron.tp": "tp_degree 为 {degree}：分片张量的捕获是 rank 0 的分片",
    "neuron.true_unknown": "{size} 个位置，其中哪 {true} 个是 token 未知",
    "neuron.unfinished": "app 的上一次调用没有结束，因此没有它的捕获；更早调用的捕获已丢弃",
}
