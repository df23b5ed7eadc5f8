"""Results are data: each can be pickled, compared, and rebuilt from JSON, and keeps no model alive."""

import dataclasses
import gc
import importlib
import io
import json
import math
import pickle
import weakref

import pytest
import torch
from torch import nn

import layertap as lt
from layertap.compare.ranks import RanksReport
from layertap.compare.training import diff_training
from layertap.result import Note, Result
from layertap.store import MemoryWriter, Run
from layertap.weights import doctor, knockout
from layertap.weights.knockout import Knockout, KnockoutRow


def model(wrong=False):
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    if wrong:
        with torch.no_grad():
            made[2].weight[1] *= -1
    return made


def run_of(net, training=False):
    with lt.record(net, meta={"training": True} if training else None) as rec:
        for _ in range(2):
            net(torch.ones(3, 6))
            rec.step()
    return rec


def language_model():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=32, num_hidden_layers=2, **sizes)).eval()


IDS = {"input_ids": torch.arange(12).reshape(1, 12)}


def made_report():
    return lt.diff(run_of(model()).run, run_of(model(wrong=True)).run)


def made_training_report():
    return diff_training(run_of(model(), training=True).run, run_of(model(wrong=True), training=True).run)


def made_knockout():
    return knockout(language_model(), IDS)


def made_diagnosis():
    return doctor(language_model(), language_model(), IDS)


def made_ranks_report():
    writer = MemoryWriter(info={})
    writer.close()
    found = Note("ranks.no_weights")
    return RanksReport(
        run=Run(writer).name,
        ranks=(0, 1),
        steps=1,
        compared=1,
        findings=(found,),
        losses=((0, 1.5, 2.0),),
        notes=(found,),
    )


MADE = {
    "Report": made_report,
    "TrainingReport": made_training_report,
    "Finding": lambda: lt.find_fault(model(), model(wrong=True), torch.ones(3, 6)),
    "Receipt": lambda: run_of(model()).receipt,
    "Audit": lambda: lt.audit(model(), model(wrong=True).state_dict()),
    "Knockout": made_knockout,
    "Diagnosis": made_diagnosis,
    "RanksReport": made_ranks_report,
}


@pytest.fixture(scope="module")
def results():
    return {}


@pytest.fixture(params=list(MADE))
def result(request, results):
    name = request.param
    if name in ("Knockout", "Diagnosis"):
        pytest.importorskip("transformers")
    if name not in results:
        results[name] = MADE[name]()
    assert type(results[name]).__name__ == name
    return results[name]


def test_it_comes_back_from_a_pickle(result):
    again = pickle.loads(pickle.dumps(result))
    assert again == result
    assert str(again) == str(result)


def test_it_comes_back_from_json(result):
    text = json.dumps(result.to_dict(), allow_nan=False)
    again = type(result).from_dict(json.loads(text))
    assert again == result
    assert str(again) == str(result)
    assert again.to_dict() == result.to_dict()


REST = {"top1": 1.0, "perplexity": math.nan, "cosine": 1.0, "change": 0.0, "share": 0.5}


class _Classes(pickle.Unpickler):
    def __init__(self, data):
        super().__init__(io.BytesIO(data))
        self.modules = set()

    def find_class(self, module, name):
        self.modules.add(module.partition(".")[0])
        return super().find_class(module, name)


def test_a_pickle_is_of_our_own_classes_alone(result):
    reader = _Classes(pickle.dumps(result))
    reader.load()
    assert "layertap" in reader.modules
    assert reader.modules <= {"layertap", "builtins", "copyreg", "collections", "array"}


def test_nan_is_kept_and_equals_itself():
    row = KnockoutRow(site="x", kind="mlp", layer=0, kl=math.nan, kl_low=0.0, kl_high=math.inf, **REST)
    found = Knockout(rows=(row,), tokens=3, perplexity=math.nan)
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert (data["perplexity"], data["rows"][0]["kl"], data["rows"][0]["kl_high"]) == ("NaN", "NaN", "Infinity")
    assert Knockout.from_dict(data) == found


def test_another_one_is_not_equal(result):
    field = next(one.name for one in dataclasses.fields(result) if isinstance(getattr(result, one.name), (tuple, int)))
    value = getattr(result, field)
    other = dataclasses.replace(result, **{field: (*value, value) if isinstance(value, tuple) else value + 1})
    assert other != result
    assert result != field


@pytest.mark.parametrize("name", ["Report", "Finding", "Audit", "Diagnosis"])
def test_it_keeps_no_model_alive(name):
    alive = []
    original = nn.Module.__init__

    def remembered(self, *given, **more):
        original(self, *given, **more)
        alive.append(weakref.ref(self))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.Module, "__init__", remembered)
        kept = MADE[name]()
    gc.collect()
    assert alive
    assert kept is not None
    assert [one() for one in alive if one() is not None] == []


def test_every_result_is_listed_here():

    importlib.import_module("layertap.sweeping.result")  # tests/sweeping makes one, which takes longer
    known = {kind.__name__ for kind in Result.__subclasses__()}
    assert known == {*MADE, "Sweep"}
    assert [kind.__name__ for kind in Result.__subclasses__() if kind.__eq__ is not Result.__eq__] == []
