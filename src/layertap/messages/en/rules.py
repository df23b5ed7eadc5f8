"""English: the messages of layertap.rules."""

MESSAGES = {
    "rules.checked": "checked when read",
    "rules.in_a_row": ", {steps} steps in a row",
    "rules.no_function": "rules: {name!r} is not a function",
    "rules.no_import": "rules: {name!r} cannot be imported ({error})",
    "rules.no_option": "rules: no option {strange!r}; {KEYS}",
    "rules.no_rule": (
        "rules: no rule {name!r}; there are {KNOWN}, or give when='abs_max > 1e4', or a function as 'module:function'"
    ),
    "rules.plateau": "the loss has not fallen for {count} steps: at best {now}, before that {best}",
    "rules.update": "an update of {site} is {ratio} × the weight; expected {low} to {high}",
    "rules.vanished": "the gradient has vanished at {site}: {rms} per value, {share} of the median of all",
    "rules.when": (
        "rules: when={when!r}: expected a statistic, a comparison and a number, for instance 'abs_max > "
        "1e4'; statistics are {NUMBERS}"
    ),
    "rules.zeros": "{zeros} of the values of {site} are zero",
}
