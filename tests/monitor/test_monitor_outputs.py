"""Whatever a layer returns, however often: nothing crashes or overwrites, train and eval are kept apart (C11, C12)."""

import dataclasses
import logging
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import layertap as lt
from layertap.monitor import epoch_statistics, find_sample


class Returns(nn.Module):
    """A layer that returns what a function makes of its input."""

    def __init__(self, make):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.make = make

    def forward(self, x):
        return self.make(self.linear(x))


class Around(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        self.layer(x)
        return x


@dataclasses.dataclass
class Result:
    hidden: torch.Tensor
    cache: object = None


def one_batch(make, tmp_path, **options):
    model = Around(Returns(make))
    with lt.Monitor(model, ["layer"], [1], tmp_path, [0], strict=True, **options) as monitor:
        monitor.set_epoch(1)
        monitor.set_batch_idx(0)
        model(torch.ones(2, 3))
        return monitor.get_single_data()["layer"], monitor


@pytest.mark.parametrize(
    ("make", "check", "shape"),
    [
        (lambda x: x, lambda o: o.shape == (2, 3), [2, 3]),
        (lambda x: (x, None), lambda o: type(o) is tuple and o[1] is None and o[0].shape == (2, 3), [[2, 3], None]),
        (lambda x: [x, x + 1], lambda o: type(o) is list and torch.equal(o[1], o[0] + 1), [[2, 3], [2, 3]]),
        (
            lambda x: {"a": x, "b": (x, None)},
            lambda o: o["b"][1] is None and torch.equal(o["a"], o["b"][0]),
            {"a": [2, 3], "b": [[2, 3], None]},
        ),
        (Result, lambda o: o["hidden"].shape == (2, 3) and o["cache"] is None, None),
        (lambda x: (x, 7, "text"), lambda o: o[1:] == (7, "text"), [[2, 3], None, None]),
        (lambda x: (x.bfloat16(), x.sum()), lambda o: o[0].dtype == torch.bfloat16 and o[1].dim() == 0, [[2, 3], []]),
        (lambda x: (x, x.to_sparse()), lambda o: "1.indices" in o[1], None),
    ],
    ids=["tensor", "tuple with None", "list", "dict", "dataclass", "numbers", "dtypes", "sparse"],
)
def test_c11_any_form_comes_back_as_it_was(make, check, shape, tmp_path):
    item, monitor = one_batch(make, tmp_path)
    assert check(item["data"][1, 0])
    assert shape is None or item["output_shape"] == shape
    saved = torch.load(tmp_path / "epoch_1_batch_0_layer.pt", weights_only=True)
    assert check(saved["output"])
    assert monitor.receipt.error == ""


def test_c11_several_forwards_in_one_batch_do_not_overwrite_each_other(tmp_path):
    model = Around(Returns(lambda x: x))
    with lt.Monitor(model, ["layer"], [1], tmp_path, [0]) as monitor:
        monitor.set_epoch(1)
        monitor.set_batch_idx(0)
        for factor in (1.0, 2.0, 3.0):
            model(torch.full((2, 3), factor))
        data = monitor.get_single_data()["layer"]["data"]
    assert [repr(key) for key in data] == ["(1, 0)", "(1, 0)@1", "(1, 0)@2"]
    assert all(epoch == 1 and batch == 0 for epoch, batch in data)
    assert torch.equal(data[1, 0], model.layer.linear(torch.ones(2, 3)))
    assert len({value.sum().item() for value in data.values()}) == 3
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == [
        "epoch_1_batch_0_layer.pt",
        "epoch_1_batch_0_layer_call1.pt",
        "epoch_1_batch_0_layer_call2.pt",
    ]


def test_c11_a_validation_pass_is_told_apart_from_training(tmp_path):
    model = Around(Returns(lambda x: x))
    layers = {"layer": {"record_type": "epoch_full"}}
    with lt.Monitor(model, layers, [1], tmp_path) as monitor:
        monitor.set_epoch(1)
        for batch in range(2):
            monitor.set_batch_idx(batch)
            model(torch.ones(2, 3))
        model.eval()
        model(torch.zeros(5, 3))
        model.train()
        trained, tested = monitor.get_epoch_data(), monitor.get_epoch_data(phase="eval")
        assert monitor.epoch_statistics()["layer"][""].count == 12
    assert list(trained["layer"]["data"]) == [(1, 0), (1, 1)]
    assert list(tested["layer"]["data"]) == [(1, 1)]
    assert tested["layer"]["data"][1, 1].shape == (5, 3)
    assert torch.load(tmp_path / "epoch_1_batch_full_layer.pt")["output"].shape == (4, 3)
    assert torch.load(tmp_path / "epoch_1_batch_full_layer_eval.pt")["output"].shape == (5, 3)
    assert {(found.phase, found.statistics.count) for found in epoch_statistics(lt.Run(tmp_path))} == {
        ("train", 12),
        ("eval", 15),
    }


def test_c11_a_model_that_is_only_ever_in_eval_mode_gives_its_data_all_the_same(tmp_path):
    model = Around(Returns(lambda x: x)).eval()
    with lt.Monitor(model, ["layer"], [1], tmp_path, [0]) as monitor:
        monitor.set_epoch(1)
        monitor.set_batch_idx(0)
        model(torch.ones(2, 3))
        assert list(monitor.get_single_data()["layer"]["data"]) == [(1, 0)]


def test_c11_checkpoint_recomputation_is_not_recorded_twice(tmp_path):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

        def forward(self, x):
            return checkpoint(self.block, x, use_reentrant=False)

    model = Checkpointed()
    with lt.Monitor(model, ["block.0"], [1], tmp_path, [0]) as monitor:
        monitor.set_epoch(1)
        monitor.set_batch_idx(0)
        model(torch.ones(2, 3)).sum().backward()
        assert list(monitor.get_single_data()["block.0"]["data"]) == [(1, 0)]


def test_c11_a_shared_module_is_known_by_both_its_names(tmp_path):
    model = nn.Module()
    model.one = nn.Linear(3, 3)
    model.two = model.one
    with lt.Monitor(model, ["one", "two"], [1], tmp_path, [0]) as monitor:
        monitor.set_epoch(1)
        monitor.set_batch_idx(0)
        model.two(torch.ones(2, 3))
        data = monitor.get_single_data()
    assert data["two"]["layer"] == "two"
    assert torch.equal(data["one"]["data"][1, 0], data["two"]["data"][1, 0])


def test_c11_lengths_that_vary_are_kept_apart_not_joined(tmp_path):
    model = Around(Returns(lambda x: x))
    with lt.Monitor(model, {"layer": {"record_type": "epoch_full"}}, [1], tmp_path) as monitor:
        monitor.set_epoch(1)
        for batch, length in enumerate((4, 6)):
            monitor.set_batch_idx(batch)
            model(torch.ones(2, length, 3))
    saved = torch.load(tmp_path / "epoch_1_batch_full_layer.pt", weights_only=True)
    assert [part.shape[1] for part in saved["output"]] == [4, 6]
    assert saved["statistics"]["count"] == 2 * (4 + 6) * 3


def test_c11_batches_that_nobody_counts_are_counted(tmp_path):
    model = Around(Returns(lambda x: x))
    with lt.Monitor(model, {"layer": {"record_type": "epoch_full"}}, [1, 2], tmp_path) as monitor:
        for epoch in (1, 2):
            monitor.set_epoch(epoch)
            for _ in range(3):
                model(torch.ones(2, 3))
            assert list(monitor.get_epoch_data()["layer"]["data"]) == [(epoch, 0), (epoch, 1), (epoch, 2)]


def test_c11_the_second_pass_of_an_epoch_does_not_overwrite_the_first(tmp_path):
    model = Around(Returns(lambda x: x))
    with lt.Monitor(model, ["layer"], [1], tmp_path, [0]) as monitor:
        for epoch in (1, 2, 1):
            monitor.set_epoch(epoch)
            monitor.set_batch_idx(0)
            model(torch.ones(2, 3))
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == [
        "epoch_1_batch_0_layer.pt",
        "epoch_1_batch_0_layer_call1.pt",
    ]


# C12: filter, numpy, another thread, memory, sampling.


def test_c12_a_condition_on_the_output(tmp_path):
    model = Around(Returns(lambda x: x))
    layers = {"layer": {"record_type": "epoch_full"}}
    with lt.Monitor(model, layers, [1], tmp_path, condition=lambda output: output.shape[0] > 2) as monitor:
        monitor.set_epoch(1)
        for batch, rows in enumerate((2, 4, 1, 3)):
            monitor.set_batch_idx(batch)
            model(torch.ones(rows, 3))
        assert list(monitor.get_epoch_data()["layer"]["data"]) == [(1, 1), (1, 3)]
    assert len(lt.Run(tmp_path)["layer"]) == 2


def test_c12_the_documented_way_to_a_condition_is_to_override_a_method(tmp_path):
    class Mine(lt.Monitor):
        def _custom_condition(self, output):
            return bool(torch.isnan(output).any())

    model = Around(Returns(lambda x: x))
    with Mine(model, ["layer"], [1], tmp_path, [0, 1]) as monitor:
        monitor.set_epoch(1)
        for batch, value in enumerate((1.0, float("nan"))):
            monitor.set_batch_idx(batch)
            model(torch.full((2, 3), value))
        assert list(monitor.get_single_data()["layer"]["data"]) == [(1, 1)]


def test_c12_numpy_files(tmp_path):
    one_batch(lambda x: (x, x.bfloat16(), None), tmp_path, files="npz")
    with np.load(tmp_path / "epoch_1_batch_0_layer.npz", allow_pickle=False) as saved:
        assert saved["output.0"].shape == (2, 3)
        assert saved["output.1"].dtype == np.float32
        assert (int(saved["epoch"]), str(saved["layer"])) == (1, "layer")


def test_c12_no_files_at_all_only_the_run(tmp_path):
    one_batch(lambda x: x, tmp_path, files=None)
    assert not list(tmp_path.glob("*.pt"))
    assert lt.Run(tmp_path)["layer"].tensor().shape == (2, 3)


def test_c12_asynchronous_files_are_there_when_the_hooks_are_gone(tmp_path):
    model = Around(Returns(lambda x: x))
    monitor = lt.Monitor(model, {"layer": {"record_type": "epoch_full"}}, [1, 2], tmp_path, asynchronous=True)
    gate = threading.Event()
    monitor._saver._thread.submit(gate.wait)  # a thread that is slow to begin
    for epoch in (1, 2):
        monitor.set_epoch(epoch)
        for batch in range(3):
            monitor.set_batch_idx(batch)
            model(torch.ones(2, 3))
        assert monitor.save_epoch_outputs() == []
        assert monitor.run.count  # commits: the next epoch is in another shard
        monitor.clear_current_epoch_data()
    gate.set()
    monitor.remove_hooks()
    assert len(list(tmp_path.glob("*.pt"))) == 8, "the first epoch is found though the second began meanwhile"
    assert torch.load(tmp_path / "epoch_2_batch_full_layer.pt")["output"].shape == (6, 3)


def test_c12_sampling_every_other_batch_and_keeping_less(tmp_path):
    model = Around(Returns(lambda x: x))
    layers = {"layer": {"record_type": "epoch_full"}}
    with lt.Monitor(model, layers, [1], tmp_path, every=2, keep="[:1]") as monitor:
        monitor.set_epoch(1)
        for batch in range(5):
            monitor.set_batch_idx(batch)
            model(torch.ones(2, 3))
        data = monitor.get_epoch_data()["layer"]["data"]
    assert {key: value.shape for key, value in data.items()} == {(1, b): (1, 3) for b in (0, 2, 4)}


def test_c12_statistics_alone_cost_no_disk_and_say_that_there_are_no_tensors(tmp_path, caplog):
    model = Around(Returns(lambda x: x))
    layers = {"layer": {"record_type": "epoch_full"}}
    with lt.Monitor(model, layers, [1], tmp_path, keep="stats") as monitor:
        monitor.set_epoch(1)
        for batch in range(3):
            monitor.set_batch_idx(batch)
            model(torch.ones(2, 3))
        assert monitor.get_epoch_data() == {}
        assert monitor.epoch_statistics()["layer"][""].count == 18
    assert "layer: the tensors of 3 outputs, first at epoch 1, batch 0, are not in the run" in caplog.text
    assert torch.load(tmp_path / "epoch_1_batch_full_layer.pt")["statistics"]["count"] == 18


def test_c12_memory_is_watched(tmp_path):
    model = Around(Returns(lambda x: x))
    with lt.Monitor(model, ["layer"], [1], tmp_path, [0]) as monitor:
        assert monitor.usage == {"outputs": 0, "under_way": 0, "recorded": 0}
        monitor.set_epoch(1)
        monitor.set_batch_idx(0)
        model(torch.ones(2, 3))
        monitor.get_single_data()
        assert monitor.usage["outputs"] == 1
        assert monitor.usage["under_way"] == 0
        assert monitor.usage["recorded"] >= 24
        monitor.clear_current_epoch_data()
        assert monitor.usage["outputs"] == 0


# Never a silent nothing.


def test_a_layer_from_which_nothing_comes_is_told(tmp_path, caplog):
    model = Around(Returns(lambda x: x))
    model.unused = nn.Linear(3, 3)
    with lt.Monitor(model, ["layer", "unused"], [1], tmp_path, [0]) as monitor:
        monitor.set_epoch(1)
        monitor.set_batch_idx(0)
        model(torch.ones(2, 3))
    assert "unused: nothing recorded in epoch 1: the model ran once without calling it" in caplog.text
    assert "layer: nothing" not in caplog.text


def test_epochs_and_batches_that_never_came_are_told(tmp_path, caplog):
    model = Around(Returns(lambda x: x))
    with lt.Monitor(model, ["layer"], [9], tmp_path / "a", [0]) as monitor:
        monitor.set_epoch(1)
    assert "nothing was recorded: none of the epochs [9] occurred; the last one set was 1" in caplog.text
    layers = {"layer": [{"alias": "one"}, {"alias": "all", "record_type": "epoch_full"}]}
    with lt.Monitor(model, layers, [1], tmp_path / "b", [50]) as monitor, caplog.at_level(logging.WARNING):
        monitor.set_epoch(1)
        monitor.set_batch_idx(0)
    assert "layer: nothing recorded in epoch 1: none of batch_indices [50] occurred" in caplog.text


# Samples.


def test_a_sample_is_found_again_in_shuffled_batches(tmp_path):
    torch.manual_seed(0)
    model = Around(Returns(lambda x: x))
    data = torch.randn(10, 3)
    orders = [torch.randperm(10) for _ in range(2)]
    with lt.Monitor(model, {"layer": {"record_type": "epoch_full"}}, [1, 2], tmp_path) as monitor:
        for epoch, order in enumerate(orders, 1):
            monitor.set_epoch(epoch)
            for batch_idx, rows in enumerate(order.split(4)):
                monitor.set_batch_idx(batch_idx, samples=rows)
                model(data[rows])
    run = lt.Run(tmp_path)
    for sample in (0, 7):
        places = find_sample(run, sample)
        assert places == find_sample(run, data[sample])
        expected = [(epoch, *divmod((order == sample).nonzero().item(), 4)) for epoch, order in enumerate(orders, 1)]
        assert [(place.epoch, place.batch, place.row) for place in places] == expected
        for place in places:
            found = run["layer"].at(step=place.step).tensor()[place.row]
            torch.testing.assert_close(found, model.layer.linear(data[sample]).detach())
    assert find_sample(run, torch.zeros(3)) == []
    assert run.sites == ("layer",)


def test_samples_are_no_inputs_two_runs_compare_though_one_knows_none(tmp_path):
    torch.manual_seed(0)
    model = Around(Returns(lambda x: x))
    x = torch.randn(2, 3)
    with lt.Monitor(model, ["layer"], [1], tmp_path, [0]) as monitor:
        monitor.set_epoch(1)
        monitor.set_batch_idx(0)
        model(x)
    with lt.record(model, sites="layer", keep="tensor") as rec:
        model(x)
    assert lt.diff(tmp_path, rec.run).verdict == "identical"


def test_an_epoch_larger_than_the_budget_is_not_joined_and_that_is_told(tmp_path, caplog):
    model = Around(Returns(lambda x: x))
    with lt.Monitor(model, {"layer": {"record_type": "epoch_full"}}, [1], tmp_path, budget=100) as monitor:
        monitor.set_epoch(1)
        for batch in range(6):
            monitor.set_batch_idx(batch)
            model(torch.ones(2, 3))
    assert "layer: epoch 1 is larger than the budget" in caplog.text
    assert len(list(tmp_path.glob("epoch_1_batch_[0-9]_layer.pt"))) == 6
    whole = torch.load(tmp_path / "epoch_1_batch_full_layer.pt", weights_only=True)
    assert whole["output"] is None
    assert whole["statistics"]["count"] == 36


def test_f4_the_log_speaks_chinese(tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("LAYERTAP_LANG", "zh")
    model = Around(Returns(lambda x: x))
    model.unused = nn.Linear(3, 3)
    with lt.Monitor(model, ["unused"], [1], tmp_path, [0]) as monitor:
        monitor.set_epoch(1)
        monitor.set_batch_idx(0)
        model(torch.ones(2, 3))
    assert "unused：epoch 1 没有任何记录：" in caplog.text


def test_an_output_that_a_graph_returned_has_the_form_of_the_layers_own(tmp_path):
    def make(y):
        return {"hidden": y, "parts": (y + 1, y + 2)}

    model = Around(Returns(make))
    compiled = torch.compile(model, backend="eager")
    with lt.Monitor(compiled, ["layer"], [1], tmp_path, [0], strict=True) as monitor:
        monitor.set_epoch(1)
        monitor.set_batch_idx(0)
        compiled(torch.ones(2, 3))
        output = monitor.get_single_data()["layer"]["data"][1, 0]
    hidden = model.layer.linear(torch.ones(2, 3))
    assert list(output) == ["hidden", "parts"]
    assert isinstance(output["parts"], tuple)
    for found, expected in zip((output["hidden"], *output["parts"]), (hidden, hidden + 1, hidden + 2), strict=True):
        assert torch.allclose(found, expected)
