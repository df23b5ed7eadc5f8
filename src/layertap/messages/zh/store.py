"""Chinese: what layertap.store says."""

MESSAGES = {
    "store.exists": (
        "{folder} 中已有一次运行；exists='append'（--append）可续写，exists='replace'（--replace）可替换，或换一个文件夹"
    ),
    "store.left_here": "{shards} 个分片未能写入 {url}；它们保留在 {folder} 中，可将其中的文件复制过去",
    "store.local_only": "{path}：{what} 需要本机的文件夹，不能是 URL",
    "store.no_objects": "{url}：这里没有运行记录；请给出传给 layertap.record 的 URL",
    "store.not_deleted": "{url}/{name}：无法删除（{why}）",
    "store.not_put": "{url}/{name}：无法写入（{why}）",
    "store.not_read": "{url}/{name}：无法读取（{why}）",
    "store.put_later": "{url} 的分片 {stem} 将与下一个分片一起重试：{why}",
    "store.scheme": "{url}：layertap 不支持这种存储；可使用文件夹，或 {schemes} 的 URL",
    "store.short": "只到达 {there} 字节，应为 {expected} 字节",
    "store.taken": "{name}：已有另一个写入者写过同名对象",
    "store.unreachable": "{url}：存储没有响应（{why}）",
    "store.in_use": "{folder} 正在被使用；本次写入 {own}",
}
