"""Schedules: what is read, what is due, what is printed."""

import pytest

from layertap.capture.schedule import parse_schedule
from layertap.errors import BadArgument


def due(schedule, steps=40, **now):
    rule = parse_schedule(schedule)
    return [step for step in range(steps) if rule.due(step, **now)]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (10, [0, 10, 20, 30]),
        ("every 10", [0, 10, 20, 30]),
        ({"every": 10}, [0, 10, 20, 30]),
        (range(3, 9, 2), [3, 5, 7]),
        ([2, 5], [2, 5]),
        ("steps 2,5,7-9", [2, 5, 7, 8, 9]),
        ({"steps": "7-9"}, [7, 8, 9]),
        ("first 3", [0, 1, 2]),
        ("log 1", [0, 1, 10]),
        ("log", [0, 1, 2, 5, 10, 22]),
        ("first 2 or every 15", [0, 1, 15, 30]),
        ("steps 5-20 and every 10", [10, 20]),
        ({"steps": "5-20", "every": 10}, [10, 20]),
        (["first 2", "steps 7"], [0, 1, 7]),
        (lambda step: step == 4, [4]),
        ("never", []),
    ],
)
def test_steps(schedule, expected):
    assert due(schedule) == expected


def test_epochs_and_batches():
    rule = parse_schedule("epochs 1,3 and batches 0,2-4")
    now = [(epoch, batch) for epoch in range(1, 5) for batch in range(6) if rule.due(0, epoch, batch)]
    assert now == [(epoch, batch) for epoch in (1, 3) for batch in (0, 2, 3, 4)]
    assert not rule.by_step
    assert not parse_schedule("epochs 1").due(0), "an epoch that nobody knows is none of them"


def test_a_predicate_of_three_sees_epoch_and_batch():
    rule = parse_schedule(lambda step, epoch, batch: epoch == 2 and batch == 1)
    assert rule.due(9, 2, 1)
    assert not rule.due(9, 2, 2)


def test_the_plan_is_printed():
    assert parse_schedule("every 250").plan() == "every 250th step: 0, 250, 500, 750; 4 of the first 1000 steps"
    assert parse_schedule(None).plan() == "every step"
    assert parse_schedule("epochs 2").plan().startswith("epochs 2 (epochs and batches are decided")


@pytest.mark.parametrize("bad", ["sometimes", "every", "every -3", "steps 3 to 9", 0, -1, [], {}, "", 1.5, "log 0"])
def test_what_cannot_be_read_says_what_can(bad):
    with pytest.raises(BadArgument, match="schedule"):
        parse_schedule(bad)
