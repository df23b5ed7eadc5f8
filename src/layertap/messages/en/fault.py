"""English: the messages of layertap.fault."""

MESSAGES = {
    "fault.learning_layouts": "learning how values are spread over ranks",
    "fault.left_over": (
        "after a run on other values the candidate computes other values: something in it is left over from that run"
    ),
    "fault.rank_failed": "rank {rank} raised an error, so the search ends on all ranks: {text}",
    "fault.ranks": "{count} ranks: each is compared with the same part of the reference's values",
    "fault.among_equals": (
        "{equal} of {total} modules return the same bits as the reference in this dtype, and this one does not"
    ),
    "fault.and_more": " and {count} more",
    "fault.autocast": "the candidate computes in {name} by autocast: the reference does the same to measure rounding",
    "fault.blind_tokens": "{blind} tokens attend to no key, as padding does: their values are not judged",
    "fault.budget": (
        "the reference's tensors exceed the budget of {memory} bytes and {parent} has no space for them "
        "({error}); set TMPDIR to a larger disk, or raise budget="
    ),
    "fault.by_exchange": (
        "with the reference's {what} in place, "
        "its distance from the reference in this dtype falls from {before:.2g} to {after:.2g}"
    ),
    "fault.called_times": "{name} is called {seen} ×, in the reference {calls} ×",
    "fault.calls_it": "{caller} calls it, and it could not be judged by itself",
    "fault.cancelled": "wrong individually, right together: {listed}",
    "fault.candidate_lacks": "the candidate has no {page}",
    "fault.candidate_not_repeatable": "the candidate is not deterministic",
    "fault.coarse": "every error is what {coarse} arithmetic causes, although the parameters are {dtype}",
    "fault.compiled": (
        "compiled: no value inside it can be replaced, so errors are total errors and may come from earlier modules"
    ),
    "fault.draws_differ": "random numbers differ between the two sides ({told}): use eval() or one dtype",
    "fault.drift": "its output moves by {drift:.2g}, by rounding {rounding:.2g}",
    "fault.expected_module": "the {side} is a {name}; expected an nn.Module or a target that contains one",
    "fault.first_above": "relative error {total:.3g}, the first in order of execution that rounding does not explain",
    "fault.first_of_kind": "the first of {count} of {count2} modules of kind {kind} that are above the floor",
    "fault.judging_candidate": "judging the candidate",
    "fault.looking_closer": "examining the modules above the floor",
    "fault.mapping_hint": " ({nowhere}, which is not in the reference)",
    "fault.mapping_useless": "mapping: no rule leads from a module of the candidate to one of the reference{hint}",
    "fault.measuring_rounding": "measuring the effect of rounding",
    "fault.model": "the model",
    "fault.most_of_kind": "most modules of kind {shared}",
    "fault.never_called": "{name} is never called, but it is in the reference",
    "fault.no_copy": "the reference cannot be copied: the floors come from perturbed inputs only",
    "fault.no_larger": "no error is larger than that causes, although the parameters are {dtype}",
    "fault.not_repeatable": "the reference is not deterministic: the floor includes its variation",
    "fault.not_repeatable_seeded": (
        "the reference is not deterministic, even with fixed seeds: the floor includes its variation"
    ),
    "fault.not_rounding": "more than rounding causes",
    "fault.nothing_inside": "nothing inside it could be observed; lt.bake before compiling makes it visible",
    "fault.nothing_paired": (
        "no module of the candidate could be paired with one that ran in the reference; give mapping="
    ),
    "fault.observer_changes": "the {side} computes different values while it is observed: {beside}",
    "fault.observer_rounds": "the {side} rounds differently while it is observed: {beside}",
    "fault.operators_skipped": "operators were not examined: {lazy} loses in-place writes while they are",
    "fault.other_form": "has another form, so it is neither forced nor judged: {told}",
    "fault.other_inputs": "the two sides had different inputs: {leaf}",
    "fault.other_size": "of another size, without effect: {listed}",
    "fault.output_off": "the error of the output exceeds what rounding explains, but that of no observed module does",
    "fault.output_unexplained": "the output's error is {times}, and no module is above its floor",
    "fault.outputs_apart": (
        "the outputs of the two sides have no tensor of one name or one shape, so their error is not known"
    ),
    "fault.paired_by_order": "paired by order and shape: {page} with {path}",
    "fault.precision_taken": "precision: {why}: rounding is taken to be that dtype's",
    "fault.random": "the model draws random numbers: both sides were given the same seeds, module by module",
    "fault.reads_it": "{caller} reads it without calling it",
    "fault.rearranged": "values are rearranged, so their error cannot be distinguished from a fault: {listed}",
    "fault.reference_compiled": "the reference is compiled; give the model that it was compiled from",
    "fault.running_candidate": "running the candidate",
    "fault.running_reference": "running the reference",
    "fault.runtime_says": "the candidate's runtime reports that it computes in {said}",
    "fault.same_bits": (
        "reference and candidate compute the same bits everywhere: if you changed something, the change did not run"
    ),
    "fault.same_object": (
        "reference and candidate are the same object: if you changed something, the change did not run"
    ),
    "fault.shared": "{most} are above the floor in the same way: {cause}, not a single module",
    "fault.stage": (
        "the candidate is a stage of a pipeline ({page} and {count} modules in all are on other ranks), "
        "whose values cannot be held against the whole reference; "
        "record both with lt.record and compare the runs with lt.diff, which puts stages and microbatches together"
    ),
    "fault.stage_stated": (
        "the mesh has the axis {axis!r}: stages of a pipeline cannot be held against the whole reference; "
        "record both with lt.record and compare the runs with lt.diff, which puts stages and microbatches together"
    ),
    "fault.times_rounding": "{total:.3g} × what rounding explains",
    "fault.unjudged": (
        "{path} is above the floor (seen at {where}), and {names} inside it could not be judged, because "
        "they have no partner or another form: the error is in one of them; mapping= pairs modules by "
        "name"
    ),
    "fault.weights": "weights",
    "fault.without_compile": "found in the model as it was written, run without torch.compile",
    "fault.without_effect": "without effect: {cause}: {text}",
}
