"""Chinese: the messages of layertap.align."""

MESSAGES = {
    "align.after_dropping": "去掉{dropped}之后",
    "align.as": "`{one}` 对应 `{other}`",
    "align.candidate_counts_embedding": "候选侧把嵌入层计为 0",
    "align.content": "content：剩余记录中配成 {pairs_text}",
    "align.content_too_many": "content：形状相同而未配对的记录有 {count} 对 {count2} 条，数量太多，无法匹配",
    "align.counted_differently": "两侧的步编号方式不同；按 epoch 和 batch 配对",
    "align.first_layers": "参考侧的第一层是 {base}，候选侧的是 {base2}",
    "align.first_leaf": "把元组的第一个张量或唯一的张量视为输出",
    "align.layout_axis": "layout {text!r}：{name} 需要第 {last} 轴，而形状是 {shape}",
    "align.layout_elements": "layout {text!r}：第 {axis} 轴有 {shape} 个元素",
    "align.layout_empty": "layout 为空；若各轴一致，请省略它",
    "align.layout_expected": (
        "layout {text!r}：应为 transpose(axis,axis)、merge(axis,next axis)、split(axis,size,size,…) 或 "
        "slice(axis,start,stop)"
    ),
    "align.layout_neighbours": "layout {text!r}：只能合并相邻的轴；请先转置",
    "align.layout_product": "layout {text!r}：第 {axis} 轴有 {shape} 个元素，而不是 {product} 个",
    "align.mapping": "mapping：{count} 条规则配成 {pairs_text}",
    "align.mapping_absent": "mapping：`{site}` 变成 `{name}`，而参考侧没有它",
    "align.mapping_collides": "mapping：{sites} 都变成 `{name}`；因此都不配对",
    "align.mapping_keys": "{where}：{pattern!r} 接受 'to' 和 'layout'，或 'dims'，得到的是 {map}",
    "align.mapping_more": "mapping：……另有 {count} 条类似情况",
    "align.mapping_regex": "{where}：{pattern!r} → {to!r} 不是正则表达式及其替换（{error}）",
    "align.mapping_replacement": "{where}：{pattern!r}：替换内容必须是字符串，得到的是 {to!r}",
    "align.mapping_shape": "mapping {path}：应为 {{regex: replacement}}，得到的是 {name}",
    "align.mapping_suffix": "mapping {path}：应为 .yaml、.json 或 .toml 文件",
    "align.mapping_unreadable": "mapping {path}：无法读取（{reason}）",
    "align.mapping_unused": "mapping：规则 {pattern!r} 在候选侧没有匹配",
    "align.moments_alone": "{side}侧的 {count2} 个 {word} 中有 {count} 个（{some}）只在该侧有",
    "align.names_confirmed": "content：内容证实了 {pairs_text}的名称",
    "align.numbering_ends": "numbering：两端配成 {pairs_text}（{ends}）",
    "align.numbering_pairs": "{pairs_text}，`{site}` 对应 `{site2}`，依此类推（{why}）",
    "align.numbers_from": "一侧从 {first} 开始，另一侧从 {first2} 开始",
    "align.one_pair": "1 对",
    "align.only_fit": "两侧编号唯一能对应的方式",
    "align.only_moment": "参考侧唯一的 {word} 是 {ours}，候选侧是 {theirs}；视为相同",
    "align.order": "order：按位置、种类和形状配成 {pairs}，首先是 `{one}` 对应 `{other}`",
    "align.paired_with": "`{one}` 与候选侧的 `{other}` 配对",
    "align.pairs": "{count} 对",
    "align.prefix": "prefix：{pairs}，{how}",
    "align.prefix_of": "{side}侧的 `{drop}.`",
    "align.rank_parts": "{side} 的 {count} 个进程各持有另一侧唯一进程所持张量的一部分",
    "align.reference_counts_embedding": "参考侧把嵌入层计为 0",
    "align.renumbered": (
        "名称与内容不符：`{stem}` 的编号不同（候选侧 {how}），{count} 层的内容表明了这一点。{example}"
    ),
    "align.renumbered_unproven": (
        "`{stem}` 的编号不同（候选侧 {how}），只有这样两侧的编号才能对应；没有任何一层的内容能够证实。{example}"
    ),
    "align.step": "{way}：{pairs}",
    "align.same_bits_other_name": "候选侧的 `{candidate}` 与参考侧的 `{reference}` 逐位相同",
    "align.shifted": "{why}：{pairs_text} 按内容配对，与名称不同",
    "align.states": "{pairs}，`{states}*` 对应 `{layers}*`（{way}）",
    "align.states_by_layer": "每层一个",
    "align.states_with_embedding": "第一个是嵌入层输出，最后一个在最终归一化之后",
    "align.text_order": "order：{side}侧的记录按文本顺序排列（10 在 2 之前）；按自然顺序读取",
    "align.uncertain_names": (
        "无法确定两侧的 `{stem}` 如何对应：内容和编号都不能说明。现按名称配对；可用 mapping= 指定"
    ),
    "align.unmatched": "unmatched：参考侧 {count} 条，候选侧 {count2} 条",
    "align.without_wrappers": "从路径中去掉 `_orig_mod` 等包装层之后",
    "align.yaml_missing": "YAML 格式的 mapping 需要 pyyaml；安装命令：pip install pyyaml",
}
