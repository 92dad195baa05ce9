"""`cli.md`: the commands, from the Typer tree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from agentctl.cli.help import common_options
from pages.markdown import code, made_from, sentence, table

__all__ = ["SHARED_COMMANDS", "commands", "commands_once", "group_commands", "page"]

PROGRAM = "agentctl"
SHARED = "connection-options"

SHARED_COMMANDS = {"agentctl teams": "agentctl agents", "agentctl workflows": "agentctl agents"}
"""Groups whose commands are the commands of another group, with another noun."""

_INTRODUCTION = f"""# Commands

{made_from("the commands in agentctl/cli")}

`-h` and `--help` of each command print the same. [Command line](../cli.md) describes their common
behaviour: targets, output formats, exit codes, environment variables.
"""


def commands() -> Iterator[tuple[str, Any]]:
    """Yield every command and group with its path: `agentctl`, `agentctl init`, ..."""
    import typer

    from agentctl.cli.root import app

    yield from _walk(PROGRAM, typer.main.get_command(app))


def commands_once() -> Iterator[tuple[str, Any]]:
    """Yield the commands and groups, without the commands of `SHARED_COMMANDS`."""
    for path, command in commands():
        if path.rpartition(" ")[0] not in SHARED_COMMANDS:
            yield path, command


def page() -> str:
    """Build `cli.md`."""
    found = list(commands_once())
    lines = [_INTRODUCTION, *_overview(found), ""]
    for path, command in found:
        lines += [*_section(path, command), ""]
    lines += _shared_section(found)
    return "\n".join(lines).rstrip() + "\n"


def _walk(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _walk(f"{path} {name}", inner)


def _overview(found: list[tuple[str, Any]]) -> list[str]:
    lines = []
    for heading, section in group_commands(found):
        rows = [(_link(path), sentence(_summary(command))) for path, command in section]
        lines += ["", *table((f"**{heading}**", "description"), rows)]
    return lines[1:]


def group_commands(found: list[tuple[str, Any]]) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """Yield the headings of the help of the root, each with its commands.

    Groups are left out, except those of `SHARED_COMMANDS`.
    """
    for heading, rows in found[0][1].list_sections().items():
        names = {name for name, _ in rows}
        yield (
            heading,
            [
                (path, command)
                for path, command in found[1:]
                if path.split()[1] in names
                and (path in SHARED_COMMANDS or not hasattr(command, "commands"))
            ],
        )


def _link(path: str) -> str:
    return f"[`{path}`](#{path.replace(' ', '-')})"


def _summary(command: Any) -> str:
    return str(command.help or "").strip().partition("\n\n")[0]


def _section(path: str, command: Any) -> list[str]:
    level = "##" if path.count(" ") < 2 else "###"
    lines = [f"{level} {path}", "", *_paragraphs(command.help or "")]
    if path in SHARED_COMMANDS:
        names = ", ".join(code(name) for name in command.commands)
        noun = path.rpartition(" ")[2]
        text = f"The commands are those of {_link(SHARED_COMMANDS[path])}, for {noun}: {names}."
        return [*lines, text]

    group = hasattr(command, "commands")
    if not group:
        lines += ["```text", _usage(path, command), "```", ""]
    rows = [_row(parameter) for parameter in _own(command)]
    if rows:
        lines += [*table(("argument or option", "description", "default"), rows), ""]
    if _is_remote(command):
        names = ", ".join(code(parameter.opts[-1]) for parameter in _shared(command))
        lines += [f"Also [{names}](#{SHARED}).", ""]
    if command.epilog and not group:
        lines += [f"Example: {code(command.epilog.removeprefix('Example: '))}", ""]
    return lines[:-1]


def _paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a help text."""
    return [line for each in text.strip().split("\n\n") for line in (sentence(each), "")]


def _usage(path: str, command: Any) -> str:
    import typer

    return " ".join([path, *command.collect_usage_pieces(typer.Context(command))])


def _row(parameter: Any) -> tuple[str, str, str]:
    if _is_argument(parameter):
        name = code(f"{parameter.display_name_raw}{'...' if parameter.nargs == -1 else ''}")
    else:
        value = "" if parameter.is_flag else parameter.metavar
        flags = [*parameter.opts, *parameter.secondary_opts]
        long_first = sorted(flags, key=lambda flag: not flag.startswith("--"))
        name = ", ".join(code(flag) for flag in long_first) + (f" {code(value)}" if value else "")
    text = [sentence(parameter.help)] if parameter.help else []
    text += ["Required."] if parameter.required else []
    text += ["May be repeated."] if parameter.multiple and "repeat" not in str(text) else []
    text += [_bounds(parameter)] if _bounds(parameter) else []
    return name, " ".join(text), code(_default(parameter))


def _bounds(parameter: Any) -> str:
    if parameter.min is None:
        return ""
    upper = "" if parameter.max is None else f" to {parameter.max:g}"
    return f"From {parameter.min:g}{upper}."


def _default(parameter: Any) -> str:
    value = parameter.default
    if value in (None, False, "", ()) or _is_argument(parameter):
        return ""
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def _connection() -> set[str]:
    from agentctl.cli.target import TargetOptions

    return {field.name for field in fields(TargetOptions)}


def _is_remote(command: Any) -> bool:
    return _connection() <= {parameter.name for parameter in command.params}


def _shared(command: Any) -> list[Any]:
    return [parameter for parameter in command.params if parameter.name in _connection()]


def _own(command: Any) -> list[Any]:
    if not _is_remote(command):
        return list(command.params)
    return [parameter for parameter in command.params if parameter.name not in _connection()]


def _shared_section(found: list[tuple[str, Any]]) -> list[str]:
    command = next(command for _, command in found if _is_remote(command))
    rows = [_row(parameter) for parameter in _shared(command)]
    title = SHARED.replace("-", " ").capitalize()
    heads = ("option", "description", "default")
    common = [_row(parameter) for parameter in common_options()]
    return [
        *[f"## {title}", "", *table(heads, rows), ""],
        *["## Common options", "", "Every command has these and `--help`.", ""],
        *table(heads, common),
    ]
