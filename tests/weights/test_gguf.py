"""GGUF files: plain and quantised tensors, llama.cpp's own names and rope layout, and files that lie."""

import struct

import pytest
import torch

import layertap as lt
import saved_models
from layertap.errors import BadArgument, MissingExtra

gguf = pytest.importorskip("gguf", reason="writes the files")
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q5_1", "Q4_0")
PERMUTED = {"llama": {"q_proj": 4, "k_proj": 2}}


def written(path, kind, form):
    """The model of a kind, and its file as llama.cpp's converter writes it."""
    model, _ = saved_models.saved(kind)
    form = gguf.GGMLQuantizationType[form]
    writer = gguf.GGUFWriter(str(path), kind)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.add_array("some.numbers", [1, 2, 3])
    arch = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == kind)
    names = gguf.get_tensor_name_map(arch, 3)
    for name, tensor in saved_models.state(model).items():
        for part, heads in PERMUTED.get(kind, {}).items():
            if part in name:
                tensor = tensor.view(heads, 2, -1, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape)
        values, own = tensor.contiguous().numpy(), names.get_name(name, try_suffixes=(".weight",))
        if values.ndim > 1:
            writer.add_tensor(own, gguf.quantize(values, form), raw_dtype=form)
        else:
            writer.add_tensor(own, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


@pytest.mark.parametrize("form", TYPES)
@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_d1_a_gguf_file_is_the_model_that_it_was_made_of(tmp_path, kind, form):
    model = written(tmp_path / "x.gguf", kind, form)
    found = lt.audit(model, tmp_path / "x.gguf")
    assert found.verdict == ("identical" if form == "F32" else "noise"), str(found)
    assert set(found.by_status) <= {"exact", "cast", "converted"}
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3] *= -1
    found = lt.audit(model, tmp_path)
    assert [row.name for row in found.rows if row.status == "changed"] == ["model.layers.1.mlp.up_proj.weight"]


def test_blocks_are_unpacked_piece_by_piece(tmp_path, monkeypatch):
    from layertap.weights import gguf_files

    model = written(tmp_path / "x.gguf", "qwen3", "Q8_0")
    entry = gguf_files.gguf_entries(tmp_path / "x.gguf")["blk.0.ffn_up.weight"]
    whole = entry.read()
    monkeypatch.setattr(gguf_files, "BLOCK", 512)
    assert len(list(entry.blocks())) == 16
    assert torch.equal(entry.read(), whole)
    assert (whole - model.model.layers[0].mlp.up_proj.weight).abs().max() < 1e-3


def test_plain_tensors_need_no_package_and_blocks_say_which(tmp_path, monkeypatch):
    import sys

    model = written(tmp_path / "plain.gguf", "qwen3", "F32")
    written(tmp_path / "packed.gguf", "qwen3", "Q4_0")
    monkeypatch.setitem(sys.modules, "gguf", None)
    found = lt.audit(model, tmp_path / "plain.gguf")
    assert found.by_status["exact"] == len(found.rows)
    with pytest.raises(MissingExtra, match=r"needs gguf: pip install 'layertap\[gguf\]'"):
        lt.audit(model, tmp_path / "packed.gguf")


def header(tensors, pairs, rest=b""):
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, pairs) + rest


@pytest.mark.parametrize(
    "content",
    [
        b"GGUF",
        b"GGML" + bytes(60),
        header(2**60, 0, bytes(64)),
        header(0, 2**60, bytes(64)),
        header(0, 1, struct.pack("<Q", 2**62) + bytes(64)),
        header(0, 1, struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 4, 2**61) + bytes(64)),
        header(0, 1, struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 9, 1) * 9 + bytes(64)),
        header(1, 0, struct.pack("<Q", 1) + b"w" + struct.pack("<I", 2**31) + bytes(64)),
        header(1, 0, struct.pack("<Q1sIQIQ", 1, b"w", 1, 2**50, 0, 0) + bytes(64)),
        header(1, 0, struct.pack("<Q1sIQIQ", 1, b"w", 1, 8, 9999, 0) + bytes(64)),
        header(0, 0),
    ],
)
def test_a_file_that_lies_is_refused(tmp_path, content):
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(BadArgument, match=r"x\.gguf"):
        lt.audit({"w": torch.ones(1)}, tmp_path / "x.gguf")
