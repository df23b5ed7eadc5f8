"""Chinese: the messages of layertap.engine."""

MESSAGES = {
    "engine.address": "address={address!r} 用于 engine='ray'（--engine ray）；请同时给出两者，或都不给",
    "engine.already": "address={address!r}：本程序已连接到一个 Ray；请先调用 ray.shutdown()，或去掉地址以使用该 Ray",
    "engine.bad_address": "{address!r} 不是 Ray 集群的地址；应为 HOST:PORT 或 auto",
    "engine.cannot_run": "{name}：Ray 工作进程无法运行：{why}；工作进程需要与本程序相同的 layertap 和 torch",
    "engine.closed": "此引擎未打开；请在 with 语句中使用：with RayEngine() as engine: ...",
    "engine.device": "模型在 {device} 上，而 Ray 工作进程用处理器计算；请将其移到处理器上，或去掉 engine=",
    "engine.failed": "{name}：{why}（由 Ray 工作进程抛出）",
    "engine.fingerprints": "指纹在本进程中计算；请去掉 --engine",
    "engine.in_memory": "{name} 在内存中，Ray 工作进程无法读取；请给出其文件夹或文件，或去掉 engine=",
    "engine.in_worker": "{name}，在 Ray 工作进程中：\n{trace}",
    "engine.live_weights": "{name} 在本进程中，Ray 工作进程无法读取；请保存后给出其路径，或去掉 engine=",
    "engine.lost": "{name}：处理它的 Ray 工作进程均已丢失（已重试 {retries} 次）：{kind}：{why}",
    "engine.needs_ray": "engine='ray' 需要 Ray；安装命令：pip install 'layertap[ray]'",
    "engine.not_sent": "{name} 无法发送给 Ray 工作进程：{why}",
    "engine.not_shared": "{folder}：Ray 工作进程在那里写入的 {name} 在此处不存在；工作进程需要使用同一文件夹",
    "engine.not_started": "Ray 未能在 {address} 上启动：{why}",
    "engine.other_model": (
        "Ray 工作进程得到的模型与此模型不同：{count} 个张量有差异，其中有 {name}；build= 每次必须给出相同的权重"
    ),
    "engine.run_changed": "{name} 在比较期间被写入；请在没有程序写入时重新比较",
    "engine.scan": "--engine 用于 --scan；剪枝在本进程中进行",
    "engine.the_sources": "工作进程所需的内容",
    "engine.this_machine": "本机",
    "engine.trainings": "两次被观察的训练在本进程中按统计量比较；请去掉 --engine",
    "engine.unknown": "engine={engine!r} 未知；可用的有 {known}",
    "engine.unreachable": "{address} 上没有 Ray 集群应答（{why}）；在其机器上运行 `ray status` 可查看地址",
    "engine.versions": "此处的 layertap 为 {here}，Ray 工作进程上为 {there}；请在两边安装同一版本",
    "engine.workers": "workers={workers}：应至少为 1",
}
