"""User intent becomes a plan that can be printed: which modules, which roles, which leaves.

    select      patterns and a model → Selection
    Selection   the plan: what is wanted, in the order of `named_modules()`
    Choice      one module of it
    matching_sites   the recorded sites that patterns match

Patterns, anywhere that `sites` or `exclude` is asked for:

    model.layers.3              that module; "" is the root
    model.layers.*              `*` and `?` match within one component of the path
    **.self_attn   model.**     `**` matches any number of components, none included
    model.layers.[0,30,61]      numbers; also [0-3], [-1], [first], [last], and .first, .last
    re:.*(q|k)_proj             a regular expression that matches the whole path
    type:Linear  type:*RMSNorm  the class or one of its bases
    lambda path, module: ...    a predicate; also a module class, or a module itself
    model.layers.*:input        only that role, in place of `what`
    **:output.1                 only that leaf, and what is nested in it
    [...]                       a list of these: what any of them selects

Files: `tree.py` lays the module tree out, `pattern.py` reads one pattern, `default.py` chooses without a pattern,
`nearest.py` finds what a typo meant, `choose.py` puts it together, `plan.py` holds and prints the result, `sites.py`
asks the same patterns of what was recorded.
"""

from layertap.select.choose import select
from layertap.select.plan import Choice, Selection
from layertap.select.sites import matching_sites

__all__ = ["Choice", "Selection", "matching_sites", "select"]
