"""What people read: one text for each result, shown by the CLI, `print`, and notebooks alike. No torch in this room."""

from layertap.report.receipt import receipt_text, receipt_view
from layertap.report.values import jsonable

__all__ = ["jsonable", "receipt_text", "receipt_view"]
