"""English: the messages of layertap.training."""

MESSAGES = {
    "training.needs_lightning": "this callback needs Lightning; install it with: pip install 'layertap[lightning]'",
    "training.needs_transformers": "this callback needs transformers; install it with: pip install 'layertap[hf]'",
}
