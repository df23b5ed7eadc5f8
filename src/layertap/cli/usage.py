"""Usage and help in the user's language: what typer writes by itself, and its errors, as messages of the catalogue."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from typing import Any

import typer
import typer.rich_utils
from typer.core import TyperCommand, TyperGroup

from layertap.errors import BadArgument
from layertap.messages import tr


class Command(TyperCommand):
    """A command whose usage line and help option are in the user's language."""

    def get_usage(self, ctx: Any) -> str:
        return _usage_line(self, ctx)

    def get_help_option(self, ctx: Any) -> Any:
        return _help_option(super().get_help_option(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        allowed, ctx.allow_extra_args = ctx.allow_extra_args, True
        rest = super().parse_args(ctx, args)
        if rest and not allowed:
            raise BadArgument(f"{tr('cli.extra', extra=' '.join(rest))} ({tr('cli.see_help', path=ctx.command_path)})")
        return rest


class CommandGroup(TyperGroup):
    """The commands; one that does not exist is answered with the nearest."""

    def get_usage(self, ctx: Any) -> str:
        return _usage_line(self, ctx)

    def get_help_option(self, ctx: Any) -> Any:
        return _help_option(super().get_help_option(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in self.commands:
            near = get_close_matches(name, list(self.commands)) or list(self.commands)
            raise BadArgument(tr("cli.no_command", name=name, near=", ".join(near)))
        return super().resolve_command(ctx, args)


def _usage_line(command: Any, ctx: Any) -> str:
    formatter = ctx.make_formatter()
    pieces = " ".join(command.collect_usage_pieces(ctx))
    formatter.write_usage(ctx.command_path, pieces, prefix=tr("cli.usage"))
    line: str = formatter.getvalue()
    return line.rstrip("\n")


def _help_option(option: Any) -> Any:
    if option is not None:
        option.help = tr("cli.help")
    return option


def translate_titles() -> None:
    """The titles of typer's help; they are its own, so only our program sets them, for itself."""
    titles = {
        "ARGUMENTS_PANEL_TITLE": "cli.arguments",
        "OPTIONS_PANEL_TITLE": "cli.options",
        "COMMANDS_PANEL_TITLE": "cli.commands",
        "DEFAULT_STRING": "cli.default",
        "REQUIRED_LONG_STRING": "cli.required",
    }
    for name, code in titles.items():
        setattr(typer.rich_utils, name, tr(code))


def usage_error(error: Exception) -> str:
    """What is wrong with a command line; empty where it is no error of typer's, or only the help was asked for."""
    # typer comes with a click of its own, or with the one that is installed: its errors are known by their names.
    kinds = [kind.__name__ for kind in type(error).__mro__]
    if "NoSuchOption" in kinds:
        near = ", ".join(getattr(error, "possibilities", None) or _options(error))
        text = tr("cli.no_option", option=error.option_name, near=near)  # type: ignore[attr-defined]
    elif "MissingParameter" in kinds:
        text = tr("cli.missing", name=_called(error))
    elif "BadParameter" in kinds:
        text = tr("cli.bad_value", name=_called(error), given=_given(error), expected=_expected(error))
    elif "BadOptionUsage" in kinds:
        name = str(error.option_name)  # type: ignore[attr-defined]
        given = any(text.startswith(f"{name}=") for text in sys.argv[1:])
        text = tr("cli.no_value" if given else "cli.value_missing", name=name)
    else:
        return ""
    path = getattr(getattr(error, "ctx", None), "command_path", "layertap")
    return f"{text} ({tr('cli.see_help', path=path)})"


def _options(error: Any) -> list[str]:
    """All options of the command, where none is near."""
    command = getattr(getattr(error, "ctx", None), "command", None)
    return [option for one in getattr(command, "params", ()) for option in one.opts if option.startswith("--")]


def _called(error: Any) -> str:
    parameter = error.param
    if parameter is None:
        return str(error.param_hint or "")
    return " / ".join(parameter.opts) if parameter.param_type_name == "option" else str(parameter.name).upper()


def _expected(error: Any) -> str:
    """What a value must be, by the type of its parameter; typer keeps it in two places, after its version."""
    parameter = error.param
    kind = getattr(parameter, "type", None)
    described = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    name = getattr(described, "__name__", "") or str(getattr(kind, "name", ""))
    if name.startswith("int"):
        low = getattr(parameter, "min", None) or getattr(kind, "min", None)
        return tr("cli.a_whole_number") if low is None else tr("cli.a_whole_number_from", low=low)
    return tr("cli.a_number") if name.startswith("float") else str(error.message)


def _given(error: Any) -> str:
    """The value as it was typed."""
    for name in getattr(error.param, "opts", ()):
        for place, text in enumerate(sys.argv):
            if text == name:
                return " ".join(sys.argv[place + 1 : place + 2])
            if text.startswith(f"{name}="):
                return text.partition("=")[2]
    return ""
