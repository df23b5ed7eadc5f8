"""Chinese: the messages of layertap.pytest."""

MESSAGES = {
    "pytest.baseline": "{number} 个 golden 基线",
    "pytest.baselines": "{number} 个 golden 基线",
    "pytest.golden_name": (
        "{name!r} 不能作为基线的名称：只允许字母、数字和 _.+=,-。要使用自己的路径，请用 "
        "layertap.testing.assert_matches(run, path)"
    ),
    "pytest.golden_twice": "layertap_golden 在此测试中被调用了两次；请给第二个基线起名",
    "pytest.group": "模型的基线文件",
    "pytest.no": "0",
    "pytest.unchanged": "；{count} 个未变",
    "pytest.update": "重新写入所运行测试的基线文件",
    "pytest.written": "layertap：写入 {count}",
}
