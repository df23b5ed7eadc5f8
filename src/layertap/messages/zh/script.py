"""Chinese: the messages of layertap.script."""

MESSAGES = {
    "script.data": "{name}：data.pkl 是 {error}",
    "script.for_root": "（根模块）",
    "script.foreign": "{name} 需要类 {foreign}：必须先导入注册它的库",
    "script.input_missing": "缺少输入 {missing}；它接收 {map}",
    "script.no_class": "{name}：其代码中没有类 {root}",
    "script.no_forward": "{name} 的代码中没有声明返回类型的 forward；不能带探针保存",
    "script.no_own_value": "{kind} 在文件中没有自己的值（它返回输入，或其结果从未使用）；请在它之前的模块加探针",
    "script.no_value": "{short} 在文件中没有自己的值（它返回输入，或没有返回值）",
    "script.not_called": "文件中没有调用它",
    "script.not_script": "{name}：{member} 不是 TorchScript 的代码：{error}",
    "script.recursive": "模块包含自身：{path}…",
    "script.returns": "它返回 (output, taps)，其中 taps 是按执行顺序排列的 (site, tensor) 列表",
    "script.types": "{kind} 返回 {types}，其中没有可加探针的张量；请在它调用的模块加探针",
}
