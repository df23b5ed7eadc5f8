"""The annotation of a plain tensor that lies on several ranks: what it means, and what a wrong one is answered."""

import pytest
import torch

from layertap.errors import BadArgument
from layertap.site import Site
from layertap.store.dims import Dims, Mesh, chunk, spans_of
from layertap.store.stated import stated_layouts

MESH = Mesh.of({"cp": 2, "tp": 2})


def cut(tensor, spans):
    for axis, runs in enumerate(spans):
        tensor = torch.cat([tensor.narrow(axis, begin, end - begin) for begin, end in runs], axis)
    return tensor


@pytest.mark.parametrize(
    "text",
    [
        "b t d",
        "b t[cp] d[tp]",
        "b t[cp:zigzag] d[tp]",
        "b t[cp:zigzag, tp] d",
        "b t[tp,cp:zigzag] d",
        "b[tp] t[cp:packed2] d",
        "b t d[cp:packed3,tp]",
    ],
)
def test_the_parts_of_all_ranks_make_the_whole_once(text):
    dims = Dims.parse(text, MESH)
    whole = torch.arange(4 * 16 * 12).reshape(4, 16, 12)
    seen = torch.zeros_like(whole)
    cuts = sum(map(len, dims.cuts))
    for rank in range(4):
        spans = dims.spans(whole.shape, MESH.place(rank))
        part = cut(whole, spans)
        assert dims.whole(part.shape) == tuple(whole.shape)
        seen.view(-1)[part.flatten()] += 1
        # What a record keeps of it says the same.
        assert spans_of(dims.sharding(tuple(part.shape), rank), tuple(part.shape)) == spans
    assert (seen == 2 ** (2 - cuts)).all()


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_zigzag_gives_rank_i_of_n_the_chunks_i_and_2n_minus_1_minus_i(size):
    places = torch.arange(24 * size)
    pieces = places.chunk(2 * size)
    for rank in range(size):
        right = torch.cat([pieces[rank], pieces[2 * size - 1 - rank]])
        assert torch.equal(cut(places, [chunk(((0, len(places)),), "zigzag", size, rank)]), right)


def test_the_outer_axis_of_a_dimension_stands_first():
    outer, inner = (Dims.parse(text, MESH).sharding((2,), 1) for text in ("t[cp,tp]", "t[tp,cp]"))
    assert (outer.offset, inner.offset) == ((2,), (4,))
    assert outer.placements == ("Shard(dim=0)", "Shard(dim=0)")  # as torch cuts it: by the mesh's order
    assert inner.placements == ("Shard(dim=0, turn=1)", "Shard(dim=0, turn=0)")


def test_summands():
    sharding = Dims.parse("b t[cp] d +tp", MESH).sharding((1, 2, 3), 3)
    assert sharding.placements == ("Shard(dim=1)", "Partial(sum)")
    assert sharding.partial
    assert Dims.parse("d +cp:avg +tp:avg", MESH).sharding((3,), 0).placements == ("Partial(avg)", "Partial(avg)")


@pytest.mark.parametrize(
    ("text", "shape", "marked", "way_out"),
    [
        ("b t[cq] d", None, "cq", "it has cp, tp; use one of these, or add the axis to the mesh"),
        ("b t[tp] d[tp]", None, "tp", "used twice"),
        ("b t[cp] d +cp", None, "cp", "used twice"),
        ("b t[cp:zigzig] d", None, "zigzig", "expected zigzag, packed2, packed3, or none"),
        ("b t[cp d", None, "t[cp", "expected words such as t"),
        ("b t[] d", None, "", "expected words such as t"),
        ("b +tp d", None, "d", "+tp behind the last one"),
        ("b t d +tp:mean", None, "+tp:mean", "expected sum, avg, max, min"),
        ("", None, "", "expected words such as t"),
        ("b t", (1, 2, 3), "b t", "one word for each dimension"),
        ("b t h d", (1, 2, 3), "d", "one word for each dimension"),
        ("b t[cp:zigzag] d", (1, 3, 3), "cp", "6 places of dimension 1 cannot be cut into 4 equal parts"),
    ],
)
def test_a_mistake_is_shown_in_its_place(text, shape, marked, way_out):
    with pytest.raises(BadArgument) as raised:
        Dims.parse(text, MESH).whole(shape or (1, 1, 1), "layers.0")
    said = str(raised.value).splitlines()
    assert way_out in said[0]
    assert said[1] == f"    {text}"
    begin = said[2].index("^") - 4
    assert text[begin : begin + said[2].count("^")].rstrip() == marked or not marked


def test_a_size_that_does_not_divide():
    with pytest.raises(BadArgument, match="10 places of dimension 0 cannot be cut into 4 equal parts over 'cp'"):
        Dims.parse("t[cp:zigzag] d", MESH).spans((10, 3), MESH.place(0), "layers.0")


@pytest.mark.parametrize("mesh", [{}, {"tp": 0}, {"tp": "two"}, {1: 2}, {"tp": True}, object()])
def test_a_mesh_that_is_none(mesh):
    with pytest.raises(BadArgument, match="mesh: expected the axes in rank order"):
        Mesh.of(mesh)


def test_a_device_mesh_is_taken_as_it_is():
    class Given:
        mesh_dim_names, shape, mesh = ("dp", "tp"), (2, 2), torch.tensor([[0, 2], [1, 3]])

    mesh = Mesh.of(Given)
    assert [mesh.place(rank) for rank in range(2)] == [{"dp": 0, "tp": 0}, {"dp": 1, "tp": 0}]
    assert mesh.along(1, ["tp"]) == (1, 3)
    assert mesh.place(7) is None


def test_a_mapping_has_a_mesh_or_no_dims(tmp_path):
    assert stated_layouts({"a": "b"}) is None
    with pytest.raises(BadArgument, match="has dims, and the mapping has no mesh"):
        stated_layouts({"a": {"dims": "t"}})
    with pytest.raises(BadArgument, match=r"mapping: rule 'a': the mesh has no axis 'cp'"):
        stated_layouts({"mesh": {"tp": 2}, "a": {"dims": "t[cp]"}})
    file = tmp_path / "layout.json"
    file.write_text('{"mesh": {"tp": 2}, "layers.0": {"dims": "t h[tp]"}, "layers.*": {"dims": "t[tp] h"}}')
    stated = stated_layouts(file)
    found = [str(stated.of(Site.parse(text))) for text in ("layers.0", "layers.0@3", "layers.0:input.0", "head")]
    assert found == ["t[tp] h", "t[tp] h", "t[tp] h", "None"], "the last rule that matches counts"
    assert not stated.unused()


def test_a_pattern_matches_a_whole_name():
    stated = stated_layouts({"mesh": {"tp": 2}, "layers.0": {"dims": "t"}})
    assert stated.of(Site.parse("layers.0.q")) is None
    assert [note.code for note in stated.unused()] == ["dims.unused"]
