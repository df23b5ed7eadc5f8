"""English: the messages of layertap.scopes."""

MESSAGES = {
    "scopes.ambiguous": (
        "it was called several times in a row, or calls its children several times: the file does not "
        "distinguish the calls, so its output cannot be identified"
    ),
    "scopes.gone": "no node of it is left in the file: it returned its input (nn.Identity), or was merged or folded",
    "scopes.merged": (
        "its last operation was merged into a later one by the exporter's rule {fused}: its own output "
        "is not computed; export without optimisation to keep it"
    ),
}
