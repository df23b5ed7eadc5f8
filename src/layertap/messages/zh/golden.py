"""Chinese: the messages of layertap.golden."""

MESSAGES = {
    "golden.absent": (
        "{path}：这里还没有基线文件；请用 `pytest --layertap-update`（或 layertap.testing.save_golden）写入，检查后提交"
    ),
    "golden.again": "文件已损坏、被编辑或被合并；请从 git 恢复，或用 `pytest --layertap-update` 重新写入",
    "golden.asked": "asked 必须是 true 或 false",
    "golden.checksum": "{path}：各行与首行中的校验和不符；{AGAIN}",
    "golden.count": "{path}：应有 {get} 条记录，找到 {count} 行；{AGAIN}",
    "golden.dtypes": "{path}：parameter_dtypes 不是名称列表；{AGAIN}",
    "golden.empty": "{name} 不能作为基线：没有记录任何内容",
    "golden.expected_run": "应为 Run、记录器或路径，得到的是 {name}",
    "golden.failed": "{name} 不能作为基线：{error}",
    "golden.fingerprint": "fingerprint {fingerprint!r} 不是 16 位十六进制数",
    "golden.line": "{path}，第 {number} 行：{what}；{again}",
    "golden.list": "{name} 必须是列表",
    "golden.lost": "丢失了 {lost} 条记录",
    "golden.missing_key": "缺少 {args!r}",
    "golden.newer": (
        "{path}：以格式 {version} 写入；此版本的 layertap 最高支持 {GOLDEN_FORMAT}。请升级：pip install -U layertap"
    ),
    "golden.no_base64": "sketch 不是 base64",
    "golden.no_json": "{word} 不是有效的 JSON",
    "golden.no_object": "不是 JSON 对象",
    "golden.no_sketch": "{name} 不能作为基线：{site} 只有统计量而没有草图，无法证明数值",
    "golden.not_golden": "{path}：不是基线文件；首行没有 layertap_golden；{capitalize}",
    "golden.not_writable": "{path}：无法写入基线文件（{strerror}）",
    "golden.number": "{name} 必须是数",
    "golden.partial": "{name} 不能作为基线，因为它不完整：{problems}。请在 `with` 块结束后保存",
    "golden.sketch_size": "sketch 有 {count} 字节，应为 {value}",
    "golden.string": "{name} 必须是字符串",
    "golden.unreadable": "{path}：无法作为基线文件读取（{strerror}）",
    "golden.whole": "{name} 必须是 {least} 到 {end} 之间的整数",
}
