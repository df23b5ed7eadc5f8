"""Recording an eager model: what is taken, how it is named, and that the model does not notice."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import layertap as lt
from layertap.capture import plan, taps
from layertap.errors import BadArgument, NoMatch, NothingCaptured

X = torch.arange(6.0).reshape(2, 3)


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))


def sites_of(rec):
    return [str(site) for site in rec.run.sites]


def test_outputs_with_statistics_and_tensors():
    model = mlp()
    with lt.record(model, sites="*", keep="tensor") as rec:
        output = model(X)
    assert sites_of(rec) == ["0", "1", "2"]
    assert torch.equal(rec.run["2"].tensor(), output)
    stats = rec.run["2"].statistics
    assert stats.mean == pytest.approx(output.mean().item())
    assert stats.std == pytest.approx(output.std(correction=0).item())
    assert stats.first == tuple(output.flatten().tolist())


def test_in_place_operations_after_the_tap_change_nothing():
    model = mlp()
    with lt.record(model, sites="0", keep="tensor") as rec:
        model(X)
    assert torch.equal(rec.run["0"].tensor(), model[0](X))
    assert rec.run["0"].statistics.min < 0, "the ReLU after it works in place"


def test_a_tensor_overwritten_right_after_the_call_is_safe():
    model = nn.Identity()
    with lt.record(model, sites="", keep="tensor") as rec:
        for value in range(20):
            x = torch.full((50_000,), float(value))
            model(x)
            x.fill_(-1)
    assert [rec.run[f":output@{call}" if call else ":output"].tensor().unique().item() for call in range(20)] == list(
        range(20)
    )


def test_roles_inputs_and_keywords():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, x, mask=None):
            return self.inner(x, scale=torch.tensor(2.0), mask=mask, flag=True)["value"]

    class Inner(nn.Module):
        def forward(self, x, *, scale, mask, flag):
            return {"value": x * scale, "other": (x, None)}

    model = Model()
    with lt.record(model, sites="inner", what=("input", "output"), keep="tensor") as rec:
        model(X, mask=None)
    assert sites_of(rec) == ["inner:input.0", "inner:input.scale", "inner:output.value", "inner:output.other.0"]
    entry = {site.role: site for site in rec.receipt.sites}
    assert entry["input"].skipped == {"None": 1, "bool": 1}
    assert entry["output"].skipped == {"None": 1}


def test_gradients_and_parameters_match_autograd():
    model = mlp()
    x = X.clone().requires_grad_()
    with lt.record(model, sites="2", what=lt.site.ROLES, keep="tensor") as rec:
        hidden = model[:2](x)
        hidden.retain_grad()
        output = model[2](hidden)
        output.retain_grad()
        output.pow(2).sum().backward()
    run = rec.run
    assert torch.equal(run["2:grad_output"].tensor(), output.grad)
    assert torch.equal(run["2:grad_input"].tensor(), hidden.grad)
    assert torch.equal(run["2:param.weight"].tensor(), model[2].weight.detach())
    assert torch.equal(run["2:param_grad.weight"].tensor(), model[2].weight.grad)
    assert torch.equal(run["2:param_grad.bias"].tensor(), model[2].bias.grad)
    orders = [run[site].record.order for site in run.sites]
    assert orders == sorted(orders)


def test_grad_input_is_the_modules_own_share():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 3, bias=False)

        def forward(self, x):
            return x + self.inner(x)

    model = Residual()
    x = X.clone().requires_grad_()
    with lt.record(model, sites="inner", what="grad_input", keep="tensor") as rec:
        model(x).sum().backward()
    own = torch.ones(2, 3) @ model.inner.weight
    assert torch.allclose(rec.run["inner:grad_input"].tensor(), own)
    assert torch.allclose(x.grad, own + 1)


def test_parameters_go_to_the_lowest_watched_module():
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)))
    with lt.record(model, sites=["0", "0.1"], what="param") as rec:
        model(X)
    assert sites_of(rec) == ["0:param.0.weight", "0:param.0.bias", "0.1:param.weight", "0.1:param.bias"]


def test_calls_are_counted_and_steps_start_anew():
    shared = nn.Linear(3, 3)
    model = nn.Sequential(shared, shared)
    with lt.record(model, sites="0") as rec:
        for _ in range(2):
            model(X)
            rec.step()
    assert sites_of(rec) == ["0", "0@1"]
    assert rec.run["0"].steps == (0, 1)


def test_direct_forward_is_recorded_and_said():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.scan = nn.Linear(3, 3)

        def forward(self, x):
            return self.scan.forward(x)

    model = Model()
    with lt.record(model, sites="scan") as rec:
        model(X)
    assert rec.receipt.sites[0].direct == 1
    assert "module.forward" in str(rec.receipt)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_recompute_is_recognised(reentrant):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))

        def forward(self, x):
            for layer in self.layers:
                x = checkpoint(lambda value, layer=layer: layer(value).tanh(), x, use_reentrant=reentrant)
            return x

    torch.manual_seed(0)
    model = Model()
    with lt.record(model, sites="layers.*", what=("output", "grad_output"), keep="tensor") as rec:
        model(X.clone().requires_grad_()).sum().backward()
    outputs = [site for site in rec.run.sites if site.role == "output"]
    gradients = [site for site in rec.run.sites if site.role == "grad_output"]
    assert [str(site) for site in outputs] == ["layers.0", "layers.1", "layers.2"]
    assert [str(site) for site in gradients] == [f"layers.{i}:grad_output" for i in (2, 1, 0)]
    assert sum(site.recomputed for site in rec.receipt.sites if site.role == "output") >= 2
    last = model.layers[2]
    hidden = model.layers[1](model.layers[0](X).tanh()).tanh()
    expected = 1 - last(hidden).tanh() ** 2
    assert torch.allclose(rec.run["layers.2:grad_output"].tensor(), expected)


def test_phases_autocast_and_inference_mode():
    model = mlp()
    with lt.record(model, sites="2", keep="tensor") as rec:
        model.train()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = model(X)
        rec.step()
        model.eval()
        with torch.inference_mode():
            high = model(X)
    records = list(rec.run["2"])
    assert [(r.phase, r.dtype) for r in records] == [("train", "bfloat16"), ("eval", "float32")]
    assert torch.equal(rec.run["2"].at(step=0).tensor(), low)
    assert torch.equal(rec.run["2"].at(phase="eval").tensor(), high)


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([1, -2, 3]),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j, 3 - 1j]),
        torch.tensor([1 + 2j, 3 - 1j]).conj(),
        torch.randn(3, 4).to(torch.bfloat16),
        torch.randn(3, 4).to(torch.float16),
        torch.randn(3, 4).to(torch.float8_e4m3fn),
        torch.randn(3, 4).to(torch.float8_e5m2),
        torch.randn(3, 4, dtype=torch.float64),
        torch.empty(0, 4),
        torch.tensor(3.5),
        torch.randn(4, 6).t(),
        torch.randn(8, 6)[::2, 1:4],
        torch.randn(1, 5).expand(3, 5),
        torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0]),
    ],
    ids=lambda value: f"{value.dtype}-{tuple(value.shape)}".removeprefix("torch."),
)
def test_every_kind_of_tensor(value):
    class Giver(nn.Module):
        def forward(self, x):
            return value

    model = Giver()
    with lt.record(model, sites="", keep="tensor") as rec:
        model(X)
    back = rec.run[":output"].tensor()
    assert back.dtype == value.dtype
    assert back.shape == value.shape
    same = value.resolve_conj().contiguous()
    assert np.array_equal(back.reshape(-1).view(torch.uint8).numpy(), same.reshape(-1).view(torch.uint8).numpy())


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_sparse_and_quantised_tensors_come_in_parts_or_are_named():
    class Giver(nn.Module):
        def forward(self, x):
            return x.to_sparse(), torch.empty(2, device="meta"), torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)

    model = Giver()
    with lt.record(model, sites="", keep="tensor") as rec:
        model(X)
    assert sites_of(rec) == [":output.0.indices", ":output.0.values"]
    assert rec.run[":output.0.values"].tensor().tolist() == [1, 2, 3, 4, 5]
    assert sum(rec.receipt.sites[0].skipped.values()) == 2


def test_keep_by_pattern_slice_and_function():
    model = mlp()

    def row_means(tensor):
        return tensor.mean(-1)

    with lt.record(model, sites="*", keep={"0": "[:, -1]", "2": row_means}) as rec:
        output = model(X)
    run = rec.run
    assert torch.equal(run["0"].tensor(), model[0](X)[:, -1])
    assert torch.equal(run["2"].tensor(), output.mean(-1))
    assert run["0"].record.kept == "[:, -1]"
    assert run["2"].record.kept == "row_means"
    assert run["2"].record.shape == (2, 2), "the statistics are the whole tensor's"
    assert run["1"].record.kept == "stats"
    with pytest.raises(lt.errors.NoTensor, match="keep="):
        run["1"].tensor()


def test_schedule_hooks_nothing_on_other_steps():
    model = mlp()
    seen = []
    with lt.record(model, sites="2", schedule=3) as rec:
        for _ in range(7):
            seen.append(taps.attached() > 0)
            model(X)
            rec.step()
    assert seen == [True, False, False, True, False, False, True]
    assert rec.run["2"].steps == (0, 3, 6)
    assert rec.receipt.steps == 3


def test_epoch_and_batch_travel_along():
    model = mlp()
    with lt.record(model, sites="2") as rec:
        rec.epoch, rec.batch = 3, 1
        model(X)
    assert (rec.run["2"].record.epoch, rec.run["2"].record.batch) == (3, 1)


def test_the_models_own_inputs_are_recorded_unasked():
    model = nn.Embedding(9, 2)
    holder = nn.Sequential(model)
    with lt.record(holder, sites="0") as rec:
        holder(torch.tensor([[1, 2, 3]]))
    assert sites_of(rec) == ["0"]
    (given,) = rec.run.inputs
    assert (str(given.site), given.kept) == (":input", "tensor")


def test_nested_recordings_and_two_models():
    first, second = mlp(), mlp()
    with lt.record(first, sites="2") as outer, lt.record(second, sites="*") as inner:
        with lt.record(first, sites="0") as nested:
            second(first(X).new_ones(2, 3))
        first(X)
    assert sites_of(outer) == ["2", "2@1"]
    assert sites_of(inner) == ["0", "1", "2"]
    assert sites_of(nested) == ["0"]


def test_nothing_captured_is_an_error_that_says_why():
    model = nn.ModuleDict({"used": nn.Linear(3, 3), "list": nn.ModuleList([nn.ReLU()])})
    with pytest.raises(NothingCaptured, match=r"container"), lt.record(model, sites="list"):
        model["used"](X)
    with pytest.raises(NothingCaptured, match="never called"), lt.record(mlp(), sites="0"):
        pass
    never = pytest.raises(NothingCaptured, match="no step was selected; the schedule is steps 5")
    with never, lt.record(mlp(), sites="0", schedule=[5]) as rec:
        rec.model(X)
    with pytest.raises(NothingCaptured, match="backward"), lt.record(mlp(), sites="0", what="grad_output") as rec:
        rec.model(X)


def test_the_users_own_error_is_not_covered_up():
    with pytest.raises(ZeroDivisionError), lt.record(mlp(), sites="0"):
        1 / 0  # noqa: B018


def test_wrong_arguments_say_the_way_out():
    with pytest.raises(NoMatch, match="matches none of the 4 modules"):
        lt.record(mlp(), sites="nope.*")
    with pytest.raises(BadArgument, match="grad_output"):
        lt.record(mlp(), what="outputs")
    with pytest.raises(BadArgument, match="stats"):
        lt.record(mlp(), keep="everything")
    with pytest.raises(BadArgument, match="2GiB"):
        lt.record(mlp(), budget="lots")
    with pytest.raises(BadArgument, match="every n-th"):
        lt.record(mlp(), schedule=0)
    with pytest.raises(BadArgument, match="Module"):
        lt.record("model")


def test_plan_knows_bytes_before_recording():
    model = mlp()
    planned = plan(model, lambda: model(X), sites=["0", "2"])
    assert planned.bytes == 2 * 4 * 4 + 2 * 2 * 4
    assert "48 B" in str(planned)


def test_results_and_random_state_are_untouched():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2)).train()
    torch.manual_seed(1)
    bare, bare_next = model(X), torch.rand(3)
    torch.manual_seed(1)
    with lt.record(model, sites="**", what=("input", "output", "param"), keep="tensor"):
        tapped = model(X)
    assert torch.equal(bare, tapped)
    assert torch.equal(bare_next, torch.rand(3))


def test_dataclass_outputs_keep_their_type():
    @dataclasses.dataclass
    class Result:
        value: torch.Tensor
        note: str = ""

    class Model(nn.Module):
        def forward(self, x):
            return Result(x + 1)

    model = Model()
    with lt.record(model, sites="", what=("output", "grad_output")) as rec:
        result = model(X.clone().requires_grad_())
        result.value.sum().backward()
    assert type(result) is Result
    assert sites_of(rec) == [":output.value", ":grad_output.value"]


def test_step_by_step_use_without_with():
    model = mlp()
    rec = lt.record(model, sites="2").start()
    model(X)
    rec.step()
    assert rec.run.count == 2, "one record and the model's input"
    model(X)
    rec.close()
    rec.close()
    assert rec.run["2"].steps == (0, 1)
    with pytest.raises(BadArgument, match="used already"):
        rec.start()


def test_a_complex_tensor_counts_as_two_reals():
    value = torch.complex(torch.arange(6.0).reshape(2, 3), -torch.ones(2, 3))
    with lt.record(nn.Sequential(nn.Identity()), sites="0", keep="tensor") as rec:
        rec.model(value)
    with lt.record(nn.Sequential(nn.Identity()), sites="0") as measured:
        measured.model(value)
    assert torch.equal(rec.run["0"].tensor(), value)
    for recording in (rec, measured):
        record = recording.run["0"].record
        assert (record.shape, record.dtype) == ((2, 3), "complex64")
        assert (record.statistics.count, record.statistics.mean) == (12, pytest.approx((15 - 6) / 12))
