"""Tensors out of a running model.

`taps` sees the calls of modules, `module_tap` takes the tensors of a call, `leaves` finds them in nested values, `sink`
measures them and hands them to the store's writer (`cuda`: without synchronising), `ledger` balances the receipt.
"""

from layertap.capture.keep import Level
from layertap.capture.planning import plan
from layertap.capture.recorder import Recorder, record
from layertap.capture.schedule import Schedule

__all__ = ["Level", "Recorder", "Schedule", "plan", "record"]
