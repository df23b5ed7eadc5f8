"""Results as documents, one file for each kind of result; `layertap.report.page` and its neighbours write them.

run          one run
comparison   two runs
training     two trainings
finding      two models
weights      an audit, a knock-out, a diagnosis
sweep        many modes
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from layertap.errors import BadArgument
from layertap.messages import tr
from layertap.report.document import Block, Document

DOCUMENTS: Mapping[str, str] = {
    "Run": "run:run_document",
    "Report": "comparison:report_document",
    "TrainingReport": "training:training_document",
    "Finding": "finding:finding_document",
    "Audit": "weights:audit_document",
    "Knockout": "weights:knockout_document",
    "Diagnosis": "weights:diagnosis_document",
    "Sweep": "sweep:sweep_document",
}
"""The class of a result, by its name (so that nothing of it is imported), and what makes its document."""


def document_of(result: Any, extra: Sequence[Block] = ()) -> Document:
    """Any result as a document; `extra` blocks show what the result itself does not hold."""
    if isinstance(result, Document):
        return result
    for kind in type(result).__mro__:
        where = DOCUMENTS.get(kind.__name__)
        if where is not None:
            module, _, name = where.partition(":")
            made = getattr(import_module(f"{__name__}.{module}"), name)
            document: Document = made(result, extra) if extra else made(result)
            return document
    raise BadArgument(tr("report.no_report", name=type(result).__name__, documents=", ".join(DOCUMENTS)))
