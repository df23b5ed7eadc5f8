"""English: the messages of layertap.schedule."""

MESSAGES = {
    "schedule.as_they_come": "{text} (epochs and batches are decided as they occur)",
    "schedule.at_least_one": "schedule={count}: every n-th step needs n of at least 1",
    "schedule.decade": "schedule 'log {per_decade}': at least 1 step per decade is required",
    "schedule.empty": "an empty schedule: {HELP}",
    "schedule.every_nth": "every {count}th step",
    "schedule.every_step": "every step",
    "schedule.first": "the first {count} steps",
    "schedule.first_steps": "{text}: {named}; {count} of the first {steps} steps",
    "schedule.help": (
        "use an int (every n-th step), a range, a list of steps, a predicate, a text such as 'every 10', "
        "'first 5', 'steps 3,20-30', 'epochs 1,5', 'batches 0', 'log 3', 'never' (joined by 'and', "
        "'or'), or a mapping of these"
    ),
    "schedule.in_range": "steps in {schedule}",
    "schedule.log": "log-spaced steps, {per_decade} per decade",
    "schedule.no_numbers": "schedule: {word} gives no numbers; {HELP}",
    "schedule.no_step": "no step",
    "schedule.predicate": "steps chosen by {getattr}",
    "schedule.span": "schedule: {strip!r} is neither a number nor a range such as 20-30",
    "schedule.unknown": "schedule={schedule!r}: {HELP}",
    "schedule.unknown_rule": "schedule {rule!r}: {HELP}",
}
