"""English: the messages of layertap.golden."""

MESSAGES = {
    "golden.absent": (
        "{path}: there is no golden baseline here yet; write it with `pytest --layertap-update` (or with "
        "layertap.testing.save_golden), check it, and commit it"
    ),
    "golden.again": (
        "it was damaged, edited or merged; restore it from git, or write it with `pytest --layertap-update`"
    ),
    "golden.asked": "asked must be true or false",
    "golden.checksum": "{path}: its lines do not match the checksum in the first; {AGAIN}",
    "golden.count": "{path}: {get} records expected, {count} lines found; {AGAIN}",
    "golden.dtypes": "{path}: parameter_dtypes is not a list of names; {AGAIN}",
    "golden.empty": "{name} cannot be a baseline: nothing was recorded",
    "golden.expected_run": "expected a Run, a recorder or a path, got {name}",
    "golden.failed": "{name} cannot be a baseline: {error}",
    "golden.fingerprint": "fingerprint {fingerprint!r} does not consist of 16 hexadecimal digits",
    "golden.line": "{path}, line {number}: {what}; {again}",
    "golden.list": "{name} must be a list",
    "golden.lost": "{lost} records were lost",
    "golden.missing_key": "{args!r} is missing",
    "golden.newer": (
        "{path}: written in format {version}; this layertap reads up to {GOLDEN_FORMAT}. Upgrade it: pip "
        "install -U layertap"
    ),
    "golden.no_base64": "sketch is not base64",
    "golden.no_json": "{word} is not valid JSON",
    "golden.no_object": "not a JSON object",
    "golden.no_sketch": "{name} cannot be a baseline: {site} has statistics but no sketch, which proves nothing",
    "golden.not_golden": "{path}: not a golden baseline; its first line has no layertap_golden; {capitalize}",
    "golden.not_writable": "{path}: the golden cannot be written ({strerror})",
    "golden.number": "{name} must be a number",
    "golden.partial": "{name} cannot be a baseline, because it is partial: {problems}. Save after the `with` block",
    "golden.sketch_size": "sketch has {count} bytes, expected {value}",
    "golden.string": "{name} must be a string",
    "golden.unreadable": "{path}: cannot be read as a golden baseline ({strerror})",
    "golden.whole": "{name} must be a whole number from {least} to {end}",
}
