"""What a monitor says to arguments that mean nothing, and to a training in which nothing came."""

import pytest
import torch
from torch import nn

import layertap as lt
from layertap import errors


def test_a_monitor_that_never_came_to_record_has_a_receipt_that_says_why(tmp_path, caplog):
    model = nn.Sequential(nn.Linear(2, 2))
    monitor = lt.Monitor(model, ["0"], [1], tmp_path / "out", batch_indices=[9])
    assert monitor.receipt.sites[0].why == "set_epoch was never called"
    monitor.set_epoch(0)
    assert "none of the epochs [1] occurred; the last one set was 0" in str(monitor.receipt)
    monitor.set_epoch(1)
    monitor.set_batch_idx(0)
    model(torch.ones(1, 2))
    monitor.remove_hooks()
    assert "nothing was recorded: none of batch_indices [9] occurred in a recorded epoch" in caplog.text
    assert monitor.receipt.records == 0


@pytest.mark.parametrize("given", [3, "12", [1.5], ["one"], [None]])
def test_epochs_that_are_no_list_of_numbers_are_refused(given, tmp_path):
    with pytest.raises(errors.BadArgument, match="expected a list of whole numbers"):
        lt.Monitor(nn.Sequential(nn.Linear(2, 2)), ["0"], given, tmp_path, batch_indices=[0])


def test_a_folder_and_a_configuration_that_are_none_are_named(tmp_path):
    (tmp_path / "file").write_text("{")
    model = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(errors.RunError, match="file: no run can be written here"):
        lt.Monitor(model, ["0"], [1], tmp_path / "file", batch_indices=[0])
    for name in ("file", "absent.json"):
        with pytest.raises(errors.BadArgument, match=f"{name}: no configuration can be read"):
            lt.Monitor.from_config(model, tmp_path / name)
