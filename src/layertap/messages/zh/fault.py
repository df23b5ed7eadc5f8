"""Chinese: the messages of layertap.fault."""

MESSAGES = {
    "fault.learning_layouts": "正在识别各 rank 上数值的布局",
    "fault.left_over": "在用其他数值运行之后，候选模型给出不同的值：其中残留了那次运行的内容",
    "fault.rank_failed": "rank {rank} 引发了错误，因此所有 rank 上的搜索都结束：{text}",
    "fault.ranks": "{count} 个 rank：各自与参考值的相同部分比较",
    "fault.among_equals": "{total} 个模块中有 {equal} 个与同一精度下的参考模型逐位相同，而此模块不同",
    "fault.and_more": " 等另外 {count} 个",
    "fault.autocast": "候选模型通过 autocast 以 {name} 计算：测量舍入时参考模型也如此",
    "fault.blind_tokens": "{blind} 个 token 不关注任何 key（如填充）：其数值不作判定",
    "fault.budget": (
        "参考模型的张量超出 {memory} 字节的预算，且 {parent} 放不下（{error}）；请把 TMPDIR 设到更大的磁"
        "盘，或提高 budget="
    ),
    "fault.by_exchange": "换入参考模型的 {what} 后，它与同一精度下参考模型的差距由 {before:.2g} 降至 {after:.2g}",
    "fault.called_times": "{name} 被调用 {seen} 次，在参考模型中为 {calls} 次",
    "fault.calls_it": "{caller} 调用了它，而它无法单独判定",
    "fault.cancelled": "单独看有误，合起来正确：{listed}",
    "fault.candidate_lacks": "候选模型没有 {page}",
    "fault.candidate_not_repeatable": "候选模型的结果不可重复",
    "fault.coarse": "所有误差都与 {coarse} 运算造成的相当，尽管参数是 {dtype}",
    "fault.compiled": "已编译：内部的值无法替换，因此误差是总误差，可能来自更前面的模块",
    "fault.draws_differ": "两侧的随机数不同（{told}）：请使用 eval() 或同一数据类型",
    "fault.drift": "其输出变化 {drift:.2g}，舍入造成 {rounding:.2g}",
    "fault.expected_module": "{side}是 {name}；应为 nn.Module 或持有它的 target",
    "fault.first_above": "相对误差 {total:.3g}，是按执行顺序首个舍入无法解释的",
    "fault.first_of_kind": "{kind} 类的 {count2} 个模块中有 {count} 个超出下限，这是其中首个",
    "fault.judging_candidate": "正在判定候选模型",
    "fault.looking_closer": "正在检查超出下限的模块",
    "fault.mapping_hint": "（{nowhere}，参考模型中没有）",
    "fault.mapping_useless": "mapping：没有规则把候选模型的模块对应到参考模型的模块{hint}",
    "fault.measuring_rounding": "正在测量舍入的影响",
    "fault.model": "整个模型",
    "fault.most_of_kind": "{shared} 类的大多数模块",
    "fault.never_called": "{name} 从未被调用，而在参考模型中被调用",
    "fault.no_copy": "参考模型无法复制：误差下限仅由扰动输入得到",
    "fault.no_larger": "没有误差超出它所造成的范围，尽管参数是 {dtype}",
    "fault.not_repeatable": "参考模型的结果不可重复：误差下限已包含其波动",
    "fault.not_repeatable_seeded": "即使固定种子，参考模型的结果也不可重复：误差下限已包含其波动",
    "fault.not_rounding": "超出舍入误差",
    "fault.nothing_inside": "其内部无法观察；编译前使用 lt.bake 即可",
    "fault.nothing_paired": "候选模型没有任何模块能与参考模型中运行过的模块配对；请提供 mapping=",
    "fault.observer_changes": "{side}在被观察时计算结果不同：{beside}",
    "fault.observer_rounds": "{side}在被观察时舍入方式不同：{beside}",
    "fault.operators_skipped": "未检查算子：检查时 {lazy} 会丢失原地写入",
    "fault.other_form": "形式不同，因此未替换也未判定：{told}",
    "fault.other_inputs": "两侧的输入不同：{leaf}",
    "fault.other_size": "大小不同，没有影响：{listed}",
    "fault.output_off": "输出的误差超出舍入误差，而可观察的模块都没有超出",
    "fault.output_unexplained": "输出的误差为{times}，而没有模块超出其下限",
    "fault.outputs_apart": "两侧的输出没有同名或同形状的张量，因此无法得知其误差",
    "fault.paired_by_order": "按顺序和形状配对：{page} 与 {path}",
    "fault.precision_taken": "精度：{why}：按该类型的舍入判定",
    "fault.random": "模型使用随机数：两侧逐模块使用相同的种子",
    "fault.reads_it": "{caller} 直接读取它而不调用",
    "fault.rearranged": "数值的排列不同，其误差无法与错误区分：{listed}",
    "fault.reference_compiled": "参考模型是编译过的；请给出编译前的模型",
    "fault.running_candidate": "正在运行候选模型",
    "fault.running_reference": "正在运行参考模型",
    "fault.runtime_says": "候选模型的运行时报告以 {said} 计算",
    "fault.same_bits": "参考和候选处处计算出相同的比特：如果您做了改动，它没有执行",
    "fault.same_object": "参考和候选是同一个对象：如果您做了改动，它没有执行",
    "fault.shared": "{most}同样超出下限：{cause}，不是单个模块造成的",
    "fault.stage": (
        "候选是流水线的一个阶段（{page} 等共 {count} 个模块在其他 rank 上），其值不能与整个参考比较; "
        "请用 lt.record 记录双方，再用 lt.diff 比较，它会合并各阶段和微批次"
    ),
    "fault.stage_stated": (
        "网格有轴 {axis!r}：流水线的各阶段不能与整个参考比较; "
        "请用 lt.record 记录双方，再用 lt.diff 比较，它会合并各阶段和微批次"
    ),
    "fault.times_rounding": "舍入误差的 {total:.3g} 倍",
    "fault.unjudged": (
        "{path} 超出下限（位于{where}），而其中的 {names} 无法判定，因为没有对应模块或形式不同：错误在其"
        "中之一；可用 mapping= 按名称配对模块"
    ),
    "fault.weights": "权重",
    "fault.without_compile": "在未使用 torch.compile 的原模型中发现",
    "fault.without_effect": "没有影响：{cause}：{text}",
}
