"""Chinese: the messages of layertap.receipt."""

MESSAGES = {
    "receipt.and_more": " 等另外 {count} 个",
    "receipt.and_more_sites": " 等另外 {count} 个",
    "receipt.calls": "{how}：{calls} 次调用",
    "receipt.changed": "记录期间被替换、添加或移除的模块没有记录：{named}",
    "receipt.direct": "以 module.forward(…) 方式调用",
    "receipt.dropped": "因预算限制未保存：{count} 个张量",
    "receipt.kept": "保存张量 {size}",
    "receipt.lost": "丢失：{count} 条记录无法写入",
    "receipt.maybe_part": (
        "{sites}：参数是分片的，而输出是普通张量：它可能是整体，也可能只是第 {rank} 号进程上的部分；使用 "
        "use_local_output=False 即可同时记录分片方式"
    ),
    "receipt.nothing_captured": "请求的 {count} 个位置没有捕获到任何内容：",
    "receipt.part": (
        "{sites}：只记录了第 {rank} 号进程（共 {ranks} 个）上的部分，{placements}：整体 {whole} 中的 {part}"
    ),
    "receipt.reason": "  {names}{more}：{why}",
    "receipt.recomputed": "由激活检查点重新计算",
    "receipt.recorded": (
        "已记录 {records} 个张量，来自 {sites} 个位置中的 {fired} 个，共 {steps} 步，{kept}；用时 "
        "{seconds} 秒，其中 layertap 占 {overhead} 秒（{share}）"
    ),
    "receipt.silent": "没有数据的位置：{total} 个中的 {count} 个",
    "receipt.skipped": "不是张量的值：{listed}",
    "receipt.statistics_only": "仅统计量",
    "receipt.stopped": "提前停止：{error}",
    "receipt.unknown_shape": "形状未知",
}
