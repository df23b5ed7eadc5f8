"""What every target promises, whatever it was opened from: `sites`, `run(inputs)`, `describe()`, and that `record`
sees the very values of the eager model."""

import pytest
import torch

import layertap as lt
from layertap.capture.leaves import leaves
from layertap.errors import BadArgument, NoMatch, TargetError
from targets.artefacts import SUFFIXES, inputs, make, net, opened, quiet


class Contract:
    """A subclass gives `target`: the network of `artefacts.py`, opened somehow."""

    @pytest.fixture
    def target(self):
        raise NotImplementedError

    def test_it_lists_its_sites_by_module_path(self, target):
        assert all(isinstance(site, lt.Site) for site in target.sites)
        assert {"", "pair.one", "blocks.0", "blocks.2", "shift", "head"} <= {site.path for site in target.sites}
        assert "blocks" not in {site.path for site in target.sites}, "a list of modules is never called"

    def test_it_runs_on_keywords_by_place_and_on_the_one_tensor(self, target):
        expected, (x,) = net()(*inputs(1)), inputs(1)
        for given in ({"x": x}, (x,), [x], x):
            torch.testing.assert_close(target.run(given), expected, rtol=1e-5, atol=1e-6)
        with pytest.raises(BadArgument, match="the inputs are of type str; expected keywords"):
            target.run("x")
        assert target.run(inputs(1)).is_inference() or not target.run(inputs(1)).requires_grad

    def test_it_describes_itself(self, target):
        told = target.describe()
        assert told.name == target.name
        assert told.sites == len(target.sites)
        assert f"{told.sites} of {told.modules} modules can be recorded" in str(told)

    def test_every_site_that_it_lists_is_recorded_and_right_on_an_input_it_was_not_made_with(self, target):
        with lt.record(target, sites=[site.path for site in target.sites], keep="tensor") as rec:
            target.run(inputs(2))
        assert {site.path for site in rec.receipt.fired} == {site.path for site in target.sites}
        with torch.inference_mode(), lt.record(net(), sites="**", keep="tensor") as reference:
            reference.model(*inputs(2))
        report = lt.diff(reference.run, rec.run)
        assert [(str(row.site), row.why) for row in report.rows if row.verdict not in ("identical", "noise")] == []
        assert len(report.rows) >= 11

    def test_a_second_call_is_told_from_the_first(self, target):
        with lt.record(target, sites="blocks.0.0", keep="tensor") as rec:
            target.run(inputs(2))
        assert [str(site) for site in rec.run.sites] == ["blocks.0.0", "blocks.0.0@1"]
        first, second = (rec.run[site].tensor() for site in rec.run.sites)
        assert not torch.allclose(first, second)

    def test_captures_follow_the_input(self, target):
        seen = []
        for seed in (1, 2, 1):
            with lt.record(target, sites="blocks.*", keep="tensor") as rec:
                target.run(inputs(seed))
            seen.append([rec.run[site].fingerprint for site in ("blocks.0", "blocks.1", "blocks.2")])
        assert seen[0] == seen[2]
        assert all(one != two for one, two in zip(seen[0], seen[1], strict=True))

    def test_without_taps_it_runs_as_it_is(self, target):
        before = target.run(inputs(1))
        with lt.record(target, sites="head", keep="tensor") as rec:
            target.run(inputs(1))
            rec.pause()
            torch.testing.assert_close(target.run(inputs(1)), before, rtol=0, atol=0)
        torch.testing.assert_close(target.run(inputs(1)), before, rtol=0, atol=0)
        assert len(rec.run["head"]) == 1

    def test_a_pattern_that_matches_nothing_names_the_nearest(self, target):
        with pytest.raises(NoMatch, match=r"Nearest: .*blocks"):
            lt.record(target, sites="block.*")

    def test_a_wrong_input_is_told(self, target):
        with pytest.raises(TargetError, match="failed in its forward pass"):
            target.run({"y": torch.ones(3, 6)})


class TestEager(Contract):
    @pytest.fixture
    def target(self):
        return lt.open_target(net())


class TestFile(Contract):
    @pytest.fixture
    def target(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "nets.py").write_text("from targets.artefacts import net")
        return lt.open_target("nets.py:net")


@pytest.fixture(scope="module", params=["frozen TorchScript", "exported"])
def baked(request, tmp_path_factory):
    """Taps were made outputs before compiling; the layout is beside the file."""
    folder = tmp_path_factory.mktemp("baked")
    tapped = lt.bake(net(), sites="**")
    with quiet():
        if request.param == "exported":
            path = folder / "net.pt2"
            torch.export.save(torch.export.export(tapped, inputs(0)), path)
        else:
            path = folder / "net.pt"
            torch.jit.save(torch.jit.freeze(torch.jit.trace(tapped, inputs(0))), path)
    tapped.layout.save(path)
    return path


class TestBaked(Contract):
    @pytest.fixture
    def target(self, baked):
        return lt.open_target(baked)


@pytest.fixture(scope="module", params=list(SUFFIXES))
def path(request, tmp_path_factory):
    made = tmp_path_factory.mktemp("made") / f"net{SUFFIXES[request.param]}"
    return make(request.param, net(), inputs(0), made)


class TestArtefact(Contract):
    @pytest.fixture
    def target(self, path):
        return opened(path)

    def test_it_says_what_its_format_has_lost(self, target):
        assert "nothing" not in {site.path for site in target.sites}
        with lt.record(target, sites="**") as rec:
            target.run(inputs(2))
        why = {site.path: site.why for site in rec.receipt.silent}
        assert "nothing" not in why or "returned its input" in why["nothing"] or "returns its input" in why["nothing"]
        assert "never called" in why["blocks"]
        assert any(note.startswith("several outputs: ") and "pair" in note for note in rec.receipt.notes)
        pair = [str(site) for site in rec.run.sites if site.path == "pair"]
        assert pair == ["pair:output.v0", "pair:output.v1"], "the order in which they were returned is not known"

    def test_trust_is_in_the_receipt(self, target):
        with lt.record(target, sites="blocks.*") as rec:
            target.run(inputs(2))
        notes = "\n".join(rec.receipt.notes)
        assert "observer drift: " in notes
        assert "freshness: on a second input 3 of 3 captures change" in notes
        assert "observer drift" in str(rec.receipt)
        assert rec.run.receipt.notes == rec.receipt.notes, "they are read back with the run"

    def test_other_taps_are_checked_anew_and_the_old_ones_are_not_told_of_again(self, target):
        for sites, count in (("blocks.*", 3), ("head", 1), ("blocks.*", 3)):
            with lt.record(target, sites=sites) as rec:
                target.run(inputs(2))
            told = [note for note in rec.receipt.notes if note.startswith(("freshness", "observer drift"))]
            assert len(told) == 2
            assert f"{count} of {count} captures change" in told[1]

    def test_a_tapped_file_is_saved_and_runs_elsewhere(self, target, path, tmp_path):
        said = target.save(tmp_path / f"tapped{path.suffix}", "blocks.[0,2]")
        assert "tap" in said
        again = opened(tmp_path / f"tapped{path.suffix}")
        output = again.run(inputs(2))
        tensors = [leaf.tensor for leaf in leaves(output) if leaf.tensor is not None]
        with torch.inference_mode(), lt.record(net(), sites="blocks.[0,2]", keep="tensor") as rec:
            rec.model(*inputs(2))
        for site in ("blocks.0", "blocks.2", "blocks.0@1"):
            expected = rec.run[site].tensor()
            assert any(t.shape == expected.shape and torch.allclose(t, expected, atol=1e-5) for t in tensors), site

    def test_a_role_that_a_file_does_not_show_is_told(self, target):
        with lt.record(target, sites="blocks.1", what=("input", "output")) as rec:
            target.run(inputs(2))
        assert "not the inputs of a module" in rec.receipt.silent[0].why

    def test_its_parameters_are_known_by_dtype(self, target):
        with lt.record(target, sites="head") as rec:
            target.run(inputs(2))
        assert rec.run.info["parameter_dtypes"] == ["float32"]
        assert rec.run.info["artefact"]
