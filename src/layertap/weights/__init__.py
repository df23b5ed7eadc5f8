"""Two sets of parameters: is this model what the checkpoint says, and what was lost on the way?

audit     every tensor of either side, explained by a rule that is proven on its values
loading   the same around any code that loads, with a marker in what was there before
"""

from layertap.weights.audit import audit
from layertap.weights.loading import Loading, loading
from layertap.weights.result import STATUSES, Audit, AuditRow

__all__ = ["STATUSES", "Audit", "AuditRow", "Loading", "audit", "loading"]
