"""English: the messages of layertap.align."""

MESSAGES = {
    "align.after_dropping": "after dropping {dropped}",
    "align.as": "`{one}` as `{other}`",
    "align.candidate_counts_embedding": "the candidate counts the embedding as 0",
    "align.content": "content: {pairs_text} of the remaining records",
    "align.content_too_many": "content: {count} against {count2} unpaired records of one shape are too many to match",
    "align.counted_differently": "steps are counted differently on the two sides; they are paired by epoch and batch",
    "align.first_layers": "the reference's first layer is {base}, the candidate's {base2}",
    "align.first_leaf": "with the first tensor of a tuple, or the only one of a value, taken as the output",
    "align.layout_axis": "layout {text!r}: {name} needs axis {last}, the shape is {shape}",
    "align.layout_elements": "layout {text!r}: axis {axis} has {shape} elements",
    "align.layout_empty": "layout is empty; leave it out where the axes agree",
    "align.layout_expected": (
        "layout {text!r}: expected transpose(axis,axis), merge(axis,next axis), split(axis,size,size,…) "
        "or slice(axis,start,stop)"
    ),
    "align.layout_neighbours": "layout {text!r}: only neighbouring axes can be merged; transpose them first",
    "align.layout_product": "layout {text!r}: axis {axis} has {shape} elements, not {product}",
    "align.mapping": "mapping: {pairs_text} by {count} rules",
    "align.mapping_absent": "mapping: `{site}` becomes `{name}`, which is not in the reference",
    "align.mapping_collides": "mapping: {sites} all become `{name}`; none of them is paired by it",
    "align.mapping_keys": "{where}: {pattern!r} takes 'to' and 'layout', or 'dims', got {map}",
    "align.mapping_more": "mapping: … and {count} more like it",
    "align.mapping_regex": "{where}: {pattern!r} → {to!r} is not a regular expression and its replacement ({error})",
    "align.mapping_replacement": "{where}: {pattern!r}: the replacement must be a string, got {to!r}",
    "align.mapping_shape": "mapping {path}: expected {{regex: replacement}}, got {name}",
    "align.mapping_suffix": "mapping {path}: expected a .yaml, .json or .toml file",
    "align.mapping_unreadable": "mapping {path}: cannot be read ({reason})",
    "align.mapping_unused": "mapping: the rule {pattern!r} matches nothing in the candidate",
    "align.moments_alone": "{count} of the {side}'s {count2} {word}s ({some}) are on that side only",
    "align.names_confirmed": "content: confirms the names of {pairs_text}",
    "align.numbering_ends": "numbering: {pairs_text} at the ends ({ends})",
    "align.numbering_pairs": "{pairs_text}, `{site}` as `{site2}` and so on ({why})",
    "align.numbers_from": "from {first} on one side, from {first2} on the other",
    "align.one_pair": "1 pair",
    "align.only_fit": "the only way that the numbers of both sides fit",
    "align.only_moment": (
        "the reference's only {word} is {ours}, the candidate's {theirs}; they are taken to be the same"
    ),
    "align.order": "order: {pairs} by position, kind and shape, beginning with `{one}` as `{other}`",
    "align.paired_with": "`{one}` is paired with the candidate's `{other}`",
    "align.pairs": "{count} pairs",
    "align.prefix": "prefix: {pairs} {how}",
    "align.prefix_of": "`{drop}.` from the {side}",
    "align.rank_parts": "the {count} ranks of the {side} have parts of the tensors of the other side's only rank",
    "align.reference_counts_embedding": "the reference counts the embedding as 0",
    "align.renumbered": (
        "names and contents disagree: `{stem}` is numbered differently ({how} in the candidate), as the "
        "contents of {count} layers show. {example}"
    ),
    "align.renumbered_unproven": (
        "`{stem}` is numbered differently ({how} in the candidate), which is the only way that the "
        "numbers of both sides fit; no layer's contents confirm it. {example}"
    ),
    "align.step": "{way}: {pairs}",
    "align.same_bits_other_name": ("the candidate's `{candidate}` equals the reference's `{reference}`, bit for bit"),
    "align.shifted": "{why}: {pairs_text} by content, other than by name",
    "align.states": "{pairs}, `{states}*` as `{layers}*` ({way})",
    "align.states_by_layer": "one for each layer",
    "align.states_with_embedding": "the embedding first, the last after the final norm",
    "align.text_order": "order: the {side}'s records are in text order (10 before 2); they are read in natural order",
    "align.uncertain_names": (
        "it is not certain which `{stem}` of one side is which of the other: neither contents nor "
        "numbers show it. They are paired by name; a mapping= settles it"
    ),
    "align.unmatched": "unmatched: {count} of the reference, {count2} of the candidate",
    "align.without_wrappers": "after removing wrappers such as `_orig_mod` from the paths",
    "align.yaml_missing": "a YAML mapping needs pyyaml; install it with: pip install pyyaml",
}
