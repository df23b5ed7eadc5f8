"""The scanner's page, and what its pictures show. No torch here: the numbers of the last run are arrays."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from layertap.messages import tr
from layertap.report.values import number
from layertap.view.html import clean, document, text, verdict_section
from layertap.view.page import keys, top
from layertap.view.query import Query
from layertap.view.sides import Session

if TYPE_CHECKING:
    from layertap.view.scan import Scan, Scanner

MEASURES = ("activation", "gradient", "activation_z", "gradient_z", "weights")
Numbers = npt.NDArray[np.float64]


def scan_page(session: Session, scanner: Scanner, query: Query) -> str:
    """The page: a prompt, switches for the branches, the text of both, and maps of the chosen token."""
    scan = scanner.scan
    skipped = set(scan.skipped if scan is not None else scanner.planned)
    switches: dict[int, list[str]] = {}
    for branch in scanner.branches:
        on = "" if branch.path in skipped else " checked"
        label, path = clean(tr("scan.switch", kind=branch.kind, layer=branch.layer)), clean(branch.path)
        switches.setdefault(branch.layer, []).append(
            f"<label title='{path}'><input type='checkbox' class='branch' value='{path}'{on} aria-label='{label}'>"
            f"{clean(branch.kind)}</label>"
        )
    rows = "".join(f"<li><span>{layer}</span>{''.join(boxes)}</li>" for layer, boxes in switches.items())
    listed = f"<ol class='switches'>{rows}</ol>" if rows else f"<p class='soft'>{clean(scanner.why_no_branches)}</p>"
    choices = "".join(f"<option value='{name}'>{text('scan.' + name)}</option>" for name in MEASURES)
    body = f"""{top(session, query, here="scanner")}
{verdict_section("none", f"<h1>{clean(scanner.spec)}</h1><p>{text('scan.intro', layers=len(scanner.layers))}</p>")}
<main id='main' tabindex='0' class='wide scanner'>
<form id='scan'><label>{text("scan.prompt")}<textarea name='prompt' rows='2'>{clean(scanner.prompt)}</textarea></label>
<label>{text("scan.ids")}<input name='ids' placeholder='3, 17, 42'></label>
<button id='run'>{text("scan.run")}</button> <span id='state' role='status'></span></form>
<details class='plan' open><summary>{text("scan.branches")}</summary>{listed}</details>
<p class='empty' id='empty' data-no-token='{text("scan.no_token")}'>{text("scan.nothing_yet")}</p>
<section id='result' hidden>
<div class='texts'><figure><figcaption>{text("scan.whole")}</figcaption><p id='text-a'></p></figure>
<figure><figcaption>{text("scan.pruned")}</figcaption><p id='text-b'></p></figure></div>
<div class='strip' id='tokens' role='listbox' aria-label='{text("scan.tokens")}'></div>
<p class='choices'><label>{text("scan.token")} <input type='range' id='slider' min='0' value='0'></label>
<output id='chosen'></output>
<label>{text("scan.measure")} <select id='measure'>{choices}</select></label></p>
<h2>{text("scan.by_block")}</h2><p class='soft'>{text("scan.by_block_told")}</p>
<div class='three' id='blocks'>{_figures("blocks")}</div>
<h2>{text("scan.by_token")}</h2><div class='three' id='layers'>{_figures("layers")}</div>
<p class='legend'><output class='cell' id='cell'></output></p></section></main>{keys()}"""
    return document(f"{scanner.spec} · layertap", body, scripts=("scanner.js",), here="scanner")


def _figures(kind: str) -> str:
    named = {"a": "scan.whole", "b": "scan.pruned", "d": "scan.change"}
    return "".join(
        f"<figure class='map'><figcaption><b>{text(code)}</b> <span class='limit'></span></figcaption>"
        f"<img data-kind='{kind}' data-map='{name}' alt='{text(code)}, {text('scan.alt_' + kind)}' draggable='false'>"
        "</figure>"
        for name, code in named.items()
    )


def values_of(scan: Scan, side: str, measure: str) -> Numbers:
    """Layer, token and block of one measure; `d` is B - A."""
    if side == "d":
        return values_of(scan, "b", measure) - values_of(scan, "a", measure)
    reading = scan.a if side == "a" else scan.b
    if measure == "weights":
        return np.broadcast_to(scan.weights[:, None], reading.activation.shape)
    raw = reading.gradient if measure.startswith("gradient") else reading.activation
    return z_scores(raw) if measure.endswith("_z") else raw


def z_scores(values: Numbers) -> Numbers:
    """How far each block stands out of its layer: over all tokens and blocks of that layer, NaN left out."""
    known = np.isfinite(values)
    count = np.maximum(known.sum((1, 2), keepdims=True), 1)
    mean = np.where(known, values, 0).sum((1, 2), keepdims=True) / count
    spread = np.sqrt(np.where(known, (values - mean) ** 2, 0).sum((1, 2), keepdims=True) / count)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(spread > 0, (values - mean) / spread, np.where(known, 0.0, np.nan)))


def plane_of(scan: Scan, kind: str, side: str, measure: str, token: int) -> Numbers:
    """What a picture shows: layers by blocks of one token, or layers by tokens."""
    values = values_of(scan, side, measure)
    if kind == "blocks":
        return values[:, min(max(token, 0), values.shape[1] - 1)]
    if measure.endswith("_z"):  # of a token, its block that stands out most
        return _furthest(values)
    if side == "d":
        return plane_of(scan, kind, "b", measure, token) - plane_of(scan, kind, "a", measure, token)
    return np.asarray(np.sqrt((values**2).sum(2)))


def _furthest(values: Numbers) -> Numbers:
    place = np.abs(np.nan_to_num(values)).argmax(2)
    return np.take_along_axis(values, place[:, :, None], 2)[:, :, 0]


def scan_dict(scan: Scan | None, token: int | None) -> dict[str, Any]:
    """The JSON form: the run as a whole, and every number of one token."""
    if scan is None:
        return {"number": 0}
    found: dict[str, Any] = {
        "number": scan.number,
        "tokens": scan.tokens,
        "layers": scan.layers,
        "blocks": scan.a.activation.shape[2],
        "skipped": scan.skipped,
        "a": {"text": scan.a.text, "ids": scan.a.ids, "loss": scan.a.loss},
        "b": {"text": scan.b.text, "ids": scan.b.ids, "loss": scan.b.loss},
    }
    if token is not None:
        found["token"] = min(max(token, 0), len(scan.tokens) - 1)
        for side in ("a", "b", "d"):
            found.setdefault("values", {})[side] = {
                measure: values_of(scan, side, measure)[:, found["token"]].tolist() for measure in MEASURES
            }
    return found


def limit_of(values: Numbers) -> str:
    """The largest magnitude, in few characters."""
    finite = np.abs(values[np.isfinite(values)])
    return number(float(finite.max()) if finite.size else math.nan, 3)
