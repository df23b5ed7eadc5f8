"""English: the messages of layertap.site."""

MESSAGES = {
    "site.expected": "{text!r} is not a site; expected path:role.leaf@call with a role of {ROLES}",
    "site.type": "{name} must be {type}",
}
