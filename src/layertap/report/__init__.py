"""What people read: one text for each result, shown by the CLI, `print`, and notebooks alike. Imports no torch."""

from layertap.report.receipt import receipt_text, receipt_view
from layertap.result import jsonable

__all__ = ["jsonable", "receipt_text", "receipt_view"]
