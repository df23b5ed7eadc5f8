"""Chinese: what layertap says about object storage."""

MESSAGES = {
    "storage.left_here": "{shards} 个分片未能写入 {url}；它们保留在 {folder} 中，可将其中的文件复制过去",
    "storage.local_only": "{path}：{what} 需要本机的文件夹，不能是 URL",
    "storage.no_objects": "{url}：这里没有运行记录；请给出传给 layertap.record 的 URL",
    "storage.not_deleted": "{url}/{name}：无法删除（{why}）",
    "storage.not_put": "{url}/{name}：无法写入（{why}）",
    "storage.not_read": "{url}/{name}：无法读取（{why}）",
    "storage.put_later": "{url} 的分片 {stem} 将与下一个分片一起重试：{why}",
    "storage.scheme": "{url}：layertap 不支持这种存储；可使用文件夹，或 {schemes} 的 URL",
    "storage.short": "只到达 {there} 字节，应为 {expected} 字节",
    "storage.taken": "{name}：已有另一个写入者写过同名对象",
    "storage.unreachable": "{url}：存储没有响应（{why}）",
}
