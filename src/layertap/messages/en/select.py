"""English: the messages of layertap.select."""

MESSAGES = {
    "select.also": "also {value}",
    "select.and_nearest": "; nearest: {near}",
    "select.brackets": "{text!r}: brackets must be a whole component of the path, as in 'model.layers.[0,2-5,last]'",
    "select.but_not": " but not {never}",
    "select.class_name": "{text!r} names no class; write for instance 'type:Linear' or 'type:*Norm'",
    "select.component": "{text!r}: {component!r} is not a component of a path; '**' must be a component of its own",
    "select.container": "{kind} is a container, which is never called; ask for its children",
    "select.count_of": "{count} of {count2} of {model}",
    "select.did_you_mean": "; did you mean {near!r}?",
    "select.did_you_mean_role": "; did you mean :{near}?",
    "select.empty_list": "sites is an empty list; leave it out for the default, or write '**' for every module",
    "select.expected_pattern": (
        "{item!r} is not a pattern; expected a path, a glob, re:…, type:…, a class, a module or a "
        "function(path, module)"
    ),
    "select.expected_site": "{text!r} is not a pattern; expected path:role.leaf with at most one role and leaf",
    "select.module": "{count} module",
    "select.modules": "{count} modules",
    "select.nearest": "{text} Nearest: {near}",
    "select.no_calls": "{text!r}: single calls cannot be selected; leave out {text2!r}",
    "select.no_match": "{text!r} matches none of the {count} modules of {kind_of}.",
    "select.no_role": "what={what!r}: there is no role {role!r}, only {ROLES}{hint}",
    "select.nothing_left": "exclude={exclude!r} removes all of the {asked} modules that sites={sites!r} selects",
    "select.range_number": (
        "{text!r}: {inside!r} is not a number; write for instance [0,30,61], [0-3], [-1] or [last]"
    ),
    "select.range_order": "{text!r}: {inside!r} is descending; write [{high}-{low}]",
    "select.regex": "{text!r} is not a regular expression: {error}; for a glob leave out 're:'",
    "select.several": "{text} Several patterns must be a list: {parts} (--sites {parts2})",
    "select.sites_no_match": "sites: {text!r} matches none of the {count} sites{hint}",
    "select.text_no_role": "{text!r}: there is no role {role!r}, only {ROLES}{hint}",
    "select.this": "this {item}",
    "select.top": "{text} Its top-level modules: {top}; '**' selects everything",
    "select.total": "total",
    "select.what_empty": "what is empty; name at least one of {ROLES}",
    "select.will_add": "and what {count} will add",
}
