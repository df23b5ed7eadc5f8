"""A plain training loop with a monitor: attention averaged, feed-forward statistics, the importance of heads.

    python examples/train_monitor.py [OUTPUT_DIR]

The loop is an ordinary one; what the monitor needs is `set_epoch`, `set_batch_idx`, and what you do at an epoch's end.
"""

import sys
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import layertap as lt
from layertap.monitor import find_sample, plot_attention

HEADS = 4


class Classifier(nn.Module):
    """torch's own encoder, which throws its attention weights away, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 32)
        layer = nn.TransformerEncoderLayer(32, HEADS, 64, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embedding(ids)).mean(dim=1))


def data() -> TensorDataset:
    """Does token 7 occur in the second half? 90 samples, so that the last batch of 32 is smaller."""
    ids = torch.randint(0, 32, (90, 12))
    return TensorDataset(torch.arange(90), ids, (ids[:, 6:] == 7).any(dim=1).long())


def average_attention(outputs: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Example 1 of the document. Each output is a tuple; its second half is [batch, heads, target, source]."""
    weights = torch.cat([weights for _, weights in outputs])  # cat, since a last batch may be smaller
    return weights.mean(dim=0)  # [num_heads, seq_len, seq_len]


def feed_forward_statistics(outputs: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Example 2: over all samples of the epoch."""
    everything = torch.cat(outputs, dim=0)
    return {
        "mean": torch.mean(everything, dim=0),
        "std": torch.std(everything, dim=0),
        "min": torch.min(everything, dim=0)[0],
        "max": torch.max(everything, dim=0)[0],
    }


def process_attention(outputs: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Example 3. The mean weight of a head says nothing: every row sums to 1, so it is 1 / seq_len for all of them.
    How much a query gives to its favourite does say something."""
    weights = torch.cat([weights for _, weights in outputs])
    return {
        "head_importance": weights.max(dim=-1).values.mean(dim=(0, 2)),  # [num_heads]
        "layer_patterns": weights.mean(dim=1),  # [batch_size, seq_len, seq_len]
    }


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    torch.manual_seed(0)
    model, samples = Classifier(), data()
    loader = DataLoader(samples, batch_size=32, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    monitor = lt.Monitor(
        model,
        {
            "encoder.layers.0.self_attn": {"alias": "attention_weights", "record_type": "single"},
            "encoder.layers.0.linear2": {"alias": "ffn_epoch_stats", "record_type": "epoch_full"},
        },
        epochs_to_record=[1, 5, 10],
        output_dir=str(folder),
        batch_indices=[0, 2],
    )
    try:
        for epoch in range(1, 11):
            monitor.set_epoch(epoch)
            for batch_idx, (indices, ids, labels) in enumerate(loader):
                monitor.set_batch_idx(batch_idx, samples=indices)
                loss = nn.functional.cross_entropy(model(ids), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

            for alias, layer_info in monitor.get_single_data().items():  # empty in epochs that are not recorded
                outputs = list(layer_info["data"].values())
                average = average_attention(outputs)
                monitor.save_custom_output(process_attention(outputs), f"attention_analysis_{alias}_epoch_{epoch}.pt")
                plot_attention(average, folder / f"{alias}_epoch_{epoch}.svg", title=f"{alias}, epoch {epoch}")
            for alias, layer_info in monitor.get_epoch_data().items():
                stats = feed_forward_statistics(list(layer_info["data"].values()))
                monitor.save_custom_output(stats, f"ffn_stats_epoch_{epoch}.pt")
                whole = monitor.epoch_statistics()[alias][""]
                print(f"epoch {epoch:2}: loss {loss.item():.4f}, {alias}: mean {whole.mean:+.4f}, std {whole.std:.4f}")
            monitor.save_single_outputs()
            monitor.save_epoch_outputs()
            monitor.clear_current_epoch_data()
    finally:
        monitor.remove_hooks()

    print(monitor.receipt)
    analysis = torch.load(folder / "attention_analysis_attention_weights_epoch_10.pt")
    print("head importance:", [round(value, 3) for value in analysis["head_importance"].tolist()])
    places = find_sample(lt.Run(folder), 17)
    print("sample 17 was in", ", ".join(f"epoch {p.epoch} batch {p.batch} row {p.row}" for p in places))
    print(f"{len(list(folder.glob('*.pt')))} files; layertap show {folder}")


if __name__ == "__main__":
    main()
