"""Statistics and tensors in TensorBoard's own files, under the names of the sites."""

import math
import sys

import pytest
import torch
from torch import nn

import layertap as lt
from layertap.errors import MissingExtra
from layertap.monitor import TensorBoard

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # tensorboard's own


def events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder), size_guidance={"histograms": 0, "scalars": 0}).Reload()


def train(model, monitor, values=(1.0, 2.0)):
    monitor.set_epoch(1)
    for batch_idx, value in enumerate(values):
        monitor.set_batch_idx(batch_idx)
        model(torch.full((2, 3), value))


def test_scalars_and_histograms_under_the_names_of_the_sites(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.MultiheadAttention(4, 2), nn.Linear(3, 3))
    model.forward = lambda x: (
        model[1](x) if model[0](torch.ones(2, 1, 4), torch.ones(2, 1, 4), torch.ones(2, 1, 4)) else x
    )
    layers = {"0": {"alias": "attn", "record_type": "epoch_full"}, "1": {"record_type": "epoch_full"}}
    with lt.Monitor(model, layers, [1], tmp_path / "out", tensorboard=tmp_path / "tb") as monitor:
        train(model, monitor)
    found = events(tmp_path / "tb")
    run = lt.Run(tmp_path / "out")
    assert set(found.Tags()["histograms"]) == {str(site) for site in run.sites} == {"0:output.0", "0:output.1", "1"}
    assert {tag.rpartition("/")[2] for tag in found.Tags()["scalars"]} == {"mean", "std", "abs_max", "l2", "nonfinite"}
    for event, record in zip(found.Scalars("1/std"), run["1"], strict=True):
        assert event.step == record.step
        assert event.value == pytest.approx(record.statistics.std, rel=1e-6)
    histogram = found.Histograms("1")[0].histogram_value
    assert histogram.num == 6
    assert histogram.sum == pytest.approx(run["1"].at(step=0).tensor().sum().item(), rel=1e-6)


def test_a_run_that_is_there_already(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    with lt.record(model, tmp_path / "run", sites="*", what=("output", "param_grad"), keep={"0": "tensor"}) as rec:
        for _ in range(2):
            model(torch.ones(2, 3)).sum().backward()
            rec.step()
    board = TensorBoard(tmp_path / "tb")
    board.add_run(rec.run)
    board.close()
    found = events(tmp_path / "tb")
    assert set(found.Tags()["histograms"]) == {"0", "0:param_grad.weight", "0:param_grad.bias"}
    assert [event.step for event in found.Scalars("1/l2")] == [0, 1]
    expected = rec.run["0:param_grad.weight"].at(step=1).statistics.l2
    assert found.Scalars("0:param_grad.weight/l2")[1].value == pytest.approx(expected, rel=1e-6)


def test_nan_and_inf_are_counted_not_drawn(tmp_path):
    model = nn.Sequential(nn.Identity())
    with lt.Monitor(model, {"0": {"record_type": "epoch_full"}}, [1], tmp_path, tensorboard=tmp_path / "tb") as monitor:
        train(model, monitor, values=(1.0, math.nan, math.inf))
    found = events(tmp_path / "tb")
    assert [event.value for event in found.Scalars("0/nonfinite")] == [0, 6, 6]
    assert [event.step for event in found.Scalars("0/mean")] == [0]
    assert [event.step for event in found.Histograms("0")] == [0]


def test_kept_histograms_are_drawn_from_their_counts(tmp_path):
    x = torch.tensor([[-3.0, -3.5, 0.0, 0.0, 0.75, 2.0**41, 1e-20, math.nan, math.inf]])
    model = nn.Sequential(nn.Identity())
    with lt.Monitor(
        model, {"0": {"record_type": "epoch_full"}}, [1], tmp_path, keep="histogram", tensorboard=tmp_path / "tb"
    ) as monitor:
        monitor.set_epoch(1)
        for batch_idx, values in enumerate((x, x[:, :2], torch.full((1, 2), math.nan))):
            monitor.set_batch_idx(batch_idx)
            model(values)
    drawn = events(tmp_path / "tb").Histograms("0")
    assert [event.step for event in drawn] == [0, 1], "there is nothing to draw of NaN alone"
    value = drawn[0].histogram_value
    assert (value.num, value.min, value.max) == (7, -3.5, 2.0**41)
    assert value.sum == pytest.approx(2.0**41 - 5.75)
    assert value.sum_squares == pytest.approx(2.0**82)
    limits = list(value.bucket_limit)
    assert limits == sorted(set(limits))
    filled = {limit: count for limit, count in zip(limits, value.bucket, strict=True) if count}
    tiny = sys.float_info.min
    assert filled == {-2.0: 2, tiny: 2, 2.0**-40: 1, 1.0: 1, 2.0**41: 1}
    assert (value.bucket[0], limits[0]) == (0, -4.0), "so that a reader knows where the first bin begins"
    assert list(drawn[1].histogram_value.bucket) == [0, 2]
    assert list(drawn[1].histogram_value.bucket_limit) == [-4, -2]


def test_evaluation_has_its_own_tags_and_statistics_alone_no_histogram(tmp_path):
    model = nn.Sequential(nn.Identity()).eval()
    options = dict(keep="stats", tensorboard=tmp_path / "tb")
    with lt.Monitor(model, {"0": {"record_type": "epoch_full"}}, [1], tmp_path, **options) as monitor:
        train(model, monitor)
    found = events(tmp_path / "tb")
    assert "eval/0/mean" in found.Tags()["scalars"]
    assert found.Tags()["histograms"] == []


def test_a_listener_that_fails_does_not_harm_the_run(tmp_path, caplog, monkeypatch):
    def fails(self, record, data):
        raise OSError("the disk with the logs is full")

    monkeypatch.setattr(TensorBoard, "add", fails)
    model = nn.Sequential(nn.Identity())
    with lt.Monitor(model, {"0": {"record_type": "epoch_full"}}, [1], tmp_path, tensorboard=tmp_path / "tb") as monitor:
        train(model, monitor)
    assert len(lt.Run(tmp_path)["0"]) == 2
    assert caplog.text.count("TensorBoard stopped at") == 1


def test_without_the_package_the_line_to_type_is_printed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtra, match=r"install it with: pip install 'layertap\[tensorboard\]'"):
        lt.Monitor(nn.Linear(1, 1), [""], [1], tmp_path, [0], tensorboard=tmp_path / "tb")
