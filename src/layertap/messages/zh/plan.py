"""Chinese: what layertap.plan says."""

MESSAGES = {
    "plan.action": "{pattern}：{wish!r} 不是计划中的动作；应为 'skip'",
    "plan.already": "{done} 已被跳过；请先撤销，或从计划中去掉",
    "plan.block_adds": (
        "{block} 相加的不是 {value} 的返回值（残差带缩放，或分支之后有 norm）；请指定输出直接相加的模块"
    ),
    "plan.block_shape": "{block} 返回的张量与输入形状不同；请直接指定模块",
    "plan.bypassed": "{name}：{plan}；权重仍在模型中",
    "plan.check_differs": "绕过分支的模型与去掉分支的模型输出不同（{plan}）；未剪枝",
    "plan.damaged": "{value} 已损坏：{error}",
    "plan.how": "how={how!r}：请选择 'bypass' 或 'physical'",
    "plan.kind": "计划应为字符串，或从路径到 'skip' 的映射，实为 {name}",
    "plan.no_blocks": (
        "{name} 中没有 layertap 能识别的、含 attention 或 feed-forward 的重复块；请直接指定模块：plan="
        '{{"encoder.3.branch": "skip"}}'
    ),
    "plan.no_branch": "{pattern!r} 不是模型的分支；模型有 {near}",
    "plan.no_class": "transformers 没有 {name}；请给出该类的完整模型：load_pruned(folder, model)",
    "plan.no_file": "{path} 中没有 {plan_file}：它不是由 save_pruned 写入的",
    "plan.no_layer": "{term!r}：没有第 {numbers} 层，模型共 {count} 层",
    "plan.no_stand_in": "{path} 返回的张量与输入形状不同，无法跳过",
    "plan.no_tensor": "被跳过的分支在调用时没有得到张量",
    "plan.no_vocabulary": "{name} 没有词表，无法生成输入；请给出 inputs=，以便通过一次运行确认其分支",
    "plan.not_pruned": "该 {name} 未剪枝；请先剪枝：small = lt.prune(model, plan)",
    "plan.not_run": "{value} 在这些输入下没有运行，无法确认它是分支",
    "plan.nothing": "计划没有跳过任何内容",
    "plan.range": "{term!r}：{part!r} 不是层或范围；n 为层数（{count}）",
    "plan.reload_differs": "{path}：重新加载的模型与保存时的计算结果不同",
    "plan.skip": "跳过 {value}",
    "plan.tensors": "{path}：计划之外有 {count} 个张量缺失或多余（首个：{lost}）",
    "plan.term": "{term!r} 不是计划的一部分；应为 {kinds}，方括号中为层：mlp[n//2:]",
    "plan.transformers": "加载该模型需要 transformers；安装：pip install 'layertap[hf]'",
}
