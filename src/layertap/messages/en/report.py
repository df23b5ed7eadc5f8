"""English: the messages of layertap.report."""

MESSAGES = {
    "report.all_rows": "all {total} rows: -v, --json, --html, report.rows",
    "report.and_more": " and {count} more",
    "report.closest": "closest to a fault: {site}, {why}",
    "report.at_step": "{site} at step {step}",
    "report.first": "first departure: {site} ({kind}), relative error {error}",
    "report.first_without_kind": "first departure: {site}, relative error {error}",
    "report.floor_measured": (
        "how sure: the floor is measured, from a run of the reference in the candidate's arithmetic"
    ),
    "report.floor_modelled": (
        "how sure: the floor is modelled from dtypes and depth; floor=RUN (the reference in the "
        "candidate's dtype) measures it"
    ),
    "report.floor_tolerance": (
        "how sure: judged by the tolerances that were given ({tolerance}), not by what rounding explains"
    ),
    "report.growth": "at the last site the error is {growth} × that",
    "report.how_sure": "how sure: {why}. {hint}",
    "report.legend": (
        "error: relative L2 error; floor: the error that rounding explains; ratio: error ÷ floor, for "
        "the whole tensor or its worst row or channel; jump: error ÷ the error of the row above"
    ),
    "report.more_notes": "… and {count} more notes (finding.notes)",
    "report.more_rows": "… {count} more",
    "report.no_report": "a {name} has no report; there are reports of {documents}",
    "report.note": "note: {text}",
    "report.note_line": "note: {note}",
    "report.offline_hint": (
        "Recorded runs show where an error is first seen, not which layer causes it: lt.find_fault "
        "decides that, from both models."
    ),
    "report.only_in": "only in the {side}: {site}",
    "report.plan": "plan: {step}",
    "report.scale": "error, log scale",
    "report.the_model": "(the model)",
    "report.verdict": "{verdict}: {candidate} against {reference}: {reasons}",
    "report.worst": "furthest above the floor: {named}",
}
