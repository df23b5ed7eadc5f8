"""Monitors inside Lightning, transformers.Trainer and Accelerate: the real ones, small."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import layertap as lt
import models
from layertap.capture import taps
from layertap.training import find_sample

LAYERS = {"net.0": {"alias": "first"}, "net.2": {"alias": "last", "record_type": "epoch_full"}}


@pytest.fixture(autouse=True)
def clean_torch():
    yield
    assert taps.attached() == 0


def data():
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(10, 4, generator=generator), torch.randn(10, 2, generator=generator))


def loader():
    return DataLoader(data(), batch_size=4)  # 4, 4, 2


def seeded_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


# Lightning.


def lightning_module(fails=False):
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = seeded_net()

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, batch_idx):
            if fails and self.current_epoch == 1:
                raise ArithmeticError("the loss is NaN")
            x, y = batch
            return nn.functional.mse_loss(self(x), y)

        def validation_step(self, batch, batch_idx):
            self(batch[0])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    return Module()


def lightning_fit(module, tmp_path, callbacks):
    import lightning.pytorch as pl

    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(module, loader(), loader())


lightning_warnings = pytest.mark.filterwarnings("ignore")  # Lightning's own: few workers, deprecated names inside it


@lightning_warnings
def test_lightning_tells_the_monitor_where_it_is(tmp_path):
    from layertap.training.lightning import MonitorCallback

    bare = lightning_module()
    lightning_fit(bare, tmp_path, [])
    module = lightning_module()
    callback = MonitorCallback(
        layers_to_monitor=LAYERS, epochs_to_record=[1, 2], output_dir=tmp_path / "out", batch_indices=[0, 2]
    )
    lightning_fit(module, tmp_path, [callback])
    assert all(torch.equal(a, b) for a, b in zip(bare.parameters(), module.parameters(), strict=True))
    run = lt.Run(tmp_path / "out")
    assert not run.partial
    assert callback.monitor.receipt.complete
    moments = [(record.phase, record.epoch, record.batch) for record in run["net.2"]]
    for phase in ("train", "eval"):
        found = [moment[1:] for moment in moments if moment[0] == phase]
        assert found == [(epoch, batch) for epoch in (1, 2) for batch in range(3)], "no sanity check among them"
    places = find_sample(run, data()[5][0])
    assert [(place.epoch, place.batch, place.row) for place in places if place.phase == "train"] == [
        (1, 1, 1),
        (2, 1, 1),
    ]
    saved = torch.load(tmp_path / "out" / "epoch_2_batch_full_last.pt")
    assert saved["output"].shape == (10, 2)
    assert torch.load(tmp_path / "out" / "epoch_1_batch_2_first.pt")["output"].shape == (2, 8)


@lightning_warnings
def test_lightning_an_exception_removes_the_hooks_and_saves_what_there_is(tmp_path):
    from layertap.training.lightning import MonitorCallback

    module = lightning_module(fails=True)
    monitor = lt.Monitor(module, LAYERS, [1, 2], tmp_path / "out", [0])
    with pytest.raises(ArithmeticError):
        lightning_fit(module, tmp_path, [MonitorCallback(monitor)])
    assert taps.attached() == 0
    assert torch.load(tmp_path / "out" / "epoch_1_batch_full_last.pt")["output"].shape == (10, 2)


# transformers.Trainer.


def hf_trainer(tmp_path, callbacks, accumulate=1, evaluate="no"):
    import transformers

    model, _ = models.gpt2()
    generator = torch.Generator().manual_seed(0)
    rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(3, models.VOCAB, (6, 8), generator=generator)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "hf"),
        num_train_epochs=2,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=accumulate,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        seed=0,
        eval_strategy=evaluate,
        per_device_eval_batch_size=2,
    )
    return transformers.Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:4], callbacks=callbacks)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("accumulate", [1, 3])
def test_transformers_trainer_tells_the_monitor_where_it_is(tmp_path, accumulate):
    from layertap.training.transformers import MonitorCallback

    bare = hf_trainer(tmp_path, [], accumulate)
    loss = bare.train().training_loss
    layers = {
        "transformer.h.1": {"alias": "block", "record_type": "epoch_full"},
        "transformer.h.0.mlp": {"alias": "mlp"},
    }
    callback = MonitorCallback(
        layers_to_monitor=layers, epochs_to_record=[2], output_dir=tmp_path / "out", batch_indices=[1]
    )
    watched = hf_trainer(tmp_path, [callback], accumulate)
    assert watched.train().training_loss == loss
    ours, theirs = watched.model.state_dict(), bare.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    run = lt.Run(tmp_path / "out")
    assert callback.monitor.receipt.complete
    mlp = [site for site in run.sites if site.path == "transformer.h.0.mlp"]
    assert [(record.epoch, record.batch) for record in run[mlp[0]]] == [(2, 1)]
    block = [site for site in run.sites if site.path == "transformer.h.1"]
    assert [(record.epoch, record.batch) for record in run[block[0]]] == [(2, 0), (2, 1), (2, 2)]
    assert (tmp_path / "out" / "epoch_2_batch_full_block.pt").is_file()


@pytest.mark.filterwarnings("ignore")
def test_transformers_evaluation_between_epochs_is_told_apart(tmp_path):
    from layertap.training.transformers import MonitorCallback

    layers = {"transformer.h.1": {"alias": "block", "record_type": "epoch_full"}}
    callback = MonitorCallback(layers_to_monitor=layers, epochs_to_record=[1, 2], output_dir=tmp_path / "out")
    hf_trainer(tmp_path, [callback], evaluate="epoch").train()
    run = lt.Run(tmp_path / "out")
    block = next(site for site in run.sites if site.path == "transformer.h.1")
    moments = [(record.phase, record.epoch, record.batch) for record in run[block]]
    for epoch in (1, 2):
        assert [moment for moment in moments if moment[1] == epoch] == [
            *(("train", epoch, batch) for batch in range(3)),
            *(("eval", epoch, batch) for batch in range(2)),
        ]
    names = {path.name for path in (tmp_path / "out").glob("*_full_*")}
    assert names == {f"epoch_{epoch}_batch_full_block{phase}.pt" for epoch in (1, 2) for phase in ("", "_eval")}


# Accelerate.


@pytest.mark.filterwarnings("ignore")
def test_accelerate_s_prepared_model_is_monitored_by_the_names_of_the_model_inside(tmp_path):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    net = nn.Sequential(seeded_net())
    model, optimizer, batches = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.1), loader())
    with lt.Monitor(model, {"0.2": {"alias": "last", "record_type": "epoch_full"}}, [1], tmp_path) as monitor:
        monitor.set_epoch(1)
        for batch_idx, (x, y) in enumerate(batches):
            monitor.set_batch_idx(batch_idx)
            accelerator.backward(nn.functional.mse_loss(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
    assert torch.load(tmp_path / "epoch_1_batch_full_last.pt")["output"].shape == (10, 2)


def test_a_model_wrapped_for_several_devices_keeps_its_own_names(tmp_path):
    net = seeded_net()
    with lt.Monitor(nn.DataParallel(net), ["2"], [1], tmp_path, [0]) as monitor:
        monitor.set_epoch(1)
        monitor.set_batch_idx(0)
        net(torch.ones(1, 4))
        assert list(monitor.get_single_data()) == ["2"]


@pytest.mark.parametrize(
    ("hidden", "module", "line"),
    [
        ("lightning.pytorch", "layertap.training.lightning", "pip install 'layertap[lightning]'"),
        ("transformers", "layertap.training.transformers", "pip install 'layertap[hf]'"),
    ],
)
def test_a_missing_library_prints_the_line_to_type(hidden, module, line):
    code = f"import sys; sys.modules[{hidden!r}] = None; import {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"install it with: {line}" in done.stderr
