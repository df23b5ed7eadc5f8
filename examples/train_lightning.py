"""A monitor as a callback of Lightning (pip install 'layertap[lightning]').

python examples/train_lightning.py [OUTPUT_DIR]
"""

import sys
import tempfile
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import layertap as lt
from layertap.monitor import epoch_statistics
from layertap.training.lightning import MonitorCallback


class Regression(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        self.net(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 1e-2)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    pl.seed_everything(0, verbose=False)
    x = torch.randn(50, 4)
    loader = DataLoader(TensorDataset(x, x.sum(dim=1, keepdim=True)), batch_size=16)
    callback = MonitorCallback(
        layers_to_monitor={"net.1": {"alias": "hidden", "record_type": "epoch_full"}},
        epochs_to_record=[1, 5],
        output_dir=folder,
    )
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = pl.Trainer(max_epochs=5, accelerator="cpu", callbacks=[callback], default_root_dir=folder, **quiet)
    trainer.fit(Regression(), loader, loader)

    print(callback.monitor.receipt)
    for found in epoch_statistics(lt.Run(folder)):
        print(f"epoch {found.epoch} {found.phase:5} {found.site}: {found.statistics.count} values, "
              f"std {found.statistics.std:.4f}")  # fmt: skip


if __name__ == "__main__":
    main()
