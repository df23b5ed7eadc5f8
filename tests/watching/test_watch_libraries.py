"""`watch` beside trainers that others wrote, without a callback: steps, epochs and batches come out right."""

import pytest
import torch
from torch import nn

import layertap as lt
import models

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries warn of their own ageing


def places(run, site):
    rows = run.table(["site", "step", "epoch", "batch", "phase"]).to_pylist()
    return [(r["step"], r["epoch"], r["batch"]) for r in rows if r["site"].partition("@")[0] == site]


def test_transformers_trainer_which_fetches_ahead(tmp_path):
    import transformers

    model, _ = models.llama()
    ids = [torch.randint(3, 100, (8,), generator=torch.Generator().manual_seed(i)) for i in range(8)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"),
        max_steps=3,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    data = [{"input_ids": row, "labels": row} for row in ids]
    options = {"sites": "model.layers.*", "what": ("output", "update")}
    with lt.watch(model, path=tmp_path / "run", **options) as w:
        transformers.Trainer(model=model, args=arguments, train_dataset=data).train()
    expected = [(0, 1, 0), (0, 1, 1), (1, 1, 2), (1, 1, 3), (2, 2, 0), (2, 2, 1)]
    assert places(w.run, "model.layers.1") == expected
    assert places(w.run, "loss") == expected
    updates = places(w.run, next(str(site) for site in w.run.sites if str(site).endswith(".update")))
    assert updates == expected[1::2], "the optimizer steps with the last batch, though the next already exists"


def test_lightning(tmp_path):
    import lightning

    class Fitted(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))

        def training_step(self, batch, index):
            return self.net(batch[0]).pow(2).mean()

        def validation_step(self, batch, index):
            self.net(batch[0])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    data = torch.utils.data.TensorDataset(torch.randn(8, 8))
    loaders = [torch.utils.data.DataLoader(data, batch_size=4) for _ in range(2)]
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    model = Fitted()
    with lt.watch(model, path=tmp_path / "run", sites="net.*") as w:
        lightning.Trainer(max_epochs=2, accelerator="cpu", **quiet).fit(model, *loaders)
    assert places(w.run, "net.0") == [(0, 1, 0), (1, 1, 1), (2, 2, 0), (3, 2, 1)]
