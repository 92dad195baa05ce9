"""The one place where failures become text and exit codes (contract.md 8).

error: what failed
  cause: why

hint: what to do
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import typer

from agentctl.cli.help import HelpGroup, describe_allowed_values, parameter_name
from agentctl.cli.io import current_io
from agentctl.cli.show.terminal import escape_controls
from agentctl.errors import AgentctlError

__all__ = ["Group", "RootGroup", "report_error", "reporting_errors"]

USAGE_EXIT_CODE = 2

_SUGGESTION = re.compile(r"(.*?)\.? (?:Did you mean (.+)\?|\(Possible options: (.+)\))", re.DOTALL)
_PLAIN_WORD = re.compile(r"[A-Z][a-z]*(?:[ ,]|$)")


class Group(HelpGroup):
    """A group of commands; alone on the command line it shows its help and is a usage error."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            current_io().err.write(f"{ctx.get_help()}\n")
            raise typer.Exit(USAGE_EXIT_CODE)
        return super().parse_args(ctx, args)


class RootGroup(Group):
    """The root of the tree: whatever goes wrong below comes to its edge."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        with reporting_errors():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        with reporting_errors():
            return super().invoke(ctx)


@contextmanager
def reporting_errors() -> Iterator[None]:
    """Turn every failure into its text on stderr and `typer.Exit` with its exit code."""
    try:
        yield
        current_io().out.flush()
    except typer.Exit:
        raise
    except BrokenPipeError:
        _discard_stdout()
        raise typer.Exit(0) from None
    except Exception as failure:
        raise typer.Exit(report_error(failure)) from None


def report_error(failure: Exception) -> int:
    """Say on stderr what failed, and return the exit code for it."""
    if isinstance(failure, AgentctlError):
        return _write_error(failure.detail, failure.cause, failure.hint, failure.exit_code)
    if isinstance(failure, typer.TyperException):
        return _report_usage(failure)
    if isinstance(failure, typer.Abort | EOFError):
        return _write_error("the input ended before an answer", None, None, USAGE_EXIT_CODE)
    if isinstance(failure, OSError) and failure.errno is not None:
        _discard_stdout()
        return _write_error(
            "reading or writing failed", os.strerror(failure.errno).lower(), None, 1
        )
    name = type(failure).__name__
    hint = "this is a fault of agentctl: please report it with the command that you ran"
    return _write_error(f"internal failure ({name})", None, hint, 1)


def _report_usage(failure: typer.TyperException) -> int:
    text = _describe_wrong_value(failure) or " ".join(failure.format_message().split())
    found = _SUGGESTION.fullmatch(text)
    detail, guess = (found[1], found[2] or found[3]) if found else (text, None)
    context = getattr(failure, "ctx", None)
    command = context.command_path if context is not None else "agentctl"
    hint = f"did you mean {guess}?" if guess else f"`{command} --help` shows what it takes"
    return _write_error(detail.removesuffix("."), None, hint, failure.exit_code)


def _describe_wrong_value(failure: typer.TyperException) -> str | None:
    """What a parameter takes instead of the value that it was given; None: it is not about that."""
    parameter = getattr(failure, "param", None)
    found = getattr(failure.__cause__, "errors", None)
    takes = None if parameter is None else describe_allowed_values(parameter)
    if takes is None or found is None:
        return None
    return f"{parameter_name(parameter)} must be {takes}, not {found()[0]['input']!r}"


def _write_error(detail: str, cause: str | None, hint: str | None, code: int) -> int:
    lines = [f"error: {escape_controls(_lower_first_word(detail))}"]
    if cause:
        lines.append(f"  cause: {escape_controls(cause)}")
    if hint:
        lines += ["", f"hint: {escape_controls(hint)}"]
    err = current_io().err
    err.write("\n".join(lines) + "\n")
    err.flush()
    return code


def _lower_first_word(text: str) -> str:
    """`text` in the middle of a line: details are sentences for HTTP too; names stay."""
    return text[:1].lower() + text[1:] if _PLAIN_WORD.match(text) else text


def _discard_stdout() -> None:
    """stdout takes no more: let nothing complain about what is left in it at exit."""
    with suppress(OSError):
        stdout = current_io().out.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stdout)
        os.close(nowhere)
