"""Tiny language models through torchao's modes: what is computed, which layers matter, and that the list helps."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import layertap as lt

pytest.importorskip("transformers")
pytest.importorskip("torchao")
SOURCE = Path(__file__).with_name("tiny_language_models.py")
SENTENCES = Path(__file__).parents[2] / "examples" / "mamba_modes" / "sentences.py"
QUANTISED = {"int8wo": "int8_weight_only", "int8dq": "int8_dynamic", "int4": "int4_weight_only"}
BITS = {"int8wo": 8, "int8dq": 8, "int4": 4}


@pytest.fixture
def folder(tmp_path, request):
    """The trained model's folder."""
    shutil.copy(SOURCE, tmp_path / "tiny.py")
    shutil.copy(SENTENCES, tmp_path)
    done = subprocess.run(
        [sys.executable, "tiny.py", request.param], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return tmp_path


def definition(folder, kind, modes):
    return {
        "target": f"{folder / 'tiny.py'}:make",
        "reference": "fp32",
        "sites": ["first", "last"],
        "modes": {
            name: {"arguments": {"kind": kind}, **mode} for name, mode in {"fp32": {}, **modes}.items()
        },
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "names"), [("qwen3", ("int8wo", "int8dq", "int4")), ("mixtral", ("int4",))], indirect=["folder"]
)
def test_the_ignore_list_is_worth_more_than_another_of_its_length(folder, names):
    kind = "qwen3" if (folder / "qwen3.pt").exists() else "mixtral"
    first = lt.sweep(definition(folder, kind, {name: {"quantize": QUANTISED[name]} for name in names}), folder / "runs")
    assert not first.failed, str(first)
    for name in names:
        mode = first.modes[name]
        assert mode.bits == BITS[name]
        assert mode.tokens.kl > 0
        assert mode.sensitivity.output == "kl"
        predicted = sum(row.score for row in mode.sensitivity.rows)
        assert 0.3 < predicted / mode.sensitivity.total < 3, "errors add up to what the output shows"
    if "int8dq" in names:
        assert "int8" in first.modes["int8dq"].dtypes
        activations = [sum(row.activations for row in first.modes[name].sensitivity.rows) for name in names[:2]]
        assert activations[1] > 100 * activations[0], "weight-only leaves activations alone, dynamic does not"

    ranked = first.modes["int4"].sensitivity
    ignore = list(ranked.ignore())
    assert 0 < len(ignore) <= len(ranked.quantised) / 4
    rows = [row.path for row in sorted(ranked.rows, key=lambda row: row.score) if row.path in ranked.quantised]
    others = [path for path in rows if path not in ignore][: len(ignore)]
    spared = {
        "spared": {"quantize": "int4_weight_only", "ignore": ignore},
        "others": {"quantize": "int4_weight_only", "ignore": others},
    }
    second = lt.sweep(definition(folder, kind, spared), folder / "runs", sensitivity=False)
    before = first.modes["int4"].tokens.kl
    after, control = (second.modes[name].tokens.kl for name in ("spared", "others"))
    assert after < 0.7 * before
    assert after < 0.8 * control, "as many other layers do not help so much"
    assert set(second.modes["spared"].quantised) == set(ranked.quantised) - set(ignore)
    text = str(first)
    assert f"  ignore = {json.dumps(ignore)}" in text
    assert f"name not in {json.dumps(ignore)})" in text, "torchao's filter_fn"
    assert f'QuantizationModifier(targets="Linear", ignore={json.dumps(ignore)}' in text, "llm-compressor"
