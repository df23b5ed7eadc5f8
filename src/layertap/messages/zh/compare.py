"""Chinese: the messages of layertap.compare."""

MESSAGES = {
    "compare.all_identical": "全部 {total} 个位置逐位相同",
    "compare.all_within_rounding": "全部 {total} 个位置的差异都在舍入误差范围内",
    "compare.all_within_tolerances": "全部 {total} 个位置都在给定的容差之内",
    "compare.both_masks": "依据两侧的注意力掩码",
    "compare.common_part": "已比较：整体 {whole} 中从 {begin} 起的 {part}",
    "compare.file_cut": (
        "{run}/tensors/{file}：读取第 {step} 步的 {site} 时，文件被另一个程序截短；请在没有程序写入时重新比较"
    ),
    "compare.floor_other_input": "floor {name} 不是参考模型在同一输入上的运行：{reasons}",
    "compare.masks_and_ids": "依据注意力掩码；其中的 id 相同",
    "compare.nothing_kept": "张量和草图（sketch）都没有保存",
    "compare.nothing_matched": "两次运行没有任何位置能够配对；请提供 mapping=",
    "compare.number_expected": "{name}={value!r}：应为不小于 0 的数",
    "compare.of_run": "{name}：{text}",
    "compare.one_side_only": "已配对的 {total} 个位置一致，但有 {count} 个位置只在一侧有记录",
    "compare.other_part": "参考侧记录的是整体 {whole} 中的 {part}，候选侧记录的是另一部分",
    "compare.one_mask": "依据{side}侧的注意力掩码；另一侧的输入未知",
    "compare.overlap": (
        "长度 {key} 和 {key2}：{sites} 处的 {part} {both} 个位置相同（相对距离约 {distance:.1g}），因此只比较这些位置"
    ),
    "compare.padding_ids": "{side}侧的{end}端有 {extra} 个 id {flat}；其余相同",
    "compare.part_needs_tensors": "{part}；两侧都用 keep='tensor' 记录即可比较",
    "compare.part_of": "{site}：{part}",
    "compare.parts_in_common": "{total} 对记录中有 {count} 对只有张量的一部分是共有的；{first}",
    "compare.sites_above": "{total} 个位置中有 {count} 个超出舍入误差的范围",
    "compare.sites_not_judged": "{total} 个位置中有 {count} 个无法判定：{why}",
    "compare.sites_or_mapping": "用 sites=（--sites）只判定指定的位置，用 mapping= 配对名称不同的位置",
    "compare.sites_outside": "{total} 个位置中有 {count} 个超出给定的容差",
    "compare.summand": "{site} 记录的是第 {rank} 号进程的加数（{placements}），不是最终的值；请在归约之后记录",
    "compare.tolerance_and_floor": "rtol 和 atol 取代误差下限；请只给出它们或 floor=，不要同时给出",
    "compare.unknown_part": (
        "{site} 只记录了一部分（{part}），且不知道它在整体中的位置；请记录整体，或比较分片方式相同的运行"
    ),
    "compare.without_padding": (
        "去除填充后比较：参考侧 {lengths} 个位置、候选侧 {lengths2} 个位置中各有 {real} 个有效位置（{why}）"
    ),
}
