"""Two live models, one culprit: what each module does with right values, against what rounding does there.

finding      find_fault, from preflight to verdict                <- read first
side         one of the two models: run from the same state, left as it was
pairing      which module of the one is which of the other
replay       the reference written down; the candidate held to it, forward and back
shelf        where the reference's tensors wait, within a budget
contrast     one tensor against another
masks        masks that differ in form: what they say, and who made them
writes       who wrote into a tensor that was only given to it
judge        which modules stand out
alike        what is quantised everywhere, and no fault of one module
drill        the operators inside a guilty module
why          the cause, from the two modules, the operators and the error's form
repro        the culprit in a folder of its own
compiled     models that cannot be held: total errors only
result       Finding, ModuleRow
"""

from layertap.fault.finding import find_fault
from layertap.fault.result import CAUSES, Finding, ModuleRow

__all__ = ["CAUSES", "Finding", "ModuleRow", "find_fault"]
