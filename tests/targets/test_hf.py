"""`hf:PATH`."""

import json
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

import models
from layertap.errors import BadArgument, MissingExtra, TargetError
from layertap.targets import make_inputs, open_target


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen3")
    model, inputs = models.qwen3(layers=2)
    model.save_pretrained(folder)
    return folder, models.run(model, inputs).logits, inputs


@pytest.fixture
def folder(saved, tmp_path):
    """A copy that a test may spoil."""
    for file in saved[0].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


@pytest.fixture
def with_tokenizer(folder):
    tokenizers = pytest.importorskip("tokenizers")
    import transformers

    words = {"<unk>": 0, "the": 1, "first": 2, "layer": 3}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(folder)
    return folder


def test_the_class_is_the_one_that_the_config_names(saved):
    folder, logits, inputs = saved
    target = open_target(f"hf:{folder}")
    assert type(target.model).__name__ == "Qwen3ForCausalLM"
    assert not target.model.training
    assert torch.equal(target.run(inputs).logits, logits)


def test_random_ids_are_seeded_and_within_the_vocabulary(saved):
    target = open_target(f"hf:{saved[0]}")
    ids, again, other = (make_inputs(target, seq_len=9, seed=seed)["input_ids"] for seed in (0, 0, 1))
    assert ids.shape == (1, 9)
    assert int(ids.max()) < models.VOCAB
    assert torch.equal(ids, again)
    assert not torch.equal(ids, other)
    assert make_inputs(target)["input_ids"].shape == (1, 32)
    with pytest.raises(BadArgument, match="seq_len=0 leaves nothing to run"):
        make_inputs(target, seq_len=0)


def test_a_prompt_goes_through_the_tokenizer(with_tokenizer):
    target = open_target(f"hf:{with_tokenizer}")
    inputs = make_inputs(target, prompt="the first layer")
    assert inputs["input_ids"].tolist() == [[1, 2, 3]]
    assert "token_type_ids" not in inputs
    assert target.run(inputs).logits.shape == (1, 3, models.VOCAB)
    with pytest.raises(BadArgument, match="the prompt '' gives no tokens"):
        make_inputs(target, prompt="")
    with pytest.raises(BadArgument, match="seq_len=5 is for random ids; the prompt has its own length"):
        make_inputs(target, prompt="the", seq_len=5)


def test_a_prompt_without_a_tokenizer_says_the_way_out(saved):
    with pytest.raises(TargetError, match=r"has no tokenizer, so a prompt cannot be read; give ids in an input file"):
        make_inputs(open_target(f"hf:{saved[0]}"), prompt="hello")


def test_parameters_that_are_not_in_the_checkpoint_are_loud(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.warns(UserWarning, match=r"1 parameters are not in the checkpoint .*: model.*up_proj.weight"):
        open_target(f"hf:{folder}")


def test_errors_say_the_way_out(folder, tmp_path, monkeypatch):
    with pytest.raises(TargetError, match=r"there is no folder .*; hf: takes a folder on this machine, .*hf download"):
        open_target("hf:Qwen/Qwen3-8B")
    config = folder / "config.json"
    original = json.loads(config.read_text())
    config.write_text(json.dumps({**original, "architectures": ["Qwen99"], "auto_map": {}}))
    with pytest.raises(TargetError, match=r"transformers .* has no Qwen99; .*file.py:factory"):
        open_target(f"hf:{folder}")
    config.write_text("{")
    with pytest.raises(TargetError, match=r"config.json is not valid JSON"):
        open_target(f"hf:{folder}")
    config.unlink()
    with pytest.raises(TargetError, match=r"has no config.json, so it is not a Hugging Face model"):
        open_target(f"hf:{folder}")
    config.write_text(json.dumps(original))
    (folder / "model.safetensors").write_bytes(b"not safetensors at all")
    with pytest.raises(TargetError, match=r"loading Qwen3ForCausalLM raised \w+"):
        open_target(f"hf:{folder}")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"needs transformers; install it with: pip install 'layertap\[hf\]'"):
        open_target(f"hf:{folder}")
