"""Two live models, one culprit: what each module does with right values, against what rounding does there.

finding            find_fault: which search fits                         <- read first
search             what every search does first: the reference proved and traced
teacher_forced     the candidate forced to the reference: which module is at fault
free_run           models that cannot be forced, compiled ones: total errors only
model_runner       one of the two models: run from the same state, left as it was
pairing            which module of the one is which of the other
replay             the reference traced; the candidate forced to it, forward and back
record_tap         what is at each module of the reference meanwhile; force_tap: at each of the candidate
replay_measure     what all taps of a run share; call_stack: who is inside whom; tensor_swap: one tensor for another
reference_trace    the nouns of a replay; tensor_cache: where tensors wait, within a budget
prefetch           tensors that wait in pinned memory, brought back before they are asked for
collector          Python's garbage collector meanwhile
value_layouts      one value in two layouts
world              the ranks that run a candidate together; places: which part of a whole each holds
stated_parts       the same where a mapping says it; agreement: what ranks wait for; stage: what cannot be judged
sharded_replay     a replay on several ranks; sharded_cause, reduction: what one rank holds, how ranks are combined
outputs            what two models return
local              this rank's part of distributed values
masks              masks that differ in form: what they say, and which module made them
inplace_writes     which call wrote into a tensor that was only given to it
rounding           what honest arithmetic does; moved_values: what is entered for that
module_rows        which modules are above their floor
exchange           weights and settings that differ within the floor, tried by putting the reference's in place
quantised_kinds    what is quantised everywhere, and no fault of one module
quantised          whether weights are another's, quantised
cancelling         modules that are wrong one by one and right together
omitted            a module that was left out when its neighbours were rearranged
unjudged           what could not be judged inside a module that is above its floor
culprit            a closer look at the modules at fault
drill              the operators inside them, and what they say (operators)
cause              the cause, from the two modules, the operators and the error
module_differences how two modules differ in themselves; error_forms: what an error looks like
repro              the culprit in a folder of its own
result             Finding, ModuleRow
"""

from layertap.fault.finding import find_fault
from layertap.fault.result import CAUSES, Finding, ModuleRow

__all__ = ["CAUSES", "Finding", "ModuleRow", "find_fault"]
