"""Chinese: the messages of layertap.inputs."""

MESSAGES = {
    "inputs.empty": "{path} 中没有输入；应为按名称给出的张量",
    "inputs.exclusive": "提示词和输入文件不能同时给出；请只给一个",
    "inputs.factory": "工厂函数的输入",
    "inputs.file": "输入文件",
    "inputs.missing": "缺少输入 {missing}",
    "inputs.no_file": "没有输入文件 {path}（从 {cwd} 查找）",
    "inputs.no_suffix": "没有后缀的文件",
    "inputs.no_tokenizer": "{name} 没有分词器，无法读取提示词；请在输入文件（.npz、.json 等）中给出 id",
    "inputs.no_tokens": "提示词 {prompt!r} 没有产生 token；请给更长的提示词",
    "inputs.no_vocabulary": (
        "{name}：没有可用来运行的输入，而 {name2} 没有可抽取 id 的词表；请让工厂函数返回 (model, "
        "inputs)，或给出输入文件"
    ),
    "inputs.none": "{name}：没有可用来运行的输入；请给出含有 {takes} 的输入文件（.npz、.safetensors、.json、.pt）",
    "inputs.not_object": '{path} 中是 {name}；应为对象，例如 {{"input_ids": [[1, 2]]}}',
    "inputs.seq_len": "seq_len={length} 没有可运行的内容；请给 1 或更大",
    "inputs.seq_len_own": "seq_len={seq_len} 用于随机 id；{source}有自己的长度",
    "inputs.suffix": "{path}：不支持 {suffix} 作为输入；请使用 {READERS}",
    "inputs.unknown": "{path} 中有 {map}，而 {name} 不接收它；它接收 {named}",
    "inputs.unreadable": "无法将 {path} 作为 {suffix} 输入读取：{reason}",
}
