"""English: the messages of layertap.demo."""

MESSAGES = {
    "demo.both": (
        "\nRecorded runs show where an error is first seen. With both models, lt.find_fault finds the "
        "module and the cause:"
    ),
    "demo.inside": "\nThe layer is known; now its parts.",
    "demo.report": "\nThe same as a page, for any browser: {path}",
    "demo.show": "One site in full: layertap show {run} {site}",
    "demo.view": "To look around in both runs: layertap view {sides}",
}
