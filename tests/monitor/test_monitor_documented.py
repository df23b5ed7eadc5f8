"""Monitor as document 002 describes it: names, semantics, error texts, files (C1-C10); its examples as they stand."""

import json
import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import layertap as lt
from layertap.monitor import MonitoredTrainer


class Net(nn.Module):
    """Attention and a feed-forward part, under the names that the document uses."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.ffn = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        mixed, _ = self.attention(x, x, x)
        return self.head(x + self.ffn(mixed))


LAYERS = {
    "attention": {"alias": "attention_weights", "record_type": "single"},
    "ffn": {"alias": "ffn_epoch_stats", "record_type": "epoch_full"},
}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Net()


def batches(count=3, rows=4, last=2):
    """The last batch is smaller."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(rows if i < count - 1 else last, 5, 8, generator=generator) for i in range(count)]


def train_batch(model, batch, optimizer=None):
    loss = model(batch).pow(2).mean()
    loss.backward()
    if optimizer is not None:
        optimizer.step()
    model.zero_grad()
    return loss


def train(model, monitor, epochs=2, data=None):
    """The loop of the document."""
    for epoch in range(1, epochs + 1):
        monitor.set_epoch(epoch)
        for batch_idx, batch in enumerate(data or batches()):
            monitor.set_batch_idx(batch_idx)
            train_batch(model, batch)


# C1, C2: what it is made from.


def test_c1_the_documented_arguments_by_place(model, tmp_path):
    monitor = lt.Monitor(model, ["ffn"], [1, 2], str(tmp_path / "new" / "folder"), [0])
    assert (tmp_path / "new" / "folder").is_dir()
    train(model, monitor)
    assert list(monitor.get_single_data()["ffn"]["data"]) == [(2, 0)]
    monitor.remove_hooks()


def test_c2_the_list_form_with_two_layers(model, tmp_path):
    monitor = lt.Monitor(model, ["ffn", "head"], [1], tmp_path, batch_indices=[0])
    train(model, monitor, epochs=1)
    data = monitor.get_single_data()
    assert {alias: (item["layer"], item["alias"]) for alias, item in data.items()} == {
        "ffn": ("ffn", "ffn"),
        "head": ("head", "head"),
    }
    monitor.remove_hooks()


def test_c2_one_layer_both_ways(model, tmp_path):
    both = {"ffn": [{"alias": "one", "record_type": "single"}, {"alias": "all", "record_type": "epoch_full"}]}
    monitor = lt.Monitor(model, both, [1], tmp_path, batch_indices=[1])
    train(model, monitor, epochs=1)
    assert list(monitor.get_single_data()["one"]["data"]) == [(1, 1)]
    assert list(monitor.get_epoch_data()["all"]["data"]) == [(1, 0), (1, 1), (1, 2)]
    monitor.remove_hooks()


@pytest.mark.parametrize(
    "layers",
    [["ffn", "ffn"], {"ffn": {"alias": "x"}, "head": {"alias": "x"}}, {"ffn": {"alias": "head"}, "head": None}],
)
def test_c2_aliases_are_unique(model, tmp_path, layers):
    with pytest.raises(ValueError, match=r"^Duplicate alias '\w+' in layers_to_monitor\.$"):
        lt.Monitor(model, layers, [1], tmp_path, batch_indices=[0])


# C4: the texts.


@pytest.mark.parametrize(
    ("layers", "epochs", "indices", "text"),
    [
        (["ffn"], [], [0], "epochs_to_record cannot be empty. At least one epoch must be specified for recording."),
        (
            ["ffn"],
            [1],
            None,
            "When any layer has record_type='single', batch_indices must be specified and non-empty.",
        ),
        (LAYERS, [1], [], "When any layer has record_type='single', batch_indices must be specified and non-empty."),
        (
            {"ffn": {"record_type": "sometimes"}},
            [1],
            [0],
            "Invalid record_type: sometimes. Must be 'single' or 'epoch_full'.",
        ),
        ("ffn", [1], [0], "layers_to_monitor must be a list or dict."),
        (7, [1], [0], "layers_to_monitor must be a list or dict."),
    ],
)
def test_c4_the_documented_errors(model, tmp_path, layers, epochs, indices, text):
    with pytest.raises(ValueError, match=re.escape(text)) as caught:
        lt.Monitor(model, layers, epochs, tmp_path, batch_indices=indices)
    assert str(caught.value) == text


def test_c4_a_layer_that_is_not_there_names_the_nearest_and_all(model, tmp_path):
    with pytest.raises(ValueError, match="do not exist in the model") as caught:
        lt.Monitor(model, ["fnn", "model.head"], [1], tmp_path, batch_indices=[0])
    first, *rest = str(caught.value).splitlines()
    assert first == (
        "The following layers specified in 'layers_to_monitor' do not exist in the model: ['fnn', 'model.head']"
    )
    assert rest[0].startswith("Nearest to 'fnn': ffn")
    assert rest[1].startswith("Nearest to 'model.head': head")
    assert rest[2].startswith("Available layers: ['attention', 'attention.out_proj', 'ffn', ")


def test_c3_epoch_full_alone_needs_no_batch_indices(model, tmp_path):
    monitor = lt.Monitor(model, {"ffn": {"record_type": "epoch_full"}}, [1], tmp_path)
    train(model, monitor, epochs=1)
    assert len(monitor.get_epoch_data()["ffn"]["data"]) == 3
    monitor.remove_hooks()


# C3, C5, C6: what is recorded, and how it is handed out.


def test_c3_single_takes_its_batches_and_epoch_full_every_batch(model, tmp_path):
    monitor = lt.Monitor(model, LAYERS, [2], tmp_path, batch_indices=[0, 2])
    monitor.set_epoch(1)
    monitor.set_batch_idx(0)
    train_batch(model, batches()[0])
    assert monitor.get_single_data() == {}
    assert monitor.get_epoch_data() == {}
    train(model, monitor)
    assert list(monitor.get_single_data()["attention_weights"]["data"]) == [(2, 0), (2, 2)]
    assert list(monitor.get_epoch_data()["ffn_epoch_stats"]["data"]) == [(2, 0), (2, 1), (2, 2)]
    monitor.remove_hooks()


def test_c3_c6_the_values_are_those_of_the_layers(model, tmp_path):
    expected = []
    handle = model.ffn.register_forward_hook(lambda module, args, output: expected.append(output.detach().clone()))
    monitor = lt.Monitor(model, LAYERS, [1], tmp_path, batch_indices=[0])
    train(model, monitor, epochs=1)
    handle.remove()
    item = monitor.get_epoch_data()["ffn_epoch_stats"]
    assert item.keys() == {"layer", "alias", "output_shape", "data"}
    assert (item["layer"], item["alias"], item["output_shape"]) == ("ffn", "ffn_epoch_stats", [4, 5, 8])
    assert all(torch.equal(found, wanted) for found, wanted in zip(item["data"].values(), expected, strict=True))
    assert all(not found.requires_grad and found.device.type == "cpu" for found in item["data"].values())
    monitor.remove_hooks()


def test_c5_an_epoch_that_nobody_saved_is_saved_when_the_next_begins(model, tmp_path):
    monitor = lt.Monitor(model, LAYERS, [1], tmp_path, batch_indices=[0])
    train(model, monitor, epochs=2)
    assert monitor.get_single_data() == {}
    assert (tmp_path / "epoch_1_batch_0_attention_weights.pt").is_file()
    assert (tmp_path / "epoch_1_batch_full_ffn_epoch_stats.pt").is_file()
    monitor.remove_hooks()


def test_c5_an_epoch_told_twice_goes_on(model, tmp_path):
    monitor = lt.Monitor(model, ["ffn"], [1], tmp_path, batch_indices=[0, 1])
    for batch_idx, batch in enumerate(batches()):
        monitor.set_epoch(1)
        monitor.set_batch_idx(batch_idx)
        train_batch(model, batch)
    assert list(monitor.get_single_data()["ffn"]["data"]) == [(1, 0), (1, 1)]
    monitor.remove_hooks()


def test_c6_what_was_got_outlives_clearing_and_is_a_copy(model, tmp_path):
    monitor = lt.Monitor(model, LAYERS, [1], tmp_path, batch_indices=[0])
    train(model, monitor, epochs=1)
    single, epoch = monitor.get_single_data(), monitor.get_epoch_data()
    kept = single["attention_weights"]["data"][1, 0][0].clone()
    epoch["ffn_epoch_stats"]["data"][1, 0].zero_()
    assert monitor.get_epoch_data()["ffn_epoch_stats"]["data"][1, 0].abs().sum() > 0
    monitor.clear_current_epoch_data()
    assert monitor.get_single_data() == {}
    assert monitor.get_epoch_data() == {}
    assert torch.equal(single["attention_weights"]["data"][1, 0][0], kept)
    monitor.remove_hooks()


def test_c6_layers_are_chosen_by_alias_or_name(model, tmp_path):
    monitor = lt.Monitor(model, ["ffn", "head"], [1], tmp_path, batch_indices=[0], strict=True)
    train(model, monitor, epochs=1)
    assert list(monitor.get_single_data(layers=["head"])) == ["head"]
    with pytest.raises(ValueError, match="no layer or alias 'haed' is monitored; there are ffn, head"):
        monitor.get_single_data(layers=["haed"])
    monitor.remove_hooks()


def test_c6_a_tuple_stays_a_tuple_and_its_shape_is_a_list_of_shapes(model, tmp_path):
    monitor = lt.Monitor(model, LAYERS, [1], tmp_path, batch_indices=[0])
    train(model, monitor, epochs=1)
    item = monitor.get_single_data()["attention_weights"]
    output = item["data"][1, 0]
    assert isinstance(output, tuple)
    attn_output, attn_weights = output
    assert item["output_shape"] == [list(attn_output.shape), list(attn_weights.shape)]
    monitor.remove_hooks()


# C7, C8: files and the rest of the names.


def test_c7_the_files_and_their_keys(model, tmp_path):
    monitor = lt.Monitor(model, LAYERS, [1], tmp_path, batch_indices=[0])
    train(model, monitor, epochs=1)
    data = monitor.get_single_data()["attention_weights"]["data"][1, 0]
    written = [*monitor.save_single_outputs(), *monitor.save_epoch_outputs()]
    assert [path.name for path in written] == [
        "epoch_1_batch_0_attention_weights.pt",
        "epoch_1_batch_0_ffn_epoch_stats.pt",
        "epoch_1_batch_1_ffn_epoch_stats.pt",
        "epoch_1_batch_2_ffn_epoch_stats.pt",
        "epoch_1_batch_full_ffn_epoch_stats.pt",
    ]
    saved = torch.load(written[0], weights_only=True)
    assert list(saved) == ["epoch", "batch_idx", "layer", "alias", "output_shape", "output"]
    assert (saved["epoch"], saved["batch_idx"], saved["layer"]) == (1, 0, "attention")
    assert saved["alias"] == "attention_weights"
    assert saved["output_shape"] == [[4, 5, 8], [4, 5, 5]]
    assert all(torch.equal(found, wanted) for found, wanted in zip(saved["output"], data, strict=True))
    monitor.remove_hooks()


def test_c3_c7_an_epoch_is_joined_on_dimension_0_with_exact_statistics_though_its_batches_are_uneven(model, tmp_path):
    monitor = lt.Monitor(model, LAYERS, [1], tmp_path, batch_indices=[0])
    train(model, monitor, epochs=1)
    outputs = list(monitor.get_epoch_data()["ffn_epoch_stats"]["data"].values())
    whole = torch.cat(outputs)
    assert len(whole) == 10
    monitor.save_epoch_outputs()
    monitor.remove_hooks()
    saved = torch.load(tmp_path / "epoch_1_batch_full_ffn_epoch_stats.pt", weights_only=True)
    assert torch.equal(saved["output"], whole)
    assert (saved["batches"], saved["batch_idx"]) == ([0, 1, 2], None)
    exact = whole.double()
    assert saved["statistics"]["count"] == whole.numel()
    assert saved["statistics"]["mean"] == pytest.approx(exact.mean().item(), rel=1e-12)
    assert saved["statistics"]["std"] == pytest.approx(exact.std().item(), rel=1e-12)
    assert saved["statistics"]["mean"] != pytest.approx(torch.stack([o.mean() for o in outputs]).mean().item())


def test_c7_c8_what_is_saved_is_a_run_that_diff_and_show_read(model, tmp_path):
    for name in ("a", "b"):
        torch.manual_seed(0)
        again = Net()
        if name == "b":
            with torch.no_grad():
                again.ffn[2].weight[3] = 0
        with lt.Monitor(again, LAYERS, [1], tmp_path / name, batch_indices=[0]) as monitor:
            train(again, monitor, epochs=1)
    run = lt.Run(tmp_path / "a")
    assert not run.partial
    assert run.sites == ("attention:output.0", "attention:output.1", "ffn")
    assert {(record.epoch, record.batch) for record in run["ffn"]} == {(1, 0), (1, 1), (1, 2)}
    assert lt.diff(tmp_path / "a", tmp_path / "a").verdict == "identical"
    report = lt.diff(tmp_path / "a", tmp_path / "b")
    assert report.verdict == "fault"
    assert report.first.site == "ffn"
    from layertap.report.show import run_rows

    assert [row["site"] for row in run_rows(run, step=0)] == ["attention:output.0", "attention:output.1", "ffn"]


def test_c7_the_files_alone_are_read_too(model, tmp_path):
    from layertap.formats import read_monitor

    with lt.Monitor(model, LAYERS, [1], tmp_path, batch_indices=[0]) as monitor:
        train(model, monitor, epochs=1)
    read = read_monitor(tmp_path)
    assert read.problems == (f"{tmp_path}: not read: records, tensors",), "the run itself, beside the files"
    run = lt.Run(tmp_path)
    for batch in range(3):
        assert read["ffn"].at(epoch=1, batch=batch).fingerprint == run["ffn"].at(epoch=1, batch=batch).fingerprint


def test_c8_the_names_of_the_extension_chapter(model, tmp_path):
    monitor = lt.Monitor(model, LAYERS, [1], tmp_path, batch_indices=[0])
    train(model, monitor, epochs=1)
    buffers = monitor.get_epoch_buffers()
    assert [len(outputs) for outputs in buffers.values()] == [3]
    for layer, outputs in buffers.items():
        processed = torch.cat(outputs).mean(dim=0)
        monitor.save_custom_output(processed, f"custom_{layer}.pt")
    assert torch.load(tmp_path / "custom_ffn_epoch_stats.pt").shape == (5, 8)
    assert len(monitor.get_single_outputs()["attention_weights"]) == 1
    monitor.clear_epoch_data()
    assert monitor.get_epoch_buffers() == {}
    assert len(monitor.get_single_outputs()["attention_weights"]) == 1
    assert not (tmp_path.parent / "x.pt").exists()
    monitor.save_custom_output(torch.ones(1), "../x.pt")
    assert not (tmp_path.parent / "x.pt").exists()
    monitor.remove_hooks()


# C8, C9: callbacks and the wrapper, with the encapsulated function of the document.


def encapsulated_train(config, device, **kwargs):
    epoch_callback = kwargs.get("epoch_callback")
    batch_callback = kwargs.get("batch_callback")
    for epoch in range(1, config.train.num_epochs + 1):
        if epoch_callback:
            epoch_callback(epoch)
        for batch_idx, batch in enumerate(config.data):
            if batch_callback:
                batch_callback(batch_idx)
            train_batch(config.model, batch)
            if config.fails_at == (epoch, batch_idx):
                raise ArithmeticError("the loss is NaN")
        if hasattr(config, "monitor") and config.monitor:
            config.got.append((config.monitor.get_single_data(), config.monitor.get_epoch_data()))
            config.monitor.save_single_outputs()
            config.monitor.save_epoch_outputs()
            config.monitor.clear_current_epoch_data()
    if hasattr(config, "monitor") and config.monitor:
        config.monitor.remove_hooks()
    return "trained"


@pytest.fixture
def config(model):
    return SimpleNamespace(
        train=SimpleNamespace(num_epochs=2), data=batches(), model=model, got=[], fails_at=None, monitor=None
    )


def test_c8_callbacks_way_1_of_the_document(model, config, tmp_path):
    monitor = config.monitor = lt.Monitor(model, LAYERS, [1, 2], tmp_path, batch_indices=[0])
    encapsulated_train(
        config,
        "cpu",
        epoch_callback=monitor.create_epoch_callback(),
        batch_callback=monitor.create_batch_callback(),
    )
    assert [list(single["attention_weights"]["data"]) for single, _ in config.got] == [[(1, 0)], [(2, 0)]]
    assert [len(epoch["ffn_epoch_stats"]["data"]) for _, epoch in config.got] == [3, 3]
    assert (tmp_path / "epoch_2_batch_full_ffn_epoch_stats.pt").is_file()


def test_c9_the_wrapper_way_2_of_the_document(model, config, tmp_path):
    monitor = lt.Monitor(model, LAYERS, [1, 2], tmp_path, batch_indices=[0])
    monitored_train = MonitoredTrainer(monitor).wrap_training_function(encapsulated_train)
    assert monitored_train(config, "cpu") == "trained"
    for epoch in (1, 2):
        assert (tmp_path / f"epoch_{epoch}_batch_0_attention_weights.pt").is_file()
        assert (tmp_path / f"epoch_{epoch}_batch_full_ffn_epoch_stats.pt").is_file()
    assert lt.Run(tmp_path).receipt is not None


def test_c9_the_wrapper_saves_and_removes_its_hooks_though_training_raises(model, config, tmp_path):
    from layertap.capture import taps

    config.fails_at = (2, 1)
    monitor = lt.Monitor(model, LAYERS, [1, 2], tmp_path, batch_indices=[0])
    with pytest.raises(ArithmeticError, match="the loss is NaN"):
        MonitoredTrainer(monitor).wrap_training_function(encapsulated_train)(config, "cpu")
    assert taps.attached() == 0
    assert (tmp_path / "epoch_1_batch_full_ffn_epoch_stats.pt").is_file()
    assert (tmp_path / "epoch_2_batch_1_ffn_epoch_stats.pt").is_file()
    assert not lt.Run(tmp_path).partial


def test_c9_a_function_without_callbacks_is_told_of(model, tmp_path, caplog):
    monitor = lt.Monitor(model, ["ffn"], [1], tmp_path, batch_indices=[0])
    wrapped = MonitoredTrainer(monitor).wrap_training_function(lambda rounds: rounds)
    assert "takes no epoch_callback" in caplog.text
    assert wrapped(3) == 3


def test_c8_way_3_of_the_document(model, tmp_path):
    monitor = lt.Monitor(model, LAYERS, [1, 2], tmp_path, batch_indices=[1])
    data = batches()
    for epoch in range(1, 3):
        monitor.set_epoch(epoch)
        for batch_idx in range(len(data)):
            monitor.set_batch_idx(batch_idx)
            train_batch(model, data[batch_idx])
        assert list(monitor.get_single_data()["attention_weights"]["data"]) == [(epoch, 1)]
        monitor.save_single_outputs()
        monitor.save_epoch_outputs()
        monitor.clear_current_epoch_data()
    monitor.remove_hooks()
    assert len(list(tmp_path.glob("*_attention_weights.pt"))) == 2


def test_c6_the_loop_of_the_document_with_its_own_processing(model, tmp_path, monkeypatch):
    """Single outputs of whole batches are averaged; an epoch with an uneven batch is joined."""
    monkeypatch.chdir(tmp_path)
    layers = {"head": {"alias": "out"}, "ffn": {"alias": "ffn", "record_type": "epoch_full"}}
    monitor = lt.Monitor(model, layers, [1, 3], "outputs", [0, 1])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    try:
        for epoch in range(1, 4):
            monitor.set_epoch(epoch)
            for batch_idx, batch in enumerate(batches()):
                monitor.set_batch_idx(batch_idx)
                train_batch(model, batch, optimizer)
            single_data = monitor.get_single_data()
            epoch_data = monitor.get_epoch_data()
            for alias, layer_info in single_data.items():
                outputs = list(layer_info["data"].values())
                avg_output = torch.mean(torch.stack(outputs), dim=0)
                torch.save(avg_output, f"custom_avg_{alias}_epoch_{epoch}.pt")
            for alias, layer_info in epoch_data.items():
                outputs = list(layer_info["data"].values())
                all_outputs = torch.cat(outputs, dim=0)
                torch.save({"mean": all_outputs.mean(dim=0)}, f"epoch_stats_{alias}_epoch_{epoch}.pt")
            monitor.save_single_outputs()
            monitor.save_epoch_outputs()
            monitor.clear_current_epoch_data()
    finally:
        monitor.remove_hooks()
    assert torch.load("custom_avg_out_epoch_3.pt").shape == (4, 5, 3)
    assert torch.load("epoch_stats_ffn_epoch_1.pt")["mean"].shape == (5, 8)
    assert not (tmp_path / "custom_avg_out_epoch_2.pt").exists()


# C10.


def test_c10_from_config(model, tmp_path):
    path = tmp_path / "config.json"
    given = {
        "learning_rate": 0.1,
        "monitor_layers": LAYERS,
        "monitor_epochs": [1],
        "monitor_batches": [0],
        "monitor_output_dir": str(tmp_path / "out"),
    }
    path.write_text(json.dumps(given))
    with lt.Monitor.from_config(model, path) as monitor:
        train(model, monitor, epochs=1)
    assert (tmp_path / "out" / "epoch_1_batch_0_attention_weights.pt").is_file()


def test_c10_what_the_document_forgets_in_its_config_may_be_given(model, tmp_path):
    given = {"monitor_layers": LAYERS, "monitor_epochs": [1, 5]}
    with pytest.raises(ValueError, match="batch_indices must be specified"):
        lt.Monitor.from_config(model, given, output_dir=tmp_path)
    monitor = lt.Monitor.from_config(model, given, output_dir=tmp_path, batch_indices=[0])
    assert monitor.epochs_to_record == {1, 5}
    monitor.remove_hooks()
    with pytest.raises(ValueError, match="the configuration has no 'monitor_epochs'; it has monitor_layers"):
        lt.Monitor.from_config(model, {"monitor_layers": LAYERS})
