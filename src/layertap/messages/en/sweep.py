"""One input through many modes."""

MESSAGES = {
    "sweep.first_values": "  First 10 values: {value}",
    "sweep.alone": "{count} modes, no two of them bit-identical: {modes}",
    "sweep.mean": "  Mean: {mean:.6f}",
    "sweep.none": "no mode has a run",
    "sweep.group": "{group}: bit-identical",
    "sweep.group_reference": (
        "{group}: bit-identical; the reference does not compute in the precision of its name, or these settings change "
        "nothing"
    ),
    "sweep.group_not_its_name": "{group}: the reference does not compute in the precision of its name",
    "sweep.range": "  Range: [{min:.6f}, {max:.6f}]",
    "sweep.role_shape": "{role}{leaf} (Shape: {shape}):",
    "sweep.std": "  Std:  {std:.6f}",
    "sweep.verdict": "{verdict}: {count} against {reference}: {counts}",
    "sweep.count_identical": "{count} identical",
    "sweep.count_noise": "{count} within what rounding or their bits explain",
    "sweep.count_fault": "{count} beyond it",
    "sweep.count_inconclusive": "{count} not judged",
    "sweep.count_no_effect": "{count} whose settings changed nothing",
    "sweep.count_failed": "{count} without a run",
    "sweep.failed": "{mode} has no run: {error}",
    "sweep.all_failed": "{mode} have no run: {error}",
    "sweep.only": "{mode} alone has a run, so there is nothing to compare it with",
    "sweep.damaged": "its run was whole when it ended, and has been damaged since: {why}",
    "sweep.written_since": "{file} was written by another process",
    "sweep.log": "what it printed: {path}",
    "sweep.no_effect": "{mode} sets {settings}, and not one bit differs from {other}",
    "sweep.not_its_name": "{mode} is named {says}, but computes with {bits} bits: {shown}",
    "sweep.other_float": "{mode} is named {says}, but its tensors are {others}",
    "sweep.reference_failed": "the reference {wanted} has no run; the modes are compared with {instead}",
    "sweep.reference_left_out": (
        "the reference {wanted} was not chosen; the modes are compared with {instead} (--reference chooses another)"
    ),
    "sweep.short": "the sample has {length} tokens, shorter than the {asked} that were asked for",
    "sweep.no_tokens": "seq_len = {asked} was ignored: the sample contains no token ids",
    "sweep.reserved_name": "{where}: this name is reserved for the sweep's own files; choose another",
    "sweep.compiled_file": (
        "{target} is compiled, so {keys} cannot change it any more; compile it again, or give the mode a target of its "
        "own"
    ),
    "sweep.other_input": (
        "its input is not the reference's ({leaf}: {given}, the reference's is {expected}); give input = … in the "
        "definition, so that all modes are handed the same"
    ),
    "sweep.other_weights": (
        "{changed} of {common} common parameters have other values than the reference's; the first: {first}"
    ),
    "sweep.not_watched": "its operators could not be watched ({why}); its dtypes are known by its values alone",
    "sweep.silent": "{count} sites gave no tensor; {first}",
    "sweep.other_sites": "{missing} sites of the reference are missing, {extra} exist only here; the first: {first}",
    "sweep.mostly_float": "{modules} modules are quantised, {share} of the parameters' values: the rest is as it was",
    "sweep.no_answer": "not answered: {mode} has no run",
    "sweep.answer_identical": "{question}: {candidate} is bit-identical to {reference}",
    "sweep.answer": (
        "{question}: {candidate} against {reference}: relative error {first_error} at {first_site}, at most {error} at "
        "{site}; against the sweep's reference the worst error goes from {before} to {after}"
    ),
    "sweep.answer_kl": "{answer}; mean KL {kl}",
    "sweep.stands_out": "{mode}: the error grows most at {sites}",
    "sweep.site_growth": "{site} ({times} × the usual step)",
    "sweep.tokens_title": "the model's predictions, against {reference} ({positions} positions)",
    "sweep.tokens_nan": "{mode}: at {count} of {positions} positions the logits are not numbers on one side or both",
    "sweep.tokens_bound": (
        "tokens beyond the {top} likeliest count as one: the divergence is a lower bound (covered: {covered})"
    ),
    "sweep.depth_title": "relative error by depth, against {reference}",
    "sweep.cost": "{seconds} s, at most {jobs} at once; {disk} on disk, the largest mode alone {one}",
    "sweep.kept": "{count} of {total} runs already existed (--fresh runs them again)",
    "sweep.json": "all sites, metrics and evidence: --json, --html, or sweep.json in {folder}",
    "sweep.codes": "{dtype} on one side, taken as codes: times {scale}, plus {offset}, they fit best",
    "sweep.not_codes": (
        "{one} against {other}: the whole numbers are not the other side's values in any scale ({error} is left over)"
    ),
    "sweep.by_ideal": "{ratio} × the ideal {bits}-bit error",
    "sweep.ranked": "{mode}: layers by what their own error does to the output ({output} {total})",
    "sweep.ranked_row": (
        "{path}: {share} of it (own error {own}; weights {weights}, activations {activations}, cache {cache})"
    ),
    "sweep.ranked_module": "{row}; with the reference's values there the error falls by {confirmed}",
    "sweep.ranked_injected": "{row}; its error alone in the reference makes {confirmed}",
    "sweep.ignore": "{mode}: leave these as they are",
    "sweep.not_ranked": "the layers of {mode} could not be ranked: {why}",
    "sweep.col_mode": "mode",
    "sweep.col_verdict": "verdict",
    "sweep.col_computes": "computes in",
    "sweep.col_first": "first error",
    "sweep.col_last": "last error",
    "sweep.col_floor": "floor",
    "sweep.col_ratio": "worst ratio",
    "sweep.col_sqnr": "SQNR dB",
    "sweep.col_ideal": "ideal dB",
    "sweep.col_kl": "mean KL",
    "sweep.col_kl_max": "max",
    "sweep.col_kl_999": "99.9%",
    "sweep.col_kl_99": "99%",
    "sweep.col_kl_95": "95%",
    "sweep.col_kl_90": "90%",
    "sweep.col_kl_50": "median",
    "sweep.col_delta": "RMS Δp",
    "sweep.col_same": "same top p",
    "sweep.col_ppl": "PPL",
    "sweep.col_ratio_ppl": "PPL ratio",
    "sweep.col_seconds": "seconds",
    "sweep.col_site": "site",
    "sweep.reference": "reference",
    "sweep.error": "error",
    "sweep.legend": (
        "error: relative L2; floor: what rounding explains, or an ideal quantiser of the mode's bits; ideal dB: "
        "the SQNR of that quantiser at the last site"
    ),
    "sweep.explain_runs": "{why}: what was recorded of the two is compared instead",
    "sweep.explain_unfaithful": (
        "built beside the other in one process, {mode} does not give the output that it gave alone (it depends on "
        "something that the two share)"
    ),
    "sweep.explain_command": "{mode} is a command, and has no model here",
    "sweep.explain_batch": "{mode} is another batch of the same model",
    "sweep.explain_error": "the two could not be searched in one process ({why})",
}
