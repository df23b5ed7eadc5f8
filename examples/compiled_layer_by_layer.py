"""Every layer of a compiled model, in files, on screens, and against the eager reference.

    python examples/compiled_layer_by_layer.py --folder out                  # compile, run, compare
    python examples/compiled_layer_by_layer.py --folder out --skip-compile   # run it again: the taps are in the file
    python examples/compiled_layer_by_layer.py --folder out --layers 0 2     # only some layers, under their true names
    python examples/compiled_layer_by_layer.py --folder out --miscompile 2   # a compiler that loses a sign in layer 2

A tiny seeded MiniMax-M2 (pip install 'layertap[hf]') represents the real one. It is compiled on one prompt and run on
another, from the saved file, without its source. `full_model/` then holds embedding_output.pt, layer_1_output.pt, …,
statistics.pt and metadata.pt, and `reference/` the same of the eager model.
"""

import argparse
import itertools
import sys
import tempfile
from pathlib import Path

import torch
from transformers import MiniMaxM2Config, MiniMaxM2ForCausalLM

import layertap as lt
from layertap.compare import Report
from layertap.formats import export

LAYERS = 4


def tiny_minimax_m2() -> MiniMaxM2ForCausalLM:
    torch.manual_seed(0)
    size = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": LAYERS, "head_dim": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2}
    config = MiniMaxM2Config(vocab_size=128, bos_token_id=1, eos_token_id=2, use_cache=False, **size, **heads)
    return MiniMaxM2ForCausalLM(config).eval()


def prompt(seed: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, 128, (1, 32), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def sites(layers: list[int] | None) -> list[str]:
    chosen = "*" if layers is None else f"[{','.join(map(str, layers))}]"
    return ["model.embed_tokens", f"model.layers.{chosen}", "model.norm", "lm_head"]


def compile_to(path: Path, layers: list[int] | None, miscompile: int | None) -> None:
    """The step that takes half an hour on a real device. `bake` makes the taps outputs of the graph."""
    tapped = lt.bake(tiny_minimax_m2(), sites=sites(layers))
    program = torch.export.export(tapped, (), prompt(seed=0))
    if miscompile is not None:
        lose_a_sign(program, f"model.layers.{miscompile}.self_attn")
    torch.export.save(program, path)
    tapped.layout.save(path)


def lose_a_sign(program: torch.export.ExportedProgram, module: str) -> None:
    """A planted fault: the compiler forgets one negation, that of the rotary embedding of this module's queries."""
    for node in program.graph.nodes:
        stack = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
        if node.target is torch.ops.aten.neg.default and any(path.endswith(module) for path in stack):
            node.replace_all_uses_with(node.args[0])
            program.graph.erase_node(node)
            return
    raise SystemExit(f"{module} negates nothing")


def screens(run: lt.Run, report: Report) -> None:
    layers = [site for site in run.sites if site.path.startswith("model.layers.")]
    print("\nall layers")
    for site in run.sites:
        s = run[site].statistics
        print(f"  {site!s:20} mean {s.mean:+.6f}  std {s.std:.6f}  NaN {s.nan > 0}  Inf {s.pos_inf + s.neg_inf > 0}")
    middle = layers[len(layers) // 2]
    print(f"\none layer: {middle}")
    tensor, s = run[middle].tensor(), run[middle].statistics
    print(f"  shape {tuple(tensor.shape)}  mean {s.mean:.6f}  std {s.std:.6f}  NaN {s.nan > 0}")
    print("\nadjacent layers")
    for before, after in itertools.pairwise(layers):
        d = (run[after].tensor() - run[before].tensor()).abs()
        print(f"  {before} → {after}: max {d.max():.6f}  mean {d.mean():.6f}")
    print("\nagainst the reference (relative: eps 1e-8)")
    for row in report.rows:
        d = row.difference
        if d is None:
            print(f"  {row.site!s:20} {row.why}")
        else:
            absolute = f"absolute max {d.max_abs:.6f} mean {d.mean_abs:.6f}"
            relative = f"relative max {d.max_relative:.6f} mean {d.mean_relative:.6f}"
            print(f"  {row.site!s:20} {absolute}  {relative}  cosine {d.cosine:.6f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=None, help="where everything is written (default: a new one)")
    parser.add_argument("--skip-compile", action="store_true", help="run the file that an earlier call compiled")
    parser.add_argument("--layers", type=int, nargs="*", default=None, help="only these layers, counted from 0")
    parser.add_argument("--miscompile", type=int, default=None, help="plant a fault in this layer")
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    compiled = folder / "minimax_m2.pt2"

    if not args.skip_compile:
        compile_to(compiled, args.layers, args.miscompile)
    target = lt.open_target(compiled)
    print(target.describe())

    given = prompt(seed=1)  # not the one that it was compiled with: a capture from then would show
    options = {"sites": [site.path for site in target.sites if site.path], "keep": "tensor", "exists": "replace"}
    with lt.record(target, folder / "runs/compiled", **options) as rec:
        target.run(given)
    print(rec.receipt)
    model = tiny_minimax_m2()
    with torch.no_grad(), lt.record(model, folder / "runs/eager", **options) as ref:
        model(**given)

    for run, name in ((rec.run, "full_model"), (ref.run, "reference")):
        print(export(run, folder / name, "layers", exists="replace"))
    report = lt.diff(ref.run, rec.run)
    screens(rec.run, report)
    print(f"\n{report}")
    print(f"first departing layer: {report.first.site if report.first else 'none'}")
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
