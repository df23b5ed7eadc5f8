"""Recording while a collective is under way: the values are those after it, whoever is late."""

import pytest
import torch

import layertap as lt
from capture import ranks
from literals import fixed_part


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def job(folder):
    return ranks.run(folder)


def test_what_a_rank_records_is_what_the_collective_gives_and_not_its_own_part(job):
    for rank in (0, 1):
        found, right = job(rank, "forward_and_back")["found"], job(rank, "forward_and_back")["right"]
        assert torch.allclose(found["down"], right["output"], atol=1e-6)
        assert torch.allclose(found[":output"], right["output"], atol=1e-6)


def test_gradients_too(job):
    made = [job(rank, "forward_and_back") for rank in (0, 1)]
    for rank in (0, 1):
        found, right = made[rank]["found"], made[rank]["right"]
        assert torch.allclose(found[":grad_input"], right["grad_input"], atol=1e-5)
        assert torch.allclose(found["down:param_grad.bias"], right["param_grad"], atol=1e-5)
        assert made[rank]["up"].partial, "what comes back to `up` itself is each rank's summand, and the record says so"
    both = made[0]["found"]["up:grad_input"] + made[1]["found"]["up:grad_input"]
    assert torch.allclose(both, made[0]["right"]["grad_input"], atol=1e-5)


def test_a_gradient_that_a_function_of_the_users_own_reduces(job):
    for rank in (0, 1):
        made = job(rank, "gradients")
        assert torch.allclose(made["found"]["1:grad_input"], made["right"], atol=1e-6)
        assert torch.allclose(made["found"]["0:grad_output"], made["right"], atol=1e-6)
        assert torch.allclose(made["found"]["0:param_grad.bias"], made["bias"], atol=1e-5)


def test_one_rank_may_record_alone(job):
    found = job(0, "one_rank_records")
    assert torch.allclose(found["found"]["down"], found["right"], atol=1e-6)


def test_a_step_that_is_not_recorded_waits_for_nobody(job):
    assert job(0, "not_due") == [0, 1], "collectives under way after a recorded step, and after one that was not"


@pytest.mark.parametrize("name", ["DTensor", "a cache", "a view in a dictionary", "no wrapper"])
def test_wherever_the_pending_tensor_lies(job, name):
    for rank in (0, 1):
        found, right = job(rank, "nested")["found"][name], job(rank, "nested")["right"]
        value = next(tensor for site, tensor in found.items() if site.startswith("0") and site[1:] != ":output.0")
        assert torch.equal(value.reshape(4, 8), right), found.keys()


def test_compiled_models_too(job):
    for rank in (0, 1):
        made = job(rank, "compiled")
        part = slice(8 * rank, 8 * rank + 8)
        assert torch.allclose(made["found"]["tensor"]["up"], made["up"][:, part], atol=1e-6)
        assert torch.allclose(made["found"]["tensor"]["down"], made["down"], atol=1e-6)
        assert made["found"]["stats"]["down"].mean == pytest.approx(made["down"].mean().item(), abs=1e-6)
        assert made["found"]["stats"]["up"].mean == pytest.approx(made["up"][:, part].mean().item(), abs=1e-6)
        assert (made["sharding"].global_shape, made["sharding"].offset) == ((4, 16), (0, 8 * rank))


def test_sequence_parallelism_under_watch_raises_no_alarm(job):
    for rank in (0, 1):
        made = job(rank, "sequence_parallel")
        assert made["reports"] == []
        assert made["records"] == 12
        assert max(made["largest"].values()) < 1e4, "garbage of a buffer that was not written yet"


def test_parts_are_proven_identical_to_the_whole_by_statistics_alone(job, folder):
    assert [job(rank, "parts") for rank in (0, 1)] == [None, None]
    pairs = [("one", "columns"), ("columns", "one"), ("one", "rows"), ("rows", "columns"), ("trained", "fsdp")]
    for one, other in pairs:
        report = lt.diff(folder / f"parts-{one}", folder / f"parts-{other}")
        assert report.verdict == "identical", str(report)
    shards = [record for record in lt.Run(folder / "parts-fsdp").records() if record.fingerprint_in_whole is not None]
    assert {record.site.role for record in shards} == {"param_grad"}
    assert len(shards) == 8, "four parameters on two ranks"


def test_one_wrong_element_of_one_rank_is_seen_by_statistics_alone(job, folder):
    assert job(1, "parts") is None
    report = lt.diff(folder / "parts-one", folder / "parts-broken")
    assert (report.verdict, str(report.first.site)) == ("fault", "1"), str(report)
    length = lt.Run(folder / "parts-one")["1"].statistics.l2
    assert report.first.error == pytest.approx(1 / length, rel=1e-3)
    assert [row.verdict for row in report.rows if str(row.site) in (":input", "0:input", "0", "1:input")] == 4 * [
        "identical"
    ]


def test_a_monitors_files(job):
    for rank in (0, 1):
        made = job(rank, "monitored")
        assert torch.allclose(made["found"], made["right"], atol=1e-6)


def test_find_fault_reads_outputs_that_a_collective_makes(job):
    for rank in (0, 1):
        made = job(rank, "fault")
        assert made["verdicts"] == ("identical", "fault"), made["text"]
        assert made["site"] == "down"
        assert "down is wrong (weights): bias" in made["text"]
        assert fixed_part("fault.other_form") not in made["text"]
