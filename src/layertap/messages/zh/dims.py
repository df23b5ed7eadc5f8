"""Chinese: the messages of layertap.store.dims and layertap.store.stated."""

MESSAGES = {
    "dims.at": "{problem}\n    {text}\n    {mark}",
    "dims.axis": "网格没有轴 {axis!r}，它的轴是 {axes}；请使用其中之一，或把该轴加入网格",
    "dims.axis_twice": "轴 {axis!r} 用了两次；一个轴只能切分一个维度，或表示各 rank 持有加数",
    "dims.count": "{site}：标注有 {count} 个词，而张量有 {dims} 个维度 {shape}；请为每个维度写一个词",
    "dims.divide": (
        "{site}：维度 {dim} 的 {length} 个位置不能在 {axis!r} 上等分为 {parts} 份；请检查维度、顺序和轴的大小"
    ),
    "dims.held": ("{site}：按标注 rank 0 持有 {stated}，但每个 rank 的形状都不同，rank 0 为 {held}；请更正标注或网格"),
    "dims.in_rule": "{where}：规则 {pattern!r}：{problem}",
    "dims.mesh": (
        "mesh：应为按 rank 顺序排列的轴及其大小，如 {{'cp': 2, 'tp': 2}}，"
        "或带 mesh_dim_names 的 DeviceMesh；得到 {given!r}"
    ),
    "dims.mesh_missing": (
        "{where}：规则 {pattern!r} 有 dims，但映射没有 mesh；请添加 'mesh': {{'cp': 2, 'tp': 2}}，轴按 rank 顺序排列"
    ),
    "dims.mesh_ranks": (
        "网格（{mesh}）有 {count} 个 rank，参考有 {reference} 个，候选有 {candidate} 个；请写出持有分片的那一侧的所有轴"
    ),
    "dims.mesh_world": "网格（{mesh}）有 {count} 个 rank，而作业有 {world} 个；请写出作业的所有轴",
    "dims.not_in_mesh": "rank {rank} 不在网格中（{mesh}，rank {ranks}）",
    "dims.order": "未知的顺序 {order!r}；应为 {orders}，或不写，表示依次切分",
    "dims.reduction": "{way!r}：应为 {ways} 之一，所有轴相同",
    "dims.unused": "mapping：规则 {pattern!r} 的 dims 没有匹配任何位置；模式须匹配位置的完整名称",
    "dims.word": "应为 t、t[cp] 或 t[cp:zigzag] 这样的词，加数在最后写 +tp",
}
