"""Two sets of parameters: is this model what the checkpoint says, and what was lost on the way?

audit     every tensor of either side, explained by a rule that is proven on its values
loading   the same around any code that loads: what was there before and was never written
fingerprints  one side of an audit for a model in another process
knockout  which of them may go: the effect on the output of leaving out each (knockout_workers: by an engine)
measuring what an audit measures tensor by tensor, by an engine
doctor    is it the code, the loading, the cache, or the idea?
prune     a model without some of its branches: gone round, or removed; save_pruned, load_pruned
"""

from layertap.weights.audit import audit
from layertap.weights.doctor import Diagnosis, doctor
from layertap.weights.fingerprints import Fingerprints, fingerprints
from layertap.weights.knockout import Joint, Knockout, KnockoutRow, knockout
from layertap.weights.loading import Loading, loading
from layertap.weights.pruned_files import load_pruned, save_pruned
from layertap.weights.pruning import Pruning, prune
from layertap.weights.result import STATUSES, Audit, AuditRow

__all__ = [
    "STATUSES",
    "Audit",
    "AuditRow",
    "Diagnosis",
    "Fingerprints",
    "Joint",
    "Knockout",
    "KnockoutRow",
    "Loading",
    "Pruning",
    "audit",
    "doctor",
    "fingerprints",
    "knockout",
    "load_pruned",
    "loading",
    "prune",
    "save_pruned",
]
