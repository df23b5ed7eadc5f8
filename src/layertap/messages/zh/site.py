"""Chinese: the messages of layertap.site."""

MESSAGES = {
    "site.expected": "{text!r} 不是位置；应为 path:role.leaf@call，role 为 {ROLES} 之一",
    "site.type": "{name} 必须是 {type}",
}
