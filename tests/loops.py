"""Training loops in plain PyTorch, as people write them; none of them knows layertap."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.drop(self.proj(y))
        return x + self.drop(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    """nanoGPT's shape, as small as a test wants it."""

    def __init__(self, layers=4, width=32, heads=2, vocab=64, length=16):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids, targets=None):
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


def gpt(seed=0, **shape):
    torch.manual_seed(seed)
    return GPT(**shape)


def batches(seed=1, count=10, size=4, length=16, vocab=64):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(vocab, (count * size, length + 1), generator=generator)
    return torch.utils.data.TensorDataset(ids[:, :-1], ids[:, 1:])


def train(model, *, steps, each=lambda step: None, lr=1e-3, accumulate=1, optimizer=None, seed=2):
    """As nanoGPT does it: random batches, AdamW, clipping. Returns the losses. `each` is called before every step."""
    torch.manual_seed(seed)
    data = batches()
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=lr)
    losses = []
    model.train()
    for step in range(steps):
        each(step)
        for _ in range(accumulate):
            pick = torch.randint(len(data), (4,))
            _, loss = model(data.tensors[0][pick], data.tensors[1][pick])
            (loss / accumulate).backward()
            losses.append(loss.item())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return losses


class BreakInBackward(torch.autograd.Function):
    """Hands its input on, and one NaN backwards."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        broken = gradient.clone()
        broken.view(-1)[0] = float("nan")
        return broken


def break_backward(block, due):
    """Makes the block's MLP give a NaN back whenever `due()`."""
    forward = block.mlp.forward
    block.mlp.forward = lambda x: BreakInBackward.apply(forward(x)) if due() else forward(x)
