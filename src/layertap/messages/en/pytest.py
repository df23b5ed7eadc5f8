"""English: the messages of layertap.pytest."""

MESSAGES = {
    "pytest.baseline": "{number} golden baseline",
    "pytest.baselines": "{number} golden baselines",
    "pytest.golden_name": (
        "{name!r} cannot be the name of a golden: letters, digits and _.+=,- are allowed. For a path of "
        "your own use layertap.testing.assert_matches(run, path)"
    ),
    "pytest.golden_twice": "layertap_golden was called twice in this test; give the second golden a name",
    "pytest.group": "golden baselines of models",
    "pytest.no": "no",
    "pytest.unchanged": "; {count} unchanged",
    "pytest.update": "write the golden baselines of the tests that run again",
    "pytest.written": "layertap: {count} written",
}
