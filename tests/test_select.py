"""Patterns become plans; a pattern that matches nothing says what it may have meant."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import models
from layertap.errors import BadArgument, NoMatch
from layertap.select import Choice, select
from layertap.site import ROLES, Site


class Fake:
    """A module tree without torch: all that select asks of a model is `named_modules`."""

    def __init__(self, **children):
        self.children = children

    def named_modules(self, *, remove_duplicate=True, prefix="", seen=None):
        seen = set() if seen is None else seen
        if remove_duplicate and id(self) in seen:
            return
        seen.add(id(self))
        yield prefix, self
        for name, child in self.children.items():
            path = f"{prefix}.{name}" if prefix else name
            yield from child.named_modules(remove_duplicate=remove_duplicate, prefix=path, seen=seen)


class Norm(Fake): ...


class RMSNorm(Norm): ...


def stack(count, **children):
    return Fake(**{str(number): Fake(**{name: make() for name, make in children.items()}) for number in range(count)})


@pytest.fixture
def model():
    return Fake(model=Fake(embed=Fake(), layers=stack(12, attn=Fake, norm=RMSNorm), norm=Norm()), head=Fake())


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("", [""]),
        ("head", ["head"]),
        ("*", ["model", "head"]),
        ("model.*", ["model.embed", "model.layers", "model.norm"]),
        ("mod?l.n*m", ["model.norm"]),
        ("model.layers.*", [f"model.layers.{i}" for i in range(12)]),
        ("**.attn", [f"model.layers.{i}.attn" for i in range(12)]),
        ("model.**.norm", [*(f"model.layers.{i}.norm" for i in range(12)), "model.norm"]),
        ("model.layers.3.**", ["model.layers.3", "model.layers.3.attn", "model.layers.3.norm"]),
        ("model.layers.[0,3,11]", ["model.layers.0", "model.layers.3", "model.layers.11"]),
        ("model.layers.[0-2].norm", [f"model.layers.{i}.norm" for i in range(3)]),
        ("model.layers.[first]", ["model.layers.0"]),
        ("model.layers.[last].attn", ["model.layers.11.attn"]),
        ("model.layers.[-1]", ["model.layers.11"]),
        ("model.layers.[-2--1]", ["model.layers.10", "model.layers.11"]),
        ("model.layers.[10--1]", ["model.layers.10", "model.layers.11"]),
        ("model.layers.[0, 2-3, last]", [f"model.layers.{i}" for i in (0, 2, 3, 11)]),
        ("model.layers.first", ["model.layers.0"]),
        ("model.layers.last.norm", ["model.layers.11.norm"]),
        ("re:model.layers.1[01]", ["model.layers.10", "model.layers.11"]),
        ("re:(?:model|x).norm", ["model.norm"]),
        ("type:Norm", [*(f"model.layers.{i}.norm" for i in range(12)), "model.norm"]),
        ("type:RMS*", [f"model.layers.{i}.norm" for i in range(12)]),
        (RMSNorm, [f"model.layers.{i}.norm" for i in range(12)]),
        (lambda path, module: path.endswith("2.attn"), ["model.layers.2.attn"]),
        (["head", "model.embed"], ["model.embed", "head"]),
    ],
)
def test_patterns(model, pattern, paths):
    assert list(select(model, pattern).paths) == paths


def test_a_module_selects_itself(model):
    assert select(model, model.children["head"]).paths == ("head",)
    with pytest.raises(NoMatch, match="'this Fake' matches none"):
        select(model, Fake())


def test_numbers_are_names_and_not_places():
    model = Fake(layers=Fake(**{"4": Fake(), "5": Fake(), "10": Fake()}))
    assert select(model, "layers.[4]").paths == ("layers.4",)
    assert select(model, "layers.[first,last]").paths == ("layers.4", "layers.10")
    with pytest.raises(NoMatch):
        select(model, "layers.[0]")


def test_a_child_called_first_is_itself():
    model = Fake(layers=Fake(first=Fake(), **{"0": Fake()}))
    assert select(model, "layers.first").paths == ("layers.first",)
    assert select(model, "layers.[first]").paths == ("layers.0",)


def test_names_with_special_characters_select_themselves():
    model = Fake(**{"a:b": Fake(), "c*": Fake(), "[0]": Fake(), "re:x": Fake()})
    for path in ("a:b", "c*", "[0]", "re:x"):
        assert select(model, path).paths == (path,)


def test_roles_and_leaves(model):
    plan = select(model, ["model.layers.*", "model.layers.0:input.hidden_states", "head:input"], what=("output",))
    assert plan.get("model.layers.0").roles == ("input", "output")
    assert plan.get("model.layers.1").roles == ("output",)
    assert plan.get("head").roles == ("input",)
    assert plan.wants("model.layers.0", "input", "hidden_states")
    assert plan.wants("model.layers.0", "input", "hidden_states.0")
    assert not plan.wants("model.layers.0", "input", "attention_mask")
    assert plan.wants("model.layers.0", "output", "1.key")
    assert not plan.wants("head")
    assert not plan.wants("nowhere")


def test_a_role_wanted_whole_is_not_narrowed_by_another_pattern(model):
    for sites in (["head:input", "head:input.0"], ["head:input.0", "head:input"]):
        assert select(model, sites).get("head") == Choice(path="head", kind="Fake", roles=("input",))


@pytest.mark.parametrize("suffix", ["re:.*ad", "type:Fake", "head"])
def test_every_kind_of_pattern_takes_a_role(model, suffix):
    plan = select(model, f"{suffix}:grad_output.0")
    assert plan.get("head").roles == ("grad_output",)
    assert plan.get("head").leaves == (("grad_output", "0"),)


def test_what_is_used_where_the_pattern_names_no_role(model):
    assert select(model, "head", what="param").get("head").roles == ("param",)
    assert select(model, "head", what=reversed(ROLES)).get("head").roles == ROLES


def test_exclude_modules_roles_and_leaves(model):
    plan = select(
        model,
        ["model.layers.*", "head"],
        what=("input", "output"),
        exclude=["model.layers.[1--1]", "head:input", "**:input.attention_mask"],
    )
    assert plan.paths == ("model.layers.0", "head")
    assert plan.wants("model.layers.0", "input", "hidden_states")
    assert not plan.wants("model.layers.0", "input", "attention_mask")
    assert plan.get("head").roles == ("output",)
    assert plan.get("model.layers.0").wanted == "input but not .attention_mask, output"


def test_a_shared_module_comes_once_under_its_first_path():
    shared = Fake(proj=Fake())
    model = Fake(encoder=shared, decoder=shared)
    plan = select(model, "**")
    assert plan.paths == ("", "encoder", "encoder.proj")
    assert plan.get("encoder").aliases == ("decoder",)
    assert select(model, "decoder.proj").paths == ("encoder.proj",)
    assert "decoder" in plan
    assert plan.wants("decoder.proj", "output")
    assert "also decoder.proj" in str(plan)


def test_the_plan_is_printed_with_ranges_and_bytes(model):
    plan = select(model, ["model.layers.[0-3,8,10]", "head", ""])
    assert str(plan).splitlines() == [
        "8 of 42 modules of Fake",
        '""                       Fake  output',
        "model.layers.[0-3,8,10]  Fake  output",
        "head                     Fake  output",
    ]
    sized = plan.with_bytes({"model.layers.0:output.0": 1024, Site(path="model.layers.1"): 512, "head@1": 10, "x": 9})
    assert sized.bytes == 1546
    assert str(sized).splitlines()[2:] == [
        "model.layers.[0-3,8,10]  Fake  output  1.5 KiB + ?",
        "head                     Fake  output         10 B",
        "total                                      1.5 KiB and what 5 modules will add",
    ]
    assert plan.sizes == ()


def test_what_is_printed_can_be_read_again(model):
    plan = select(model, "**")
    patterns = [line.split()[0] for line in str(plan).splitlines()[1:]]
    assert select(model, [pattern.strip('"') for pattern in patterns]) == plan


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("layers.*", "'layers.*' matches none of the 42 modules of Fake. Nearest: model.layers.*,"),
        ("net.model.layers.0", "Nearest: model.layers.0,"),
        (
            "model.layers.[0,99]",
            "'model.layers.[99]' matches none of the 42 modules of Fake. Nearest: model.layers.[0-",
        ),
        ("model.layers.0.atn", "model.layers.[0-11].attn"),
        ("layers.0:input.0", "Nearest: model.layers.0:input.0"),
        ("type:RMSnorm", "Nearest: type:RMSNorm"),
        ("re:attn", "Nearest: re:.*attn.*"),
        ("zzzz", "Its top-level modules: model, head; '**' selects everything"),
        (int, "'int' matches none of the 42 modules"),
    ],
)
def test_no_match_names_the_nearest(model, pattern, says):
    with pytest.raises(NoMatch) as error:
        select(model, ["head", pattern])
    assert says in str(error.value)
    with pytest.raises(NoMatch):
        select(model, "head", exclude=pattern)


def test_excluding_everything_is_said(model):
    with pytest.raises(NoMatch, match=r"exclude='\*\*' removes all of the 1 modules that sites='head' selects"):
        select(model, "head", exclude="**")


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("head:outptu", "there is no role 'outptu', only input, output, .* did you mean :output"),
        ("head:input.", "expected path:role.leaf"),
        ("re:(", "not a regular expression: .*; for a glob leave out 're:'"),
        ("type:", "names no class; write for instance 'type:Linear'"),
        ("model.layers.[x]", r"'x' is not a number; write for instance \[0,30,61\]"),
        ("model.layers.[]", "'' is not a number"),
        ("model.layers.[3-1]", r"'3-1' is descending; write \[1-3\]"),
        ("model.layers[0]", "brackets must be a whole component"),
        ("model..norm", "'' is not a component of a path"),
        ("model.a**", r"'\*\*' must be a component of its own"),
        ("head@2", "single calls cannot be selected; leave out '@2'"),
        (7, "7 is not a pattern; expected a path"),
        ([], "sites is an empty list"),
    ],
)
def test_bad_patterns_say_the_way_out(model, pattern, says):
    with pytest.raises(BadArgument, match=says):
        select(model, pattern)


@pytest.mark.parametrize(("what", "says"), [("outputs", "did you mean 'output'"), ((), "what is empty")])
def test_bad_roles_say_the_way_out(model, what, says):
    with pytest.raises(BadArgument, match=says):
        select(model, what=what)


@pytest.mark.parametrize(
    ("make", "paths"),
    [
        (models.qwen3, ["model.embed_tokens", *(f"model.layers.{i}" for i in range(3)), "model.norm", "lm_head"]),
        (models.gpt2, [*(f"transformer.{name}" for name in ("wte", "wpe", "h.0", "h.1", "ln_f")), "lm_head"]),
        (models.mamba, [*(f"backbone.{name}" for name in ("embeddings", "layers.0", "layers.1", "norm_f")), "lm_head"]),
        (models.encoder, ["layers.0", "layers.1", "norm"]),
    ],
)
def test_the_default_is_blocks_and_what_stands_beside_them(make, paths):
    assert list(select(make()[0]).paths) == paths


def test_the_default_finds_every_stack():
    model = nn.Transformer(8, 2, 2, 3, 16, batch_first=True)
    stacks = [f"{side}.{name}" for side, names in {"encoder": (0, 1), "decoder": (0, 1, 2)}.items() for name in names]
    expected = [path.replace(".", ".layers.") for path in stacks]
    assert [path for path in select(model).paths if "layers" in path] == expected
    assert {"encoder.norm", "decoder.norm"} <= set(select(model).paths)


def test_the_default_of_a_small_model_is_all_of_it_and_of_a_large_one_its_leaves():
    small = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert select(small).paths == ("", "0", "1")
    large = nn.Sequential(*(nn.Linear(1, 1) for _ in range(70)))
    assert select(large).paths == tuple(str(number) for number in range(70))


def test_a_single_block_is_a_stack_all_the_same():
    assert select(models.llama(layers=1)[0]).paths == ("model.embed_tokens", "model.layers.0", "model.norm", "lm_head")


# A child called `**` is the one name for which "a path selects itself" and "** selects all" cannot both hold.
_names = st.text("ab0*:[]_", min_size=1, max_size=3).filter(lambda name: name != "**")
_trees = st.recursive(
    st.builds(Fake), lambda below: st.dictionaries(_names, below, max_size=4).map(lambda c: Fake(**c)), max_leaves=12
)


@given(_trees)
def test_every_path_selects_itself_and_all_select_all(tree):
    paths = [path for path, _ in tree.named_modules()]
    assert select(tree, "**").paths == tuple(paths)
    for path in paths:
        assert select(tree, path).paths == (path,)


@given(_trees, st.data())
def test_exclude_complements_include(tree, data):
    paths = [path for path, _ in tree.named_modules()]
    chosen = data.draw(st.lists(st.sampled_from(paths), min_size=1, unique=True))
    included = set(select(tree, chosen).paths)
    if len(chosen) == len(paths):
        with pytest.raises(NoMatch):
            select(tree, "**", exclude=chosen)
    else:
        rest = set(select(tree, "**", exclude=chosen).paths)
        assert not included & rest
        assert included | rest == set(paths)


@given(_trees)
def test_a_plan_holds_each_module_once(tree):
    paths = select(tree, ["**", "**:input"]).paths
    assert len(paths) == len(set(paths)) == len(list(tree.named_modules()))
    str(select(tree, "**"))


def test_a_name_may_hold_dots():
    model = Fake(**{"block.0": Fake(up=Fake()), "block": Fake(**{"1": Fake()}), "a.b.c": Fake()})
    assert [choice.path for choice in select(model, "block.0")] == ["block.0"]
    assert [choice.path for choice in select(model, "**.up")] == ["block.0.up"]
    assert {choice.path for choice in select(model, "**")} - {""} == {
        "block.0",
        "block.0.up",
        "block",
        "block.1",
        "a.b.c",
    }


def test_patterns_in_one_text_and_classes_in_another_case_are_told():
    with pytest.raises(NoMatch, match=r"a list: \['a', 'b'\] \(--sites a --sites b\)"):
        select(Fake(a=Fake(), b=Fake()), "a, b")
    with pytest.raises(NoMatch, match="Nearest: type:Fake"):
        select(Fake(a=Fake()), "type:fake")
