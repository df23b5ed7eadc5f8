"""English: the messages of layertap.matching."""

MESSAGES = {
    "matching.begins": "{site} begins with {begins} in the golden and with {begins2} in this run",
    "matching.damaged": "was damaged",
    "matching.new": "new",
    "matching.this_run": "this run",
    "matching.torch": "the golden was written with torch {made}, this run was recorded with torch {made2}",
    "matching.update": "if {name} is what is wrong: pytest --layertap-update writes it again",
    "matching.was": "was: {verdict}",
    "matching.was_fault": "was: fault, first at {site}",
}
