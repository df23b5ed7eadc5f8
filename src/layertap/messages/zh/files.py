"""Chinese: the messages of layertap.files."""

MESSAGES = {
    "files.bound": "{get} 的上限（{MAX_UNPACKED}）",
    "files.needs_tomli": "在 Python 3.10 上读取 TOML 文件需要 tomli；安装命令：pip install tomli",
    "files.nested": "嵌套过深",
    "files.not_regular": "不是普通文件",
    "files.size": "{size!r} 不是大小；请写字节数，或例如 '512MiB' 或 '2GiB'",
    "files.too_large": "大于 {limit} 字节",
    "files.unpacked": (
        "存储的 {stored} 字节在内存中将占 {unpacked} 字节，超过{bound}；如果文件没有问题，请设置 "
        "{MAX_UNPACKED}，例如 {MAX_UNPACKED}={round}"
    ),
    "files.values": "{value} 个值，超过{bound}",
}
