"""Chinese: the messages of layertap.bake."""

MESSAGES = {
    "bake.compiled": (
        "bake 需要编译前的模型，而这已是 TorchScript；请保存它并对文件加探针：lt.record(lt.open_target('model.pt'), …)"
    ),
    "bake.layout": "布局在首次调用之后才确定：请先运行、trace、导出或编译带探针的模型",
    "bake.module": "bake 需要 nn.Module，得到的是 {name}",
    "bake.never_called": "在这次前向计算中从未被调用（容器、未走的分支，或直接使用其参数）",
    "bake.no_copy": "{kind_of} 无法复制（{name}：{error}）；record(model, …) 不需要复制",
    "bake.no_leaves": "它被调用了，但没有出现请求的叶子",
    "bake.no_script": (
        "带探针的模型可以 trace、导出和编译，但不能 script；请 script 原模型并对文件加探针："
        "torch.jit.script(model).save('model.pt')，然后 lt.record(lt.open_target('model.pt'), …)"
    ),
    "bake.no_tap": "它没有探针；此类文件只能看到 bake 时加入的位置",
    "bake.no_tensor": "没有张量：{why}",
    "bake.nothing": "请求的 {count} 个模块都没有以张量调用：{kinds}",
    "bake.what": "what={what!r}：图可以返回 {ROLES}；梯度请用 record(…)",
}
