"""Chinese: the messages of layertap.weights.pruning."""

MESSAGES = {
    "pruning.adds_else": (
        "{block} 所加的不是 {branches} 的返回值（残差被缩放，或对整个残差流做归一化）；请直接指明其输出被相加的模块"
    ),
    "pruning.already": "{path} 已被跳过；请先撤销，或从计划中去掉",
    "pruning.beyond": "{path}：计划之外有 {count} 个张量缺失或多余（首个：{first}）",
    "pruning.block_shape": "{path} 返回的张量与其输入形状不同；请直接指明模块",
    "pruning.damaged": "{path} 已损坏：{error}",
    "pruning.did_not_run": "{path} 在这些输入下没有运行，无法确认为分支",
    "pruning.empty": "计划没有跳过任何东西",
    "pruning.how": "how={how}：请选择 'bypass' 或 'physical'",
    "pruning.loaded_differs": "{path}：重新加载的模型与保存的模型计算结果不同",
    "pruning.no_blocks": (
        '{model} 没有 layertap 认识的、含注意力或前馈部分的重复块；请直接指明模块：plan={{"encoder.3.branch": "skip"}}'
    ),
    "pruning.no_branch": "{pattern} 不是模型的分支；模型有 {near}",
    "pruning.no_file": "{path} 中没有 {file}：它不是由 save_pruned 写出的",
    "pruning.no_layer": "{term}：没有第 {layer} 层，模型共 {count} 层",
    "pruning.no_tensor": "被跳过的分支在调用时没有张量",
    "pruning.no_vocabulary": "{model} 没有可用来构造输入的词表；请给出 inputs=，以便运行一次来确认其分支",
    "pruning.not_called": "{path} 从未被调用：调用方直接读取其参数，因此无法跳过；未剪枝",
    "pruning.not_its_shape": "{path} 返回的张量与其输入形状不同：无法替代",
    "pruning.not_pruned": "这个 {model} 没有剪枝；请先剪枝：small = lt.prune(model, plan)",
    "pruning.nothing": "无",
    "pruning.plan_type": "计划须为文本，或路径到 'skip' 的映射，实际为 {type}",
    "pruning.range": "{term}：{part} 不是层或范围；n 是层数（{count}）",
    "pruning.skip": "跳过 {paths}",
    "pruning.still_there": "{model}：{plan}；权重仍在",
    "pruning.term": "{term} 不是计划的一部分；应为 {kinds}，层写在方括号中：mlp[n//2:]",
    "pruning.ways_differ": "绕过分支的模型与去掉分支的模型结果不同（{plan}）；未剪枝",
    "pruning.wish": "{pattern}：{wish} 未知；计划只能是 'skip'",
}
