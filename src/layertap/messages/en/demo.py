"""English: what layertap.demo says."""

MESSAGES = {
    "demo.both": (
        "\nRecorded runs show where an error is first seen. With both models, lt.find_fault finds the "
        "module and the cause:"
    ),
    "demo.inside": "\nThe layer is known; now its parts.",
    "demo.site": "\nAll records of one site: layertap show {folder} blocks.3.down",
}
