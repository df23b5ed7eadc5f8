"""Chinese: the messages of layertap.matching."""

MESSAGES = {
    "matching.begins": "{site} 在基线中以 {begins} 开头，在本次运行中以 {begins2} 开头",
    "matching.damaged": "原来已损坏",
    "matching.new": "新建",
    "matching.this_run": "本次运行",
    "matching.torch": "基线由 torch {made} 写入，本次运行由 torch {made2} 记录",
    "matching.update": "如果错误在 {name} 中：用 pytest --layertap-update 重新写入",
    "matching.was": "原来：{verdict}",
    "matching.was_fault": "原来：存在错误，首个在 {site}",
}
