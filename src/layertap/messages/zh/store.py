"""Chinese: what layertap.store says."""

MESSAGES = {
    "store.in_use": "{folder} 正在被使用；本次写入 {own}",
}
