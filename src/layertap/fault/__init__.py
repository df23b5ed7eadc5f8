"""Two live models, one culprit: what each module does with right values, against what rounding does there.

finding      find_fault: which search fits                         <- read first
search       what every search does first: the reference proved, rounding measured
forced         the candidate forced to the reference: who is faulty of what
unheld       models that cannot be forced, compiled ones: total errors only
side         one of the two models: run from the same state, left as it was
pairing      which module of the one is which of the other
replay       the reference written down; the candidate forced to it, forward and back
watchers     what stands at each module while that happens
trace, cache  what was written down, and where it waits, within a budget
forms        one value in two layouts
contrast     one tensor against another; outputs: what two models return
masks        masks that differ in form: what they say, and who made them
writes       who wrote into a tensor that was only given to it
rounding     what honest arithmetic does
judge        which modules stand out
alike        what is quantised everywhere, and no fault of one module
cancelled    modules that are wrong one by one and right together
quantised    whether weights are another's, quantised
drill        the operators inside a faulty module, and what they say (operators)
why          the cause, from the two modules, the operators and the error's form
repro        the culprit in a folder of its own
result       Finding, ModuleRow
"""

from layertap.fault.finding import find_fault
from layertap.fault.result import CAUSES, Finding, ModuleRow

__all__ = ["CAUSES", "Finding", "ModuleRow", "find_fault"]
