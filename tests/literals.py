"""English sentences: those of the sources that are not in the catalogue, and the fixed part of one that is."""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "layertap"
PROSE = re.compile(r"[A-Za-z][a-z']+[,;:]? \(?[a-z]+|^[a-z]{4,}:? \{x\}")
MARKUP = re.compile(r"<[^<>]*>|\b[\w-]+=(?:'[^']*'|\"[^\"]*\")")
"""Tags and attributes of HTML and SVG."""
PROGRAM_ERRORS = ("AssertionError", "NotImplementedError", "RuntimeError", "AttributeError")
"""What a user can't cause: they keep the words of their line."""


def sentences(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each literal in a file that reads as a sentence, docstrings and program errors left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if isinstance(parents.get(node), (ast.Expr, ast.JoinedStr, ast.FormattedValue)):
            continue
        text = _text(node)
        if text and PROSE.search(MARKUP.sub("", text)) and not _exempt(node, parents):
            yield node.lineno, text  # type: ignore[attr-defined]


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{x}" for part in node.values)
    return ""


def _exempt(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """In an assertion, an annotation, a cast, a program error, or what is logged for those who debug layertap."""
    inner, outer = node, parents.get(node)
    while outer is not None and not isinstance(outer, (ast.Module, ast.FunctionDef, ast.ClassDef)):
        if isinstance(outer, ast.Assert) or (isinstance(outer, ast.AnnAssign) and inner is outer.annotation):
            return True
        if isinstance(outer, ast.Call):
            name = outer.func.attr if isinstance(outer.func, ast.Attribute) else getattr(outer.func, "id", "")
            if name in (*PROGRAM_ERRORS, "debug", "cast", "compile"):
                return True
        inner, outer = outer, parents.get(outer)
    return False


def fixed_part(code: str) -> str:
    """The longest piece of a sentence that holds no value: what must not be in a text where that is not said.

    A phrase written into a test goes on passing when the sentence changes; this one changes with it.
    """
    template = import_module(f"layertap.messages.en.{code.partition('.')[0]}").MESSAGES[code]
    return max((literal for literal, *_ in string.Formatter().parse(template)), key=len).strip()
