"""Chinese: the messages of layertap.training."""

MESSAGES = {
    "training.needs_lightning": "此回调需要 Lightning；安装命令：pip install 'layertap[lightning]'",
    "training.needs_transformers": "此回调需要 transformers；安装命令：pip install 'layertap[hf]'",
}
