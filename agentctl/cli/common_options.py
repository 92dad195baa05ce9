"""The options that every command has: what it writes on stderr, colors, and if it may ask."""

from __future__ import annotations

import functools
from typing import Annotated, Any, Literal

import typer

from agentctl.cli.io import current_io
from agentctl.errors import UsageError

PANEL = "Common options"

When = Literal["auto", "always", "never"]
COLOR_HELP = "Use colors: auto, always or never  [env: NO_COLOR, FORCE_COLOR]"


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
            "--verbose", "-v",
            callback=_set_verbose,
            help="Write the files, databases and requests that are used to stderr",
        ),
    ] = False,
    quiet: Annotated[
        bool,
        _option(
            "--quiet", "-q",
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
) -> None:  # fmt: skip
    """Declare the options; their callbacks take the values."""


@functools.cache
def common_options() -> tuple[Any, ...]:
    """Return the parameters that each command adds to its own."""
    stem = typer.Typer(add_completion=False)
    stem.command()(_declare_options)
    return tuple(typer.main.get_command(stem).params)
