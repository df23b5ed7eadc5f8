"""A monitor in a loop of Accelerate (pip install 'layertap[accelerate]').

    python examples/train_accelerate.py [OUTPUT_DIR]          # or: accelerate launch examples/train_accelerate.py

Each process records its own rank into one run; names of layers are those of the model before `prepare`.
"""

import sys
import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import layertap as lt


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    torch.manual_seed(0)
    x = torch.randn(50, 4)
    loader = DataLoader(TensorDataset(x, x.sum(dim=1, keepdim=True)), batch_size=16)
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(net, torch.optim.Adam(net.parameters(), 1e-2), loader)

    layers = {"1": {"alias": "hidden", "record_type": "epoch_full"}}
    with lt.Monitor(model, layers, epochs_to_record=[1, 3], output_dir=folder) as monitor:
        for epoch in range(1, 4):
            monitor.set_epoch(epoch)
            for batch_idx, (inputs, targets) in enumerate(loader):
                monitor.set_batch_idx(batch_idx)
                accelerator.backward(nn.functional.mse_loss(model(inputs), targets))
                optimizer.step()
                optimizer.zero_grad()
    print(monitor.receipt)
    print(sorted(path.name for path in folder.glob("*_full_*.pt")))


if __name__ == "__main__":
    main()
