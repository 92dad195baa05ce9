"""`agentctl token`: mint, inspect and verify tokens. No token is ever an argument."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from agentctl.cli.durations import parse_option_until
from agentctl.cli.help import CommandApp
from agentctl.cli.io import current_io, resolve_token
from agentctl.cli.options import Config, GivenTokenFile, load_optional_settings
from agentctl.cli.parameters import argument, complete_values, flag, option
from agentctl.cli.show import tokens as tokenview
from agentctl.cli.show.output import CommandOutput, write_line, write_value
from agentctl.cli.show.terminal import confirm, note
from agentctl.errors import InvalidToken, UsageError
from agentctl.records.times import format_span

if TYPE_CHECKING:
    from agentctl.config.settings import Settings

app = CommandApp(
    help="Mint, inspect and verify tokens.",
    epilog="Example: export AGENTCTL_TOKEN=$(agentctl token mint --sub me --scope user)",
)

USER_SCOPES_NAME = "user"
USER_SCOPES = (
    *("agents:read", "agents:run", "teams:read", "teams:run", "workflows:read", "workflows:run"),
    *("sessions:read", "sessions:write", "usage:read"),
)
"""The scopes of `--scope user`: all components, and the sessions, runs and usage of one user."""

Source = Annotated[str | None, argument("-", "Read the token from stdin", show_default=False)]

LONG_LIFETIME_SECONDS = 30 * 86_400
"""Lifetime of a token from which `mint` warns."""

_TOKEN = re.compile(r"[\w-]+\.[\w-]+\.[\w-]*|[a-z][a-z0-9]*_pat_\w+", re.ASCII)
_UNVERIFIABLE = "no key to verify it with: {}"
_TOKEN_HINT = "pipe the token into `-`, pass its file with --token-file, or set AGENTCTL_TOKEN"


@app.command(
    "mint", epilog="Example: agentctl token mint --sub me --scope agents:run --expires-in 15m"
)
def mint_token(
    sub: str | None = option("--sub", "USER", "Subject: the user that the token represents"),
    scope: list[str] | None = option(
        "--scope",
        "SCOPE",
        "Scope to grant (repeatable); user: read and run everything, write sessions",
        autocompletion=complete_values("scope"),
    ),
    expires_in: str = option(
        "--expires-in",
        "TIME",
        "Lifetime such as 15m, 2h or 7d, or a time in RFC 3339",
        default="1h",
    ),
    audience: str | None = option("--audience", "AUD", "Audience, if the server verifies it"),
    issuer: str | None = option("--issuer", "ISS", "Issuer, if none is configured"),
    session_id: str | None = option("--session-id", "ID", "Default session for runs and cancels"),
    yes: bool = flag("--yes -y", "Skip the confirmation of the admin scope"),
    config: Config = None,
) -> None:
    """Sign a token and print it on stdout.

    The admin scope grants everything and needs a confirmation, or --yes without a terminal.
    """
    from agentctl.config import load_settings

    span = parse_option_until("--expires-in", expires_in)
    settings = _with_issuer(issuer, load_settings(config))
    scopes = scope or ()
    claims = {"audience": audience, "session_id": session_id}
    token = sign_token(settings, sub, scopes, span, yes=yes, **claims)
    for line in _list_warnings(sub, scopes, span.total_seconds()):
        note(f"warning: {line}")
    write_line(token)


@app.command("inspect", epilog="Example: agentctl token inspect --token-file my.token -o json")
def inspect_token(
    out: CommandOutput,
    source: Source = None,
    token_file: GivenTokenFile = None,
    config: Config = None,
) -> None:
    """Show a token's claims and whether it is valid."""
    from agentctl.auth.tokens import mint
    from agentctl.auth.tokens.account_tokens import is_account_token

    token = _read_token(source, token_file)
    if is_account_token(token):
        record = tokenview.account_token_record(token)
        out.show_record(record, tokenview.ACCOUNT_TOKEN_COLUMNS, "credential")
        return

    try:
        inspected = mint.inspect_token(token)
    except InvalidToken as failure:
        failure.hint = "copy the whole token: a JWT has three parts with dots between them"
        raise

    settings, missing = load_optional_settings(config)
    if settings is None:
        reason: str | None = _UNVERIFIABLE.format(missing)
    else:
        try:
            reason = mint.build_verification_report(token, settings).get("reason")
        except UsageError as failure:
            reason = _UNVERIFIABLE.format(failure.detail)

    view = tokenview.build_view(inspected, reason, settings)
    note("verified" if reason is None else f"NOT VERIFIED: {reason}")
    if out.format == "json":
        write_value(view)
    else:
        rows = list(tokenview.view_rows(view))
        out.show_list(rows, tokenview.VIEW_COLUMNS, "name")


@app.command("verify", epilog="Example: agentctl token verify - < my.token && echo good")
def verify_token(
    out: CommandOutput,
    source: Source = None,
    token_file: GivenTokenFile = None,
    config: Config = None,
) -> None:
    """Verify a token exactly as the configured server would.

    Exit code 0 if it is valid, 4 with the reason if not.
    """
    from agentctl.auth.tokens import mint
    from agentctl.auth.tokens.account_tokens import is_account_token
    from agentctl.config import load_settings

    token = _read_token(source, token_file)
    if is_account_token(token):
        raise UsageError(
            "the token of a service account is not signed: only its server can verify it",
            hint="verify it with: agentctl auth whoami --url URL --token-file FILE",
        )

    report = mint.build_verification_report(token, load_settings(config))
    if report["remote_keys"] is not None:
        note(report["remote_keys"])
    if not report["verified"]:
        reason = report["reason"]
        cause = report["cause"]
        failure = InvalidToken(reason, check=report["check"])
        failure.cause = cause if cause.startswith(reason) else f"{reason} ({cause})"
        failure.hint = f"{report['remedy']}; inspect it with: agentctl token inspect"
        raise failure

    record = tokenview.verified_record(report)
    out.show_record(record, tokenview.VERIFIED_COLUMNS, "subject")


def _read_token(source: str | None, token_file: str | None) -> str:
    for given in (source, token_file):
        if given is not None and _TOKEN.fullmatch(given) and not _file_exists(given):
            raise UsageError(
                "do not pass a token on the command line, where other users can read it",
                hint=_TOKEN_HINT,
            )

    if source not in (None, "-"):
        raise UsageError("the only argument is -, for stdin", hint=_TOKEN_HINT)
    if source and token_file:
        raise UsageError("- and --token-file cannot be used together", hint=_TOKEN_HINT)

    file = source or token_file
    if file == "-" and current_io().stdin_is_terminal:
        note("paste the token, then press Enter and Ctrl-D")
    token = resolve_token(file)
    if token is None:
        raise UsageError("no token given", hint=_TOKEN_HINT)
    return token


def _file_exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except OSError:
        return False


def _with_issuer(issuer: str | None, settings: Settings) -> Settings:
    table = settings.authorization
    if issuer in (None, table.issuer):
        return settings
    if table.issuer:
        raise UsageError(
            "the server would reject this token",
            cause=f"authorization.issuer is {table.issuer!r}, not {issuer!r}",
        )
    return replace(settings, authorization=replace(table, issuer=issuer))


def _list_warnings(sub: str | None, scopes: Sequence[str], seconds: float) -> Iterator[str]:
    if not scopes:
        yield "the token allows nothing: grant something with --scope, such as agents:run"
    if sub is None:
        yield "the token is for no user: name one with --sub"
    if seconds > LONG_LIFETIME_SECONDS:
        yield (
            f"the token is valid for {format_span(seconds)}, and cannot be revoked alone; for"
            " programs create a service account: agentctl accounts create"
        )


def sign_token(
    settings: Settings,
    sub: str | None,
    scopes: Sequence[str],
    span: timedelta,
    *,
    yes: bool,
    **claims: str | None,
) -> str:
    """Sign a token, and note its content, never the token.

    Args:
        scopes: `user` represents `USER_SCOPES`.
        claims: `audience` and `session_id`.

    Raises:
        UsageError: a scope cannot be granted, or a confirmation is required without a terminal.
        ConfirmationDeclined: the answer was no.
    """
    from agentctl.auth.tokens import mint

    chosen = (USER_SCOPES if scope == USER_SCOPES_NAME else (scope,) for scope in scopes)
    scopes = list(dict.fromkeys(itertools.chain.from_iterable(chosen)))
    admin_scope = settings.authorization.admin_scope
    mint.check_mintable_scopes(scopes, admin_scope)
    if admin_scope in scopes:
        note(f"warning: {admin_scope} grants everything, on the data of every user")
        confirm("Mint this token?", yes=yes)
    token = mint.mint_token(settings, sub, scopes, span, **claims)
    for line in tokenview.minted_lines(token):
        note(line)
    return token
