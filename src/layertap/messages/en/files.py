"""English: the messages of layertap.files."""

MESSAGES = {
    "files.bound": "the bound of {get} ({MAX_UNPACKED})",
    "files.needs_tomli": "a TOML file needs tomli on Python 3.10; install it with: pip install tomli",
    "files.nested": "nested too deeply",
    "files.not_regular": "not a regular file",
    "files.size": "{size!r} is not a size; write bytes as a number, or for instance '512MiB' or '2GiB'",
    "files.too_large": "larger than {limit} bytes",
    "files.unpacked": (
        "{stored} bytes stored would take {unpacked} bytes in memory, more than {bound}; if the file is "
        "right, set {MAX_UNPACKED}, for instance {MAX_UNPACKED}={round}"
    ),
    "files.values": "{value} values, more than {bound} allows",
}
