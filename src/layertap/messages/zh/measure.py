"""Chinese: the messages of layertap.measure."""

MESSAGES = {
    "measure.cannot": "无法测量此张量：{reason}",
    "measure.freed": "其内存已被释放",
    "measure.layout": "布局为 {removeprefix}；只能测量稠密张量",
    "measure.merge_empty": "merge 至少需要一个部分",
    "measure.merge_mixed": "merge 得到的部分有的带草图，有的不带；请以同样方式测量所有部分",
    "measure.meta": "meta 张量没有值",
    "measure.nested": "嵌套张量",
    "measure.no_memory": "{kind} 没有自己的内存",
    "measure.one_complex": "一侧是复数：参考 {dtype}，候选 {dtype2}",
    "measure.out_of_memory": "没有足够的内存来比较两个张量",
    "measure.pair_bytes": "{side}是 {dtype} {shape}：应有 {expected} 个原始字节，得到 {got} 个",
    "measure.pair_dtype": "{side}的类型 {dtype} 无法比较；支持：{MANTISSA}",
    "measure.pair_slab": "应为 {PAIR_SLAB_BYTES} 个对齐的字节，得到 {numel} 个",
    "measure.partly_freed": "其部分内存已被释放",
    "measure.quantized": "量化张量（{dtype}）；请先反量化",
    "measure.rebuild_signs": "{LIBRARY} 由另一个 signs.c 编译；请再次运行 `pip install -e .`",
    "measure.rebuild_onepass": "{LIBRARY} 由另一个 onepass.c 编译；请再次运行 `pip install -e .`",
    "measure.rebuild_pair": "{LIBRARY} 由另一个 pair.c 编译；请再次运行 `pip install -e .`",
    "measure.shapes": "形状不同：参考 {shape}，候选 {shape2}",
    "measure.sketch_bytes": "草图应有 {value} 字节，得到 {count} 字节；张量测量时是否没有生成草图？",
    "measure.slab": (
        "需要连续的张量和 {SLAB_BYTES} 个对齐的字节，得到的步长为 {stride}，{numel} 字节，位于 {data_ptr:#x}"
    ),
    "measure.statistic_numbers": "一个统计量应有 {LENGTH} 个数，得到 {count} 个",
    "measure.tolerances": "rtol 和 atol 应不小于 0，eps 应不小于 1e-30，得到的是 {rtol}、{atol}、{eps}",
    "measure.two_tensors": "应为两个形状相同的连续张量，得到 {sides}",
    "measure.vmap": "torch.vmap 中的一个张量代表多个张量",
    "measure.with_strides": "{shape}，步长 {stride}",
    "measure.words": "{size} 字节不是 {size2} 字节的连续字的整数倍",
    "measure.wraps": "{name} 包装了其他张量；请测量那些张量",
}
