"""A local viewer in the browser: two runs side by side, or one by itself. Reading needs no torch.

serve       starts it on 127.0.0.1 and stays until Ctrl-C: read this first
app         which address gives what
guard       whose requests are answered
sides       the runs, read again when they grow; comparisons in threads of their own
query       what an address asks for
page        the first page; `site_tables` is what is on its left, `panel` the chosen site on its right, `strip` above
runs_page, training, results_page    the other pages; `results` reads what is no run
tokens      how likely each token is, and its own errors; `vocabulary` has the texts
scan        a model that runs a prompt with and without a plan; `scan_page`, `scan_app`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["serve"]


def serve(
    runs: Sequence[str],
    *,
    floors: Sequence[str] = (),
    mapping: str | None = None,
    tokenizer: str | None = None,
    port: int | None = None,
    browser: bool = True,
    scanner: Any = None,
    told: Any = print,
) -> None:
    """Shows runs in the browser until Ctrl-C. `told` is called once with the address.

    The first run is the reference, the second what it is compared with; a sweep's folder and the JSON of other results
    are shown as their reports. `floors` and `mapping` are those of `diff`; `tokenizer` a tokenizer.json or its folder.
    """
    from layertap.view.serving import Shown, run

    shown = Shown(runs=runs, floors=floors, mapping=mapping, tokenizer=tokenizer, scanner=scanner)
    run(shown, port=port, browser=browser, started=told)
