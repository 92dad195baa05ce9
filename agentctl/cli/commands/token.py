"""`agentctl token`: make tokens, look into them, check them. No token is ever an argument."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentctl.cli.help import Branch
from agentctl.cli.options import Config, GivenTokenFile, Output
from agentctl.cli.show.terminal import confirm, is_terminal, note
from agentctl.errors import InvalidToken, UsageFailed

if TYPE_CHECKING:
    from agentctl.config.settings import Settings

__all__ = ["app"]

app = Branch(
    help="Make tokens, look into them, check them.",
    epilog="Example: export AGENTCTL_TOKEN=$(agentctl token mint --sub me --scope teams:read)",
)

Source = Annotated[
    str | None,
    typer.Argument(metavar="-", help="A dash: read the token from stdin", show_default=False),
]

_TOKEN = re.compile(r"[\w-]+\.[\w-]+\.[\w-]*|[a-z][a-z0-9]*_pat_\w+", re.ASCII)
_UNVERIFIABLE = "there is nothing to verify it with: {}"
_NOT_THERE = (
    "pipe the token into `-`, name its file with --token-file, or put it into AGENTCTL_TOKEN"
)


@app.command(
    "mint", epilog="Example: agentctl token mint --sub me --scope agents:run --expires-in 15m"
)
def mint_token(
    sub: Annotated[
        str | None, typer.Option("--sub", metavar="USER", help="Whom it stands for")
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", metavar="SCOPE", help="What it allows; may be repeated"),
    ] = None,
    expires_in: Annotated[
        str,
        typer.Option("--expires-in", metavar="TIME", help="15m, 2h, 7d, or a moment in RFC 3339"),
    ] = "1h",
    audience: Annotated[
        str | None,
        typer.Option("--audience", metavar="AUD", help="Whom it is for, when that is verified"),
    ] = None,
    issuer: Annotated[
        str | None, typer.Option("--issuer", metavar="ISS", help="Who issues it, if not configured")
    ] = None,
    session_id: Annotated[
        str | None,
        typer.Option("--session-id", metavar="ID", help="Default session of its runs and cancels"),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask about the admin scope")
    ] = False,
    config: Config = None,
) -> None:
    """Sign a token and print it, and nothing else, on stdout.

    The admin scope, which allows everything, is asked about; off a terminal it needs --yes.
    """
    from datetime import UTC, datetime

    from agentctl.auth.tokens import mint
    from agentctl.cli.durations import parse_until
    from agentctl.cli.show.output import write_line
    from agentctl.config import load

    span = parse_until(expires_in, now=datetime.now(UTC))
    settings = _issued_by(issuer, load(config))
    scopes = scope or ()
    mint.check_scopes(scopes, settings.authorization.admin_scope)
    _check_admin(scopes, settings.authorization.admin_scope, yes=yes)
    token = mint.mint(settings, sub, scopes, span, audience=audience, session_id=session_id)
    _summarize(token)
    write_line(token)


@app.command("inspect", epilog="Example: agentctl token inspect --token-file my.token -o json")
def inspect_token(
    source: Source = None,
    token_file: GivenTokenFile = None,
    config: Config = None,
    output: Output = None,
) -> None:
    """Show what a token says, and whether it holds."""
    from agentctl.auth.tokens import mint
    from agentctl.auth.tokens.account_tokens import of_any_account
    from agentctl.cli.options import admin_scope_of, settings_if_any
    from agentctl.cli.show import tokens as tokenview
    from agentctl.cli.show.output import chosen_format, show_list, show_record, write_bytes
    from agentctl.records.document import document_of

    form = chosen_format(output)
    token = _given(source, token_file)
    if of_any_account(token):
        seen = tokenview.of_account(token)
        show_record(document_of(seen), tokenview.OF_ACCOUNT, form, id_field="credential")
        return
    seen = mint.inspect(token)
    settings, missing = settings_if_any(config)
    reason = _UNVERIFIABLE.format(missing) if settings is None else _reason(token, settings)
    view = tokenview.view(seen, reason, admin_scope_of(settings))
    note("verified" if reason is None else f"NOT VERIFIED: {reason}")
    if form == "json":
        write_bytes(document_of(view).raw)
    else:
        show_list(document_of(list(tokenview.rows(view))), tokenview.COLUMNS, form, id_field="name")


@app.command("verify", epilog="Example: agentctl token verify - < my.token && echo good")
def verify_token(
    source: Source = None,
    token_file: GivenTokenFile = None,
    config: Config = None,
    output: Output = None,
) -> None:
    """Check a token as the server of the configuration would.

    The exit code is 0 when it holds, and 4 with the reason when it does not.
    """
    from agentctl.auth.tokens import mint
    from agentctl.auth.tokens.account_tokens import of_any_account
    from agentctl.cli.show import tokens as tokenview
    from agentctl.cli.show.output import chosen_format, show_record
    from agentctl.config import load
    from agentctl.records.document import document_of

    form = chosen_format(output)
    token = _given(source, token_file)
    if of_any_account(token):
        raise UsageFailed(
            "a service account's token is not signed: only its server knows whether it holds",
            hint="ask it with: agentctl auth whoami --url URL --token-file FILE",
        )
    report = mint.verify_report(token, load(config))
    if not report["verified"]:
        failure = InvalidToken(report["reason"], check=report["check"])
        failure.cause = _why(report)
        failure.hint = f"{report['remedy']}; look into it with: agentctl token inspect"
        raise failure
    record = tokenview.held(report)
    show_record(document_of(record), tokenview.HELD, form, id_field="subject")


def _why(report: dict[str, Any]) -> str:
    """Why a token does not hold, in full."""
    reason, cause = str(report["reason"]), str(report["cause"])
    return cause if cause.startswith(reason) else f"{reason} ({cause})"


def _given(source: str | None, token_file: str | None) -> str:
    """The token from stdin, a file or the environment."""
    from agentctl.cli.target import given_token

    for argument in (source, token_file):
        if argument is not None and _TOKEN.fullmatch(argument) and not _is_there(argument):
            raise UsageFailed(
                "a token does not belong on the command line, where others can read it",
                hint=_NOT_THERE,
            )
    if source not in (None, "-"):
        raise UsageFailed("the only argument is a dash, for stdin", hint=_NOT_THERE)
    if source and token_file:
        raise UsageFailed("the token is either on stdin or in a file", hint=_NOT_THERE)
    file = source or token_file
    if file == "-" and is_terminal(sys.stdin):
        note("paste the token, then press Enter and Ctrl-D")
    token = given_token(file)
    if token is None:
        raise UsageFailed("no token was given", hint=_NOT_THERE)
    return token


def _is_there(name: str) -> bool:
    """Whether a file has this name; a name that no file can have names none."""
    try:
        return Path(name).exists()
    except OSError:
        return False


def _reason(token: str, settings: Settings) -> str | None:
    """Why a token does not hold; None: it does."""
    from agentctl.auth.tokens import mint

    try:
        report: dict[str, Any] = mint.verify_report(token, settings)
    except UsageFailed as failure:
        return _UNVERIFIABLE.format(failure.detail)
    return report.get("reason")


def _issued_by(issuer: str | None, settings: Settings) -> Settings:
    """The settings with `--issuer` in the place of an issuer that is not configured."""
    from dataclasses import replace

    given = settings.authorization
    if issuer in (None, given.issuer):
        return settings
    if given.issuer:
        raise UsageFailed(
            "the server would not accept such a token",
            cause=f"authorization.issuer is {given.issuer!r}, not {issuer!r}",
        )
    return replace(settings, authorization=replace(given, issuer=issuer))


def _check_admin(scopes: Sequence[str], admin_scope: str, *, yes: bool) -> None:
    """Warn of a token that allows everything, and ask whether that is meant.

    Raises:
        UsageFailed: nobody can be asked.
        Refused: the answer was no.
    """
    if admin_scope in scopes:
        note(f"warning: {admin_scope} allows everything, on the data of every user")
        confirm("Mint such a token?", yes=yes)


def _summarize(token: str) -> None:
    """Say on stderr what was minted: never the token."""
    from agentctl.cli.show import tokens as tokenview

    header, claims = tokenview.decoded(token)
    for line in tokenview.summary(header, claims):
        note(line)
