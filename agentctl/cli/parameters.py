"""Declarations of the parameters of commands: options, flags and arguments."""

from __future__ import annotations

from typing import Any, cast

import typer

from agentctl.interface.declarations import Option, Query, find_declared


def option(flags: str, metavar: str, help: str, *, default: Any = ..., **more: Any) -> Any:
    """Return an option with a value, such as `option("--message -m", "TEXT", "Message")`.

    In an annotation it describes the parameter. As the default of a parameter it describes it too,
    and its own default is `default`, else None, else False for a flag.
    """
    return typer.Option(default, *flags.split(), metavar=metavar, help=help, **more)


def flag(flags: str, help: str, **more: Any) -> Any:
    """Return an option without a value; see `option`."""
    return typer.Option(..., *flags.split(), help=help, **more)


def argument(metavar: str, help: str, *, default: Any = ..., **more: Any) -> Any:
    """Return an argument; see `option`."""
    return typer.Argument(default, metavar=metavar, help=help, **more)


def complete_values(subject: str) -> Any:
    """Return the completion of a parameter with the ids or names of a subject.

    The group of the root finds the values: a completion opens a target, and a target has options.

    Args:
        subject: `agentctl.cli.completion.Subject`, or `component` for the kind of the group.
    """

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        group = str(ctx.parent.info_name) if ctx.parent is not None else ""
        noun = group.removesuffix("s") if subject == "component" else subject
        root: Any = ctx.find_root().command
        return cast(list[str], root.complete_values(noun, ctx.params, incomplete))

    return complete


def build_option(annotation: object) -> Any:
    """Build the option of a field of a request, from the declarations in its annotation."""
    declared = find_declared(annotation, Option)
    bounds = find_declared(annotation, Query)
    assert declared is not None
    more: dict[str, Any] = {"case_sensitive": False} if declared.any_case else {}
    if bounds is not None:
        more |= {"min": bounds.ge, "max": bounds.le}
    if declared.noun is not None:
        more["autocompletion"] = complete_values(declared.noun)
    return typer.Option(declared.flag, metavar=declared.metavar, help=declared.help, **more)


def build_id_option(noun: str, help: str | None = None) -> Any:
    """Return the option for the id of something, such as `--session`, which a shell completes."""
    text = help or f"{noun.title()} id"
    return option(f"--{noun}", "ID", text, autocompletion=complete_values(noun))
