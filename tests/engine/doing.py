"""What workers are given to do in tests: functions of a module that they can import."""

import os
import signal
import sys
from pathlib import Path


def given(value):
    return value


def told(state, item):
    return state, item, os.getpid()


def raise_at_three(_, item):
    if item == 3:
        raise KeyError("three")
    return item


class Odd(Exception):
    """Cannot be made again from what a pickle holds of it."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def raise_odd(_, item):
    raise Odd(item, item)


def die_once(folder, item):
    """The worker that is given 5 ends the first time."""
    mark = Path(folder) / str(item)
    again = mark.exists()
    mark.touch()
    if item == 5 and not again:
        os.kill(os.getpid(), signal.SIGKILL)
    return item, again


def die(_, item):
    os.kill(os.getpid(), signal.SIGKILL)


def where(_, item):
    return os.environ["LAYERTAP_LANG"], os.getcwd(), sys.path
