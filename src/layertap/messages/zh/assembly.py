"""Chinese: the messages of layertap.store.assembly."""

MESSAGES = {
    "assembly.cannot_reduce": "{site}：{dtype} 的各部分不能用 {reduction!r} 合并；请用 .at(rank=...) 读取其中一个",
    "assembly.dtype": "{site}：dtype {dtype} 的各部分无法拼接；请用 .at(rank=...) 读取其中一个",
    "assembly.gaps": (
        "{site}：第 {step} 步记录的各部分不能无缝且不重叠地填满 {shape}，或其位置未知；请用 .at(rank=...) 读取其中一个"
    ),
    "assembly.meshes": (
        "{site}：第 {step} 步各组 rank（{ranks}）持有不同的张量（数据并行？）；请选择其中一组，例如 .at(rank=(0, 1))"
    ),
    "assembly.microbatch": ("{site}（步 {step}）：各次调用不能沿批次拼接：某个 rank 的分片位置未知"),
    "assembly.missing": (
        "{site}：网格的 {total} 个 rank 中只有 {count} 个记录了第 {step} 步；缺少网格位置 {some} 的部分。"
        "请用 .at(rank=...) 读取其中一个"
    ),
    "assembly.no_fingerprint": (
        "{site}：第 {step} 步整体的指纹未知：各 rank 持有的是加数，或某个部分没有记录它在整体中的和；"
        "请用 .at(rank=...) 读取一个部分"
    ),
    "assembly.no_parts": (
        "{site}：第 {step} 步 rank {ranks} 记录的不是同一个分布式张量的各部分；请用 .at(rank=...) 选择一个"
    ),
    "assembly.not_kept": "{site}：第 {step} 步只保留了各部分的统计量；请用 keep='tensor' 重新记录",
    "assembly.reductions": "{site}：{placements} 无法拼接；请用 .at(rank=...) 读取其中一个部分",
    "assembly.replicas": (
        "{site}：第 {step} 步的副本不一致：rank {ranks} 持有不同的比特；请用 .at(rank=...) 读取其中一个"
    ),
    "assembly.same_place": "{site}：第 {step} 步有两个 rank 声称位于网格的同一位置",
    "assembly.summands": (
        "{site}：第 {step} 步各 rank 持有的是加数，由其统计量得不到总和的统计量；若保留了张量，.tensor() 会把它们相加"
    ),
    "assembly.unknown_mesh": (
        "{site}：运行没有说明 rank {ranks} 中哪些组成 {mesh} 的网格；请用 .at(rank=...) 读取其中一个"
    ),
}
