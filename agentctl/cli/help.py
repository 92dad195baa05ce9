"""Commands whose help has a section for each panel of options, and an example to copy.

Typer writes the rows of the help, and converts the values of parameters.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from agentctl.cli.io import current_io
from agentctl.errors import (
    InvalidConfiguration,
    NotFound,
    UsageError,
    ValidationFailed,
    build_empty_value_error,
)

F = TypeVar("F", bound=Callable[..., Any])

PANEL = "Common options"

When = Literal["auto", "always", "never"]

COLOR_HELP = "Use colors: auto, always or never  [env: NO_COLOR, FORCE_COLOR]"


_FILE_PROBLEM = re.compile(
    "no such file or directory|not a directory|is a directory|file exists|permission denied"
    "|read-only file system",
    re.IGNORECASE,
)
"""The texts of the system for a path that cannot be used."""

_SAYS_ALL = re.compile(" must be | cannot be used together| has no effect | has no other ")
"""The texts of errors with the allowed values, or with the parameter to leave out."""

_FREE_TEXTS = frozenset(
    {"TEXT", "VALUE", "WORDS", "JSON", "CURSOR", "PREFIX", "NAME", "TAG", "MODEL", "-"}
)
"""The metavars of values that may be empty, or whose readers say what they expect."""

_SELECTING_NAMES = frozenset({"--context", "--table", "--tool", "--principal"})
"""The options for a NAME that select something."""


def _process_value(parameter: Any, ctx: Any, value: Any) -> Any:
    """Convert a value as Typer does, unless it is empty on the command line."""
    _refuse_empty_value(value, parameter, ctx)
    return type(parameter).process_value(parameter, ctx, value)


def _refuse_empty_value(value: Any, parameter: Any, ctx: Any) -> None:
    """Refuse an empty value on the command line, unless it is a free text.

    It is `"$VARIABLE"` of a variable that is not set. Taken for an option that is not given, it
    would select another server, another user or more records than were meant.

    Raises:
        UsageError: the value, or one of several, is empty or white space.
    """
    if ctx.resilient_parsing:
        return
    if parameter.metavar in _FREE_TEXTS and not _SELECTING_NAMES.intersection(parameter.opts):
        return
    values = value if isinstance(value, list | tuple) else [value]
    if not any(isinstance(each, str) and not each.strip() for each in values):
        return
    source = ctx.get_parameter_source(parameter.name)
    if source is not None and source.name == "COMMANDLINE":
        raise build_empty_value_error(parameter_name(parameter))


class Command(TyperCommand):
    """A command with the help of this module and the common options."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters of the command, the common options, and --help."""
        own = list[Any](self.params)
        last: list[Any] = super().get_params(ctx)[len(own) :]
        for help_option in last:
            help_option.rich_help_panel = PANEL
        return [*own, *common_options(), *last]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # Here, as only the value that was typed is empty: a path of it is the current folder.
        for parameter in self.get_params(ctx):
            parameter.process_value = partial(_process_value, parameter)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (NotFound, UsageError, ValidationFailed) as failure:
            # The help of the command is the remedy of a wrong parameter if there is no better one.
            # A wrong configuration names its key, and an error that says all needs no help.
            is_configuration = isinstance(failure, InvalidConfiguration)
            if failure.hint is not None or is_configuration or _SAYS_ALL.search(failure.detail):
                raise
            if _FILE_PROBLEM.search(f"{failure.detail}: {failure.cause}"):
                failure.hint = "check the path, and the permissions of the file and its folder"
            else:
                failure.hint = f"`{ctx.command_path} --help` lists its parameters"
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section for arguments, for options, and for each panel of options."""
        _write_parameters(self, ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        _write_example(formatter, self.epilog)


class HelpGroup(TyperGroup):
    """A group of commands, listed with the first sentence of their help."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_parameters(self, ctx, formatter)
        for heading, rows in self.list_sections().items():
            _write_section(formatter, heading, rows)

    def list_sections(self) -> dict[str, list[tuple[str, str]]]:
        """Return the commands under their headings; see `summarize_commands`."""
        return {"Commands": self.summarize_commands()}

    def summarize_commands(self) -> list[tuple[str, str]]:
        """Return the names of the commands with the first sentences of their help."""
        return [(name, first_sentence(command)) for name, command in self.commands.items()]

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        _write_example(formatter, self.epilog)


class CommandApp(typer.Typer):
    """A Typer application whose commands are of the class `Command`."""

    def command(  # type: ignore[override]
        self, name: str, *, epilog: str, help: str | None = None
    ) -> Callable[[F], F]:
        """Return a decorator that turns a function into a command.

        Args:
            epilog: `Example: agentctl ...`; every command has one.
            help: instead of the function's docstring.
        """
        from agentctl.cli.request_options import expand_options

        add = super().command(name, cls=Command, epilog=epilog, help=help)
        return lambda function: add(expand_options(function))


def first_sentence(command: Any) -> str:
    """Return the first sentence of a command's help, without its full stop."""
    paragraph = " ".join(str(command.help or "").strip().partition("\n\n")[0].split())
    return paragraph.partition(". ")[0].removesuffix(".")


def describe_allowed_values(parameter: Any) -> str | None:
    """Return the allowed values: `a whole number from 1 to 100`; None if any text is."""
    kind = parameter.type_descriptor
    if kind.choices:
        return join_alternatives(tuple(map(str, kind.choices)))
    number = {int: "a whole number", float: "a number"}.get(kind.annotation)
    if number is None or parameter.min is None:
        return number
    upper = "" if parameter.max is None else f" to {parameter.max:g}"
    return f"{number} from {parameter.min:g}{upper}"


def parameter_name(parameter: Any) -> str:
    """Return the name of a parameter in errors: `--limit`, `RUN_ID`."""
    if parameter.param_type_name == "argument":
        return str(parameter.display_name_raw)
    return str(next(flag for flag in parameter.opts if flag.startswith("--")))


def join_alternatives(values: tuple[str, ...]) -> str:
    """Return `agent, team or workflow`."""
    return f"{', '.join(values[:-1])} or {values[-1]}" if values[1:] else "".join(values)


def _write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for parameter in command.get_params(ctx):
        name, text = parameter.get_help_record(ctx)
        title = parameter.rich_help_panel or "Options"
        if parameter.param_type_name == "argument":
            # Without its type, which Typer writes as Python does.
            name = parameter.display_name_raw
            title = "Arguments"
        sections.setdefault(title, []).append((name, text.removesuffix(".")))
    for title, rows in sections.items():
        _write_section(formatter, title, rows)


def _write_section(formatter: Any, title: str, rows: list[tuple[str, str]]) -> None:
    if rows:
        with formatter.section(title):
            formatter.write_dl(rows)


def _write_example(formatter: Any, epilog: str | None) -> None:
    """Write the example on one line of any length, so that it can be copied."""
    if epilog:
        title, _, example = epilog.partition(": ")
        formatter.write(f"\n{title}:\n  {example}\n")


def _option(*flags: str, **attributes: Any) -> Any:
    return typer.Option(*flags, expose_value=False, rich_help_panel=PANEL, **attributes)


def _set_verbose(is_given: bool) -> None:
    if is_given:
        current_io().verbose = True


def _set_color(when: When | None) -> None:
    if when is not None:
        current_io().color = when


def _set_no_input(is_given: bool) -> None:
    if is_given:
        current_io().asks = False


def _set_quiet(is_given: bool) -> None:
    if is_given and current_io().verbose:
        raise UsageError("--verbose and --quiet cannot be used together")
    if is_given:
        current_io().quiet = True


def _declare_options(
    verbose: Annotated[
        bool,
        _option(
            "--verbose",
            "-v",
            callback=_set_verbose,
            help="Print the files, databases and requests used (to stderr)",
        ),
    ] = False,
    quiet: Annotated[
        bool,
        _option(
            "--quiet",
            "-q",
            callback=_set_quiet,
            help="Print only errors to stderr, without notes and progress",
        ),
    ] = False,
    color: Annotated[
        When | None, _option("--color", metavar="WHEN", callback=_set_color, help=COLOR_HELP)
    ] = None,
    no_input: Annotated[
        bool,
        _option(
            "--no-input",
            callback=_set_no_input,
            help="Never prompt; fail if confirmation is required  [env: AGENTCTL_NO_INPUT]",
        ),
    ] = False,
) -> None:
    """Declare the options; their callbacks take the values."""


@functools.cache
def common_options() -> tuple[Any, ...]:
    """Return the parameters that each command adds to its own."""
    stem = typer.Typer(add_completion=False)
    stem.command()(_declare_options)
    return tuple(typer.main.get_command(stem).params)
