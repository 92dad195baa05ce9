"""The help of every command in one layout, built from its parameters.

Usage: agentctl runs cancel [OPTIONS] RUN_ID...
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from agentctl.cli.io import current_io
from agentctl.cli.plain_values import convert_plainly
from agentctl.errors import (
    InvalidConfiguration,
    NotFound,
    UsageError,
    ValidationFailed,
    build_empty_value_error,
)

F = TypeVar("F", bound=Callable[..., Any])

_ARGUMENTS = "Arguments"
_OPTIONS = "Options"

PANEL = "Common options"

When = Literal["auto", "always", "never"]

COLOR_HELP = "Use colors: auto, always or never  [env: NO_COLOR, FORCE_COLOR]"


_FREE_TEXTS = frozenset(
    {"TEXT", "VALUE", "WORDS", "JSON", "CURSOR", "PREFIX", "NAME", "TAG", "MODEL", "-"}
)
"""The metavars of values that may be empty, or whose readers say what they expect."""

_SELECTING_NAMES = frozenset({"--context", "--table", "--tool", "--principal"})
"""The options for a NAME that select something."""


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
        convert_plainly(self.get_params(ctx), _refuse_empty_value)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (NotFound, UsageError, ValidationFailed) as failure:
            # The help of the command is the remedy of a wrong value if there is no better one; a
            # wrong configuration names its key.
            if failure.hint is None and not isinstance(failure, InvalidConfiguration):
                failure.hint = f"`{ctx.command_path} --help` lists its parameters"
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the pieces of `--message TEXT [OPTIONS] RUN_ID... [NAME]`."""
        return _usage_pieces(self.get_params(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section for arguments, for options, and for each panel of options."""
        _write_parameters(formatter, self.get_params(ctx))

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        _write_example(formatter, self.epilog)


class HelpGroup(TyperGroup):
    """A group of commands, listed with the first sentence of their help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        convert_plainly(self.get_params(ctx))
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the pieces of `[OPTIONS] COMMAND ...`."""
        return [*_usage_pieces(self.get_params(ctx)), "COMMAND ..."]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_parameters(formatter, self.get_params(ctx))
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


def value_placeholder(parameter: Any) -> str:
    """Return the placeholder of a parameter's value; empty for a flag."""
    if getattr(parameter, "is_flag", False):
        return ""
    name = str(parameter.metavar or parameter.name.upper())
    return f"{name}..." if parameter.nargs == -1 else name


def describe_bounds(parameter: Any) -> str:
    """Return `from 1 to 100`, `from 1`, or an empty text."""
    low = parameter.min
    high = parameter.max
    if low is None:
        return ""
    return f"from {low:g}" if high is None else f"from {low:g} to {high:g}"


def describe_allowed_values(parameter: Any) -> str | None:
    """Return the allowed values: `a whole number from 1 to 100`; None if any text is."""
    kind = parameter.type_descriptor
    if kind.choices:
        return join_alternatives(tuple(map(str, kind.choices)))
    number = {int: "a whole number", float: "a number"}.get(kind.annotation)
    return f"{number} {describe_bounds(parameter)}".rstrip() if number else None


def parameter_name(parameter: Any) -> str:
    """Return the name of a parameter in errors: `--limit`, `RUN_ID`."""
    if _is_argument(parameter):
        return value_placeholder(parameter)
    return str(next(flag for flag in parameter.opts if flag.startswith("--")))


def join_alternatives(values: tuple[str, ...]) -> str:
    """Return `agent, team or workflow`."""
    return f"{', '.join(values[:-1])} or {values[-1]}" if values[1:] else "".join(values)


def _usage_pieces(parameters: Sequence[Any]) -> list[str]:
    options = [parameter for parameter in parameters if not _is_argument(parameter)]
    pieces = [
        f"{parameter_name(option)} {value_placeholder(option)}"
        for option in options
        if option.required
    ]
    pieces.append("[OPTIONS]")
    for argument in filter(_is_argument, parameters):
        name = value_placeholder(argument)
        pieces.append(name if argument.required else f"[{name}]")
    return pieces


def _write_parameters(formatter: Any, parameters: Sequence[Any]) -> None:
    sections: dict[str, list[tuple[str, str]]] = {_ARGUMENTS: [], _OPTIONS: []}
    for parameter in parameters:
        title = _ARGUMENTS if _is_argument(parameter) else parameter.rich_help_panel or _OPTIONS
        row = (format_flags(parameter), format_help(parameter))
        sections.setdefault(title, []).append(row)
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


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def format_flags(parameter: Any) -> str:
    """Return `-o, --output FORM`, or the placeholder of an argument."""
    if _is_argument(parameter):
        return value_placeholder(parameter)
    flags = sorted(parameter.opts, key=lambda flag: flag.startswith("--"))
    both = [", ".join(flags), *parameter.secondary_opts]
    return f"{' / '.join(both)} {value_placeholder(parameter)}".rstrip()


def format_help(parameter: Any) -> str:
    """Return the help of a parameter with its default and bounds."""
    text = str(parameter.help or "").removesuffix(".")
    value = parameter.default
    extras = []
    if value not in (None, False, "", ()) and parameter.show_default:
        extras.append(f"default: {value:g}" if isinstance(value, float) else f"default: {value}")
    if bounds := describe_bounds(parameter):
        extras.append(bounds)
    if parameter.required and not _is_argument(parameter):
        extras.append("required")
    return f"{text}  [{'; '.join(extras)}]" if extras else text


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
        raise UsageError("--verbose and --quiet exclude each other")
    if is_given:
        current_io().quiet = True


def _declare_options(
    verbose: Annotated[
        bool,
        _option(
            "--verbose",
            "-v",
            callback=_set_verbose,
            help="Write the files, databases and requests that are used to stderr",
        ),
    ] = False,
    quiet: Annotated[
        bool,
        _option(
            "--quiet",
            "-q",
            callback=_set_quiet,
            help="Write no notes and no progress to stderr, only errors",
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
            help="Never ask: fail where a confirmation is required  [env: AGENTCTL_NO_INPUT]",
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
