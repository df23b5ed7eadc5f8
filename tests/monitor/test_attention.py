"""Attention weights by head, also where the model does not ask for them, and their picture (C13)."""

import struct
import zlib

import numpy as np
import pytest
import torch
from torch import nn

import layertap as lt
from layertap.monitor import plot_attention
from layertap.monitor.attention import head_weights
from layertap.monitor.plot import coloured, png


def encoder(dropout=0.1, batch_first=True):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=batch_first)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def watched(model, x, tmp_path, **options):
    with lt.Monitor(model, ["layers.1.self_attn"], [1], tmp_path, [0], strict=True, **options) as monitor:
        monitor.set_epoch(1)
        monitor.set_batch_idx(0)
        output = model(x)
        return output, monitor.get_single_data()["layers.1.self_attn"]["data"][1, 0]


def test_c13_an_encoder_layer_s_attention_is_recorded_by_head(tmp_path):
    model, x = encoder(dropout=0.0), torch.randn(3, 5, 8)
    _, (output, weights) = watched(model, x, tmp_path)
    assert output.shape == (3, 5, 8)
    assert weights.shape == (3, 2, 5, 5)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(3, 2, 5))
    # What the module itself would say, asked by hand.
    attention = model.layers[1].self_attn
    before = model.layers[0](x)
    _, expected = attention(before, before, before, need_weights=True, average_attn_weights=False)
    torch.testing.assert_close(weights, expected.detach())


def test_c13_asking_changes_neither_the_output_nor_the_random_numbers(tmp_path):
    x = torch.randn(3, 5, 8)
    results = []
    for ask in (False, True):
        model = encoder(dropout=0.3)
        torch.manual_seed(7)
        output = watched(model, x, tmp_path / "run")[0] if ask else model(x)
        output.sum().backward()
        results.append([output, torch.rand(3), *(parameter.grad for parameter in model.parameters())])
        assert all(module.training for module in model.modules())
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_c13_the_run_holds_them_as_the_second_leaf_and_the_module_was_called_once(tmp_path):
    watched(encoder(), torch.randn(3, 5, 8), tmp_path)
    run = lt.Run(tmp_path)
    assert run.sites == ("layers.1.self_attn:output.0", "layers.1.self_attn:output.1")
    assert run.receipt.fired[0].fired == 1


def test_c13_not_asked_for_they_are_none(tmp_path):
    _, output = watched(encoder(), torch.randn(3, 5, 8), tmp_path, attention=False)
    assert output[1] is None


def test_c13_masks_are_respected(tmp_path):
    attention = nn.MultiheadAttention(8, 2)
    x = torch.randn(5, 3, 8)
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    weights = head_weights(attention, (x, x, x), {"attn_mask": causal, "need_weights": False, "is_causal": True})
    assert weights.shape == (3, 2, 5, 5)
    assert torch.equal(weights, weights.tril())
    padding = torch.tensor([[False] * 5, [False] * 5, [False, False, True, True, True]])
    weights = head_weights(attention, (x, x, x), {"key_padding_mask": padding})
    assert weights[2, :, :, 2:].sum() == 0


def test_c13_the_fused_path_of_eval_mode_calls_no_attention_and_the_log_says_so(tmp_path, caplog):
    model = encoder().eval()
    with lt.Monitor(model, ["layers.1.self_attn"], [1], tmp_path, [0]) as monitor, torch.no_grad():
        monitor.set_epoch(1)
        monitor.set_batch_idx(0)
        model(torch.randn(3, 5, 8))
    assert "layers.1.self_attn: nothing recorded in epoch 1: layers.1 ran its fused fast path" in caplog.text


def test_c13_what_the_model_asks_for_itself_is_left_as_it_is(tmp_path):
    class Asks(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x)[0]

    model = Asks()
    with lt.Monitor(model, ["attention"], [1], tmp_path, [0]) as monitor:
        monitor.set_epoch(1)
        monitor.set_batch_idx(0)
        model(torch.randn(3, 5, 8))
        assert monitor.get_single_data()["attention"]["output_shape"] == [[3, 5, 8], [3, 5, 5]]


def test_c13_a_subclass_that_cannot_be_asked_is_told_and_recorded_as_it_is(tmp_path, caplog):
    class Odd(nn.MultiheadAttention):
        def forward(self, x):
            return x, None

    model = nn.Sequential(Odd(8, 2))
    with lt.Monitor(model, ["0"], [1], tmp_path, [0], strict=True) as monitor:
        monitor.set_epoch(1)
        monitor.set_batch_idx(0)
        model(torch.randn(3, 5, 8))
        assert monitor.get_single_data()["0"]["data"][1, 0][1] is None
    assert "0: its attention weights could not be computed" in caplog.text


def read_png(data):
    """The pixels of an RGB PNG, to hold our own writer to the specification."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    place, body, size = 8, b"", None
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        kind, content = data[place + 4 : place + 8], data[place + 8 : place + 8 + length]
        (checksum,) = struct.unpack(">I", data[place + 8 + length : place + 12 + length])
        assert checksum == zlib.crc32(kind + content)
        if kind == b"IHDR":
            size = struct.unpack(">II", content[:8])
        body += content if kind == b"IDAT" else b""
        place += 12 + length
    width, height = size
    lines = np.frombuffer(zlib.decompress(body), np.uint8).reshape(height, 1 + 3 * width)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, 3)


def test_c13_a_png_holds_its_pixels():
    image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    assert np.array_equal(read_png(png(image)), image)


def test_c13_the_picture_is_dark_at_0_bright_at_the_maximum_and_red_at_nan():
    image = coloured(np.array([[0.0, 0.5], [1.0, np.nan]]))
    assert image[0, 0].tolist() == [68, 1, 84]
    assert image[1, 0].tolist() == [253, 231, 37]
    assert image[1, 1].tolist() == [214, 39, 40]
    assert image[0, 0].sum() < image[0, 1].sum() < image[1, 0].sum()


def test_c13_the_plot_shows_every_head(tmp_path):
    weights = torch.softmax(torch.randn(2, 3, 6, 6), dim=-1)
    path = plot_attention(weights, tmp_path / "attention.svg", title="layer 0 <attention>", sample=1)
    text = path.read_text()
    assert [f"head {number} · max {weights[1, number].max():.3g}" in text for number in range(3)] == [True] * 3
    assert text.count("<image ") == 3
    assert "layer 0 &lt;attention&gt; · 6 × 6" in text
    sheet = read_png(plot_attention(weights[0], tmp_path / "attention.png").read_bytes())
    assert sheet.shape == (2 * 126 + 4, 2 * 126 + 4, 3)
    brightest = (weights[0, 0] == weights[0, 0].max()).nonzero()[0]
    assert sheet[21 * brightest[0], 21 * brightest[1]].tolist() == [253, 231, 37]


@pytest.mark.parametrize(
    ("weights", "name", "told"),
    [
        (torch.ones(2, 2), "a.jpg", r"plots are written as \.svg or \.png"),
        (torch.ones(2), "a.svg", r"shape \[2\]; expected \[heads, target, source\]"),
    ],
)
def test_c13_what_cannot_be_drawn_is_told(weights, name, told, tmp_path):
    with pytest.raises(ValueError, match=told):
        plot_attention(weights, tmp_path / name)
