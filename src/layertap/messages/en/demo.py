"""The demo."""

MESSAGES = {
    "demo.report": "\nThe same as a page, for any browser: {path}",
    "demo.view": "To look around in both runs: layertap view {sides}",
    "demo.show": "One site in full: layertap show {run} {site}",
}
