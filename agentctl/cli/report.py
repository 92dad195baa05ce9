"""Errors as text on stderr and exit codes (docs/contract.md "Command line").

error: what failed
  cause: why

hint: what to do
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import typer

from agentctl.cli.help import HelpGroup, describe_allowed_values, parameter_name
from agentctl.cli.io import current_io
from agentctl.errors import AgentctlError
from agentctl.records.text import escape_controls, suggest_name

USAGE_EXIT_CODE = 2

_SUGGESTION = re.compile(r"(.*?)\.? (?:Did you mean (.+)\?|\(Possible options: (.+)\))", re.DOTALL)
_PLAIN_WORD = re.compile(r"[A-Z][a-z]*(?:[ ,]|$)")
_SERVER_OPTION = re.compile(r"no such option: --(?:url|context|token-file)\b", re.IGNORECASE)
"""A command without these options works locally only: so the hint."""
_ROOT_OPTION = re.compile(r"no such option: --version\b", re.IGNORECASE)
_WRONG_WORD = re.compile(r"no such (?:option: -+|command ')([\w-]+)", re.IGNORECASE)
_FROM_AGENTOS = (
    "docs/agentos.md has a program that writes the {0} of AgentOS for: agentctl {0} import"
)
_REMOVED = {
    "agentctl run": "start a run with: agentctl runs start --agent AGENT_ID --message TEXT",
    "agentctl start": "start the server with: agentctl serve",
    "agentctl sessions stat": "the sums of runs are in: agentctl usage --by component",
    "agentctl top": "use the console of the server (agentctl console), "
    "agentctl runs list --live --watch, or agentctl runs watch RUN_ID",
    "agentctl db import": _FROM_AGENTOS.format("sessions"),
    "agentctl sessions list database": _FROM_AGENTOS.format("sessions"),
    "agentctl sessions get database": _FROM_AGENTOS.format("sessions"),
    "agentctl sessions runs database": _FROM_AGENTOS.format("sessions"),
    "agentctl sessions export database": _FROM_AGENTOS.format("sessions"),
    "agentctl memories list database": _FROM_AGENTOS.format("memories"),
}
"""Hints for commands of earlier versions or other programs, and for options (`agentctl COMMAND
OPTION`)."""

_MOVED = {
    "agentctl audit verify-export": "agentctl audit verify --export FILE",
    "agentctl budgets": "agentctl usage --budgets",
    "agentctl context show": "agentctl context list",
    "agentctl db check": "agentctl doctor --db",
    "agentctl memories forget": "agentctl memories delete --all --user USER",
    "agentctl memories topics": "agentctl memories list --topics",
    "agentctl runs doctor": "agentctl doctor --runs",
    "agentctl workers": "agentctl doctor --workers",
}
"""The present commands that do the work of commands of earlier versions."""

_EXTRA_WORDS = re.compile(r"unexpected extra argument(?:s|\(s\))? \((.+)\)", re.IGNORECASE)
_EXPORT_OPTION = re.compile(r"no such option: (?:-o|--(?:output|out|file))\b", re.IGNORECASE)
_NO_TOKEN = re.compile(r"no such option: --token\b(?!-)", re.IGNORECASE)


class Group(HelpGroup):
    """A group of commands. Without a command it shows its help and exits with code 2."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            current_io().err.write(f"{ctx.get_help()}\n")
            raise typer.Exit(USAGE_EXIT_CODE)
        return super().parse_args(ctx, args)


class RootGroup(Group):
    """The root of the command tree, which reports the errors of every command."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        with reporting_errors():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        with reporting_errors():
            return super().invoke(ctx)


@contextmanager
def reporting_errors() -> Iterator[None]:
    """Report an exception of the block on stderr and raise `typer.Exit` with its exit code.

    The output is written completely, so that the interpreter has nothing left to write at its end.
    """
    try:
        yield
        current_io().out.flush()
    except typer.Exit as ended:
        raise typer.Exit(_write_rest(ended.exit_code)) from None
    except BrokenPipeError:
        _discard_output()
        raise typer.Exit(0) from None
    except Exception as failure:
        raise typer.Exit(_write_rest(report_error(failure))) from None


def _write_rest(code: int) -> int:
    """Write the output of a command that has ended early; return its exit code."""
    try:
        current_io().out.flush()
    except BrokenPipeError:
        _discard_output()
    except OSError as failure:
        _discard_output()
        return code or report_error(failure)
    return code


def report_error(failure: Exception) -> int:
    """Write an error to stderr and return its exit code."""
    if isinstance(failure, AgentctlError):
        hint = _explain_arguments() or failure.hint
        return _write_error(failure.detail, failure.cause, hint, failure.exit_code)
    if isinstance(failure, typer.TyperException):
        return _report_usage(failure)
    if isinstance(failure, typer.Abort | EOFError):
        return _write_error("the input ended before an answer", None, None, USAGE_EXIT_CODE)
    if isinstance(failure, OSError) and failure.errno is not None:
        _discard_output()
        cause = os.strerror(failure.errno).lower()
        if isinstance(failure.filename, str):
            cause = f"{failure.filename}: {cause}"
        return _write_error("reading or writing failed", cause, None)

    # Its text may have a secret.
    name = type(failure).__name__
    hint = "this is a bug in agentctl: please report it with the command that you ran"
    return _write_error(f"internal error ({name})", None, hint)


def _explain_arguments() -> str | None:
    """Return the hint for words that are not text in the encoding of the locale."""
    try:
        "".join(sys.argv).encode()
    except UnicodeEncodeError:
        return (
            f"a word of the command is not {sys.getfilesystemencoding().upper()} text: "
            "use a UTF-8 locale, such as LC_ALL=C.UTF-8"
        )
    return None


def _report_usage(failure: typer.TyperException) -> int:
    """Write the error of a command line that Typer does not accept; return the exit code."""
    wrong_value = _describe_wrong_value(failure)
    if wrong_value is not None:
        # It has the allowed values: a hint at the help would only be noise.
        return _write_error(wrong_value, None, None, failure.exit_code)

    context = getattr(failure, "ctx", None)
    command = context.command_path if context is not None else "agentctl"

    # The message of Typer, with its suggestion as a hint.
    text = " ".join(failure.format_message().split())
    detail = text
    guess: str | None = None
    match = _SUGGESTION.fullmatch(text)
    if match:
        detail = match[1]
        guess = match[2] or match[3]

    wrong_word = _WRONG_WORD.search(detail)
    former_name = f"{command} {wrong_word[1]}" if wrong_word else command
    is_command = detail.lower().startswith("no such command")
    if is_command and former_name in _MOVED:
        moved = f"`{former_name}` has moved: use `{_MOVED[former_name]}`"
        return _write_error(moved, None, None, failure.exit_code)

    # Only near names: Typer also suggests others.
    if guess is not None and wrong_word is not None:
        similar_names = [
            name for name in guess.split(", ") if suggest_name(wrong_word[1], [name.strip("'-")])
        ]
        guess = ", ".join(similar_names)

    content = "commands" if is_command else "parameters"
    hint = f"`{command} --help` lists its {content}"
    example = getattr(getattr(context, "command", None), "epilog", None)
    if detail.lower().startswith("missing ") and example:
        hint = f"for example: {example.partition(': ')[2]}"
    if guess:
        hint = f"did you mean {guess}?"
    if wrong_word is not None:
        hint = _REMOVED.get(former_name, hint)

    # Frequent mistakes.
    extra_words = _EXTRA_WORDS.search(detail)
    if extra_words:
        hint = _explain_extra_words(context, extra_words[1]) or hint
    if _EXPORT_OPTION.match(detail) and command.endswith(" export"):
        hint = f"the export is written to stdout: {command} ... > FILE"
    if _NO_TOKEN.match(detail):
        hint = "other users can read command lines: use --token-file FILE, or AGENTCTL_TOKEN"
    if _ROOT_OPTION.match(detail):
        hint = "give it before the command, directly after agentctl"
    if command == "agentctl" and detail.lower().startswith("no such option") and not guess:
        hint = "give the options of a command after it: agentctl COMMAND --option"
    elif _SERVER_OPTION.match(detail):
        hint = "this works only locally: run it on the machine of the server, with --config FILE"
    return _write_error(detail.removesuffix("."), None, hint, failure.exit_code)


def _explain_extra_words(context: Any, words: str) -> str | None:
    """Return the command line that was probably meant with extra words, or None."""
    command = context.command_path
    values = context.params
    if command == "agentctl runs start":
        if values.get("agent") or values.get("team") or values.get("workflow"):
            return f"write the text after --message: --message {shlex.quote(words)}"
        component, _, message = words.partition(" ")
        return f"write: {command} --agent {component} --message {shlex.quote(message or 'TEXT')}"

    options = {name for parameter in context.command.params for name in parameter.opts}
    if "--url" in options and words.startswith(("http://", "https://")):
        return f"write: {command} --url {words}"
    if "--config" in options and words.endswith(".toml"):
        return f"write: {command} --config {words}"
    return None


def _describe_wrong_value(failure: typer.TyperException) -> str | None:
    """Return the text for a value that its parameter does not take; None for another failure."""
    parameter = getattr(failure, "param", None)
    errors = getattr(failure.__cause__, "errors", None)
    allowed = None if parameter is None else describe_allowed_values(parameter)
    if allowed is None or errors is None:
        return None
    return f"{parameter_name(parameter)} must be {allowed}, not {errors()[0]['input']!r}"


def _write_error(detail: str, cause: str | None, hint: str | None, code: int = 1) -> int:
    # A detail is a sentence, for HTTP too. At the terminal it continues a line; names stay.
    if _PLAIN_WORD.match(detail):
        detail = detail[:1].lower() + detail[1:]
    lines = [f"error: {escape_controls(detail)}"]
    if cause:
        lines.append(f"  cause: {escape_controls(cause)}")
    if hint:
        lines += ["", f"hint: {escape_controls(hint)}"]

    err = current_io().err
    try:
        err.write("\n".join(lines) + "\n")
        err.flush()
    except OSError:
        # The exit code reports the error.
        _discard_output()
    return code


def _discard_output() -> None:
    """Redirect the streams that cannot be written to the null device: they are flushed at exit."""
    for stream in (current_io().out, current_io().err):
        try:
            stream.flush()
        except OSError:
            with suppress(OSError):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, stream.fileno())
                os.close(null)
