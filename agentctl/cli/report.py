"""The one place where failures become text and exit codes (contract.md 8).

error: what failed
  cause: why

hint: what to do
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from agentctl.cli.help import HelpGroup, allowed, shown_name
from agentctl.cli.show.terminal import printable
from agentctl.errors import AgentctlError

__all__ = ["Group", "Root", "edge", "report"]

USAGE = 2

_suggestion = re.compile(r"(.*?)\.? (?:Did you mean (.+)\?|\(Possible options: (.+)\))", re.DOTALL)
_plain_word = re.compile(r"[A-Z][a-z]*(?:[ ,]|$)")


class Group(HelpGroup):
    """A group of commands; alone on the command line it shows its help and is a usage error."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), err=True)
            raise typer.Exit(USAGE)
        return super().parse_args(ctx, args)


class Root(Group):
    """The root of the tree: whatever goes wrong below comes to its edge."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        with edge():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        with edge():
            return super().invoke(ctx)


@contextmanager
def edge() -> Iterator[None]:
    """Turn every failure into its text on stderr and `typer.Exit` with its exit code."""
    try:
        yield
        sys.stdout.flush()
    except typer.Exit:
        raise
    except BrokenPipeError:
        _silence_stdout()
        raise typer.Exit(0) from None
    except Exception as failure:
        raise typer.Exit(report(failure)) from None


def report(failure: Exception) -> int:
    """Say on stderr what failed, and return the exit code for it."""
    if isinstance(failure, AgentctlError):
        return _say(failure.detail, failure.cause, failure.hint, failure.exit_code)
    if isinstance(failure, typer.TyperException):
        return _report_usage(failure)
    if isinstance(failure, typer.Abort | EOFError):
        return _say("the input ended before an answer", None, None, USAGE)
    if isinstance(failure, OSError) and failure.errno is not None:
        _silence_stdout()
        return _say("reading or writing failed", os.strerror(failure.errno).lower(), None, 1)
    name = type(failure).__name__
    hint = "this is a fault of agentctl: please report it with the command that you ran"
    return _say(f"internal failure ({name})", None, hint, 1)


def _report_usage(failure: typer.TyperException) -> int:
    text = _wrong_value(failure) or " ".join(failure.format_message().split())
    found = _suggestion.fullmatch(text)
    detail, guess = (found[1], found[2] or found[3]) if found else (text, None)
    context = getattr(failure, "ctx", None)
    command = context.command_path if context is not None else "agentctl"
    hint = f"did you mean {guess}?" if guess else f"`{command} --help` shows what it takes"
    return _say(detail.removesuffix("."), None, hint, failure.exit_code)


def _wrong_value(failure: typer.TyperException) -> str | None:
    """What a parameter takes instead of the value that it was given; None: it is not about that."""
    parameter = getattr(failure, "param", None)
    found = getattr(failure.__cause__, "errors", None)
    takes = None if parameter is None else allowed(parameter)
    if takes is None or found is None:
        return None
    return f"{shown_name(parameter)} must be {takes}, not {found()[0]['input']!r}"


def _say(detail: str, cause: str | None, hint: str | None, code: int) -> int:
    lines = [f"error: {printable(_lower(detail))}"]
    if cause:
        lines.append(f"  cause: {printable(cause)}")
    if hint:
        lines += ["", f"hint: {printable(hint)}"]
    sys.stderr.write("\n".join(lines) + "\n")
    return code


def _lower(text: str) -> str:
    """`text` in the middle of a line: details are sentences for HTTP too; names stay."""
    return text[:1].lower() + text[1:] if _plain_word.match(text) else text


def _silence_stdout() -> None:
    """stdout takes no more: let nothing complain about what is left in it at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
