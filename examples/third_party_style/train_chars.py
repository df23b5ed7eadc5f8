"""A character-level transformer, trained on its own source.

    python train_chars.py --epochs 3 --checkpoint out.pt

An ordinary PyTorch script: argparse, a DataLoader, AdamW with a schedule, validation after each epoch, a checkpoint
from which it goes on. It has no record of any tool that may watch it.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Characters(Dataset):
    def __init__(self, text, length):
        self.vocabulary = sorted(set(text))
        codes = {character: code for code, character in enumerate(self.vocabulary)}
        self.data = torch.tensor([codes[character] for character in text])
        self.length = length

    def __len__(self):
        return (len(self.data) - 1) // self.length

    def __getitem__(self, index):
        start = index * self.length
        chunk = self.data[start : start + self.length + 1]
        return chunk[:-1], chunk[1:]


class DecoderLayer(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, dropout=dropout, batch_first=True)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask):
        y = self.norm1(x)
        y, _ = self.attention(y, y, y, attn_mask=mask, need_weights=False)
        x = x + self.dropout(y)
        return x + self.dropout(self.feed_forward(self.norm2(x)))


class CharTransformer(nn.Module):
    def __init__(self, vocabulary, length, width=32, layers=3, heads=4, dropout=0.1):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        self.layers = nn.ModuleList([DecoderLayer(width, heads, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids):
        x = self.embedding(ids) + self.position[: ids.shape[1]]
        mask = torch.triu(torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device), 1)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.norm(x))


def train_one_epoch(model, loader, optimizer, scheduler, device):
    model.train()
    total = 0.0
    for ids, targets in loader:
        ids, targets = ids.to(device), targets.to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        total += loss.item()
    return total / len(loader)


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    losses = [
        F.cross_entropy(model(ids.to(device)).flatten(0, 1), targets.to(device).flatten()).item()
        for ids, targets in loader
    ]
    return sum(losses) / len(losses)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    text = Path(__file__).read_text()
    cut = int(0.9 * len(text))
    training, validation = Characters(text, args.length), Characters(text, args.length)
    training.data, validation.data = training.data[:cut], validation.data[cut:]
    loader = DataLoader(training, args.batch_size, shuffle=True, num_workers=args.workers)
    held_out = DataLoader(validation, args.batch_size)

    model = CharTransformer(len(training.vocabulary), args.length).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(loader))
    first = 1
    if args.checkpoint and args.checkpoint.exists():
        state = torch.load(args.checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        first = state["epoch"] + 1
    for epoch in range(first, args.epochs + 1):
        loss = train_one_epoch(model, loader, optimizer, scheduler, device)
        print(f"epoch {epoch}: train {loss:.6f}, validation {evaluate(model, held_out, device):.6f}", flush=True)
        if args.checkpoint:
            temporary = f"{args.checkpoint}.tmp"
            torch.save(
                {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "scheduler": scheduler.state_dict(),
                    "epoch": epoch,
                },
                temporary,
            )
            os.replace(temporary, args.checkpoint)


if __name__ == "__main__":
    main()
