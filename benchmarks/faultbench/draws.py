"""Random pairs: a kind of fault, a model, a depth, a size and a precision, all from one seed.

The list of cases can be learnt by heart; draws cannot.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import random

from benchmarks.faultbench import clean, quantised, rearranged
from benchmarks.faultbench.case import Case, nothing
from benchmarks.faultbench.cases import listed
from benchmarks.faultbench.families import FAMILIES, build, run
from benchmarks.faultbench.faults import Fault
from benchmarks.faultbench.kinds import FAULTS
from benchmarks.faultbench.roles import roles
from benchmarks.faultbench.tiny import is_tiny

REARRANGED = (rearranged.fold_norms, rearranged.permute_heads, rearranged.permute_hidden, rearranged.smooth)
CLEAN_SHARE = 0.2
SEVERAL_SHARE = 0.1
DTYPES = {"fp32": 4, "bf16": 4, "fp16": 2, "int8": 2}


def draw(seed: int) -> Case:
    """The pair of this seed: the same in every process."""
    rng = random.Random(seed)
    if rng.random() < CLEAN_SHARE:
        return _clean(rng, seed)
    while True:
        case = _faulty(rng, seed)
        if case is not None and _matters(case):
            return dataclasses.replace(case, tiny=is_tiny(case))


def _model(rng: random.Random) -> tuple[str, str, dict[str, int]]:
    """(family, dtype, arguments of `build`)."""
    family = rng.choice(sorted(FAMILIES))
    dtypes = {name: weight for name, weight in DTYPES.items() if name != "int8" or family not in ("gpt2", "cnn")}
    dtype = rng.choices(list(dtypes), list(dtypes.values()))[0]
    shape = {"layers": rng.randint(2, 6), "width": rng.choice((32, 48, 64)), "tokens": rng.randint(6, 20)}
    return family, dtype, shape


def _clean(rng: random.Random, seed: int) -> Case:
    family, dtype, shape = _model(rng)
    plants = {plant.__name__: plant for plant in (nothing, clean.one_by_one, clean.decoy)}
    if dtype != "int8" and family not in ("cnn", "mamba"):
        plants |= {plant.__name__: plant for plant in (clean.written_out_attention, clean.eager_attention)}
    if dtype != "int8" and family in ("llama", "qwen3"):
        plants |= {plant.__name__: plant for plant in REARRANGED}
        plants |= {scheme: quantised.everywhere(scheme) for scheme in quantised.SCHEMES}
    name, plant = rng.choice(list(plants.items()))
    return Case(
        name=f"draw{seed}-{family}-{dtype}-clean-{name}",
        family=family,
        dtype=dtype,
        kind="clean",
        build=functools.partial(build, family, seed=seed, **shape),
        plant=plant,
    )


def _faulty(rng: random.Random, seed: int) -> Case | None:
    family, dtype, shape = _model(rng)
    places = roles(build(family, seed=seed, **shape)[0])
    kinds = sorted(kind for kind, fault in FAULTS.items() if fault.role in places)
    if rng.random() < SEVERAL_SHARE:
        # One fault a layer, so that the order of execution is the order of the layers.
        strikes = [(kind, path) for kind in rng.sample(kinds, 2) for path in [rng.choice(places[FAULTS[kind].role])]]
        strikes.sort(key=lambda strike: _layer(strike[1]))
        if _layer(strikes[0][1]) == _layer(strikes[1][1]):
            return None
    else:
        kind = rng.choice(kinds)
        strikes = [(kind, rng.choice(places[FAULTS[kind].role]))]
    sized = [(kind, path, _size(rng, FAULTS[kind])) for kind, path in strikes]
    label = "+".join(f"{kind}@{path}({size:.2g})" for kind, path, size in sized)
    return listed(family, dtype, *sized, seed=seed, name=f"draw{seed}-{family}-{dtype}-{label}", **shape)


def _layer(path: str) -> tuple[str, int]:
    # "encoder.block.1…" runs before every "decoder.block.…"; what is in no layer runs first.
    numbers = [int(part) for part in path.split(".") if part.isdigit()]
    return ("b" if path.startswith("decoder") else "a", numbers[0] if numbers else -1)


def _size(rng: random.Random, fault: Fault) -> float:
    low, high = fault.sizes
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def _matters(case: Case) -> bool:
    """Whether the fault reaches the output at all in float32: a key's bias, for one, does not survive the softmax."""
    reference, candidate, inputs = dataclasses.replace(case, dtype="fp32").make()
    right, wrong = (_logits(run(model, inputs)).double() for model in (reference, candidate))
    return not bool((right - wrong).norm() <= 1e-6 * right.norm())


def _logits(output):
    return getattr(output, "logits", output)
