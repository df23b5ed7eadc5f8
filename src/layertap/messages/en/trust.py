"""English: the messages of layertap.trust."""

MESSAGES = {
    "trust.checked": (
        "checks: the additional runs for this were made by layertap, once for these sites; the times "
        "listed do not include them"
    ),
    "trust.constant": "constant: no input reaches {sites}: folded by the compiler, or from shapes alone",
    "trust.drift": (
        "observer drift: with taps the output{where} changes by {error} in relative L2 norm, {ratio} × "
        "the modelled floor: the taps change what is computed, so these captures are not those of the "
        "artefact as it runs without them"
    ),
    "trust.drift_rounding": (
        "observer drift: with taps the output{where} changes by {error} in relative L2 norm, {ratio} × "
        "the modelled floor: rounding, from other fusions"
    ),
    "trust.kind": "{name}: {paths}{more}",
    "trust.moved": "freshness: on a second input {moved} of {tested} captures change",
    "trust.no_drift": "observer drift: none; the output with taps is bit-identical to the one without",
    "trust.not_varied": (
        "freshness: not tested, because no input can be varied (masks, positions and single values stay the same)"
    ),
    "trust.observer_drift": "observer drift: {drift:.2g}, {drift2:.2g} × the modelled floor",
    "trust.refused": "freshness: not tested, a second input made from the first was refused: {error}",
    "trust.structure": "structure: the output did not come back in the model's own form",
    "trust.unmoved": (
        "unmoved: {sites} gave the same values on a second input; stale, or independent of what was varied"
    ),
    "trust.values": "values: relative error {error:.2g}{where}, {error2:.2g} × the modelled floor",
}
