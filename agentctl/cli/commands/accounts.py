"""`agentctl accounts`: create, list and revoke service accounts."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Annotated

from agentctl.cli.durations import parse_option_until
from agentctl.cli.help import CommandApp
from agentctl.cli.ids import choose_id, is_id_prefix
from agentctl.cli.lists import ListOutput
from agentctl.cli.options import Yes, resolve_admin_scope
from agentctl.cli.parameters import argument, flag, option
from agentctl.cli.show.output import CommandOutput, CommonFormat, write_line
from agentctl.cli.show.table import Column, Columns, format_time, plain_columns
from agentctl.cli.show.terminal import check_confirmable, confirm, note
from agentctl.cli.target import Target, with_target
from agentctl.errors import BadRequest, NotFound, Unavailable, UsageError, ValidationFailed
from agentctl.interface.requests import MAXIMUM_LIMIT, Page, administration
from agentctl.interface.requests.lists import read_rows
from agentctl.records.kinds import Record
from agentctl.records.times import format_span

app = CommandApp(
    help="Create, list and revoke service accounts.",
    epilog="Example: AGENTCTL_TOKEN=$(agentctl accounts create ci --scope agents:run)",
)

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def _format_scopes(account: Record) -> str:
    return ", ".join(str(grant.get("scope")) for grant in account.get("scopes") or [])


_COLUMNS = [
    *plain_columns("id", "name", "state"),
    Column("scopes", _format_scopes),
    *plain_columns("token_hint", "created_by", "created_at"),
    *plain_columns("expires_at", "last_used_at", "revoked_at"),
]
_LIST_COLUMNS = Columns(
    tsv=_COLUMNS,
    table=[
        *plain_columns("name", "state"),
        Column("id", look="id"),
        Column("scopes", _format_scopes, look="text"),
        Column("expires_at", heading="expires"),
        Column("last_used_at", heading="last used"),
        Column("token_hint", heading="hint"),
        Column("created_by"),
        Column("created_at", heading="created"),
        Column("revoked_at", heading="revoked"),
    ],
)
_CREATED_COLUMNS = [*_COLUMNS[:4], Column("token"), *_COLUMNS[4:-2]]


@app.command("create", epilog="Example: agentctl accounts create ci --scope agents:run > ci.token")
@with_target(create=True)
async def create_account(
    target: Target,
    name: Annotated[str, argument("NAME", "Display name")],
    scope: Annotated[list[str], option("--scope", "SCOPE", "Scope to grant (repeatable)")],
    expires_in: str | None = option(
        "--expires-in", "TIME", "Lifetime such as 30d or 52w  [default: 90d]"
    ),
    never_expires: bool = flag("--never-expires", "Never expire; valid until revoked"),
    allow_privileged_scopes: bool = flag(
        "--allow-privileged-scopes", "Allow scopes that write, delete or administer"
    ),
    output: CommonFormat | None = option(
        "--output -o",
        "FORMAT",
        "Print the whole record, token included: table, wide, json, jsonl, tsv or name",
    ),
) -> None:
    """Create an account and print its token on stdout.

    The token is shown once; only its hash is stored.
    """
    account = administration.NewAccount(
        name=name,
        scopes=tuple(map(administration.Grant, scope)),
        expires_in_days=None if expires_in is None else _parse_days(expires_in),
        never_expires=never_expires,
        allow_privileged_scopes=allow_privileged_scopes,
    )

    try:
        created = await target.operations.accounts.create(account)
    except BadRequest as failure:
        if "allow_privileged_scopes" in failure.detail:
            failure.hint = "to grant them, pass --allow-privileged-scopes"
        raise
    except ValidationFailed as failure:
        if "is not a known scope" in failure.detail:
            from agentctl.auth.tokens.mint import check_mintable_scopes

            settings = None if target.local is None else target.local.settings
            check_mintable_scopes(scope, resolve_admin_scope(settings))
        raise

    record: Record = created.value
    note(f"service account {record.get('name')} ({record.get('id')})")
    note(f"  grants:  {_format_scopes(record)}")
    note(f"  expires: {_format_expiry(record)}")
    note("  the token is shown once")

    token = record.get("token")
    if not isinstance(token, str):
        raise Unavailable(
            "The response has no token", hint="revoke the account and create another one"
        )

    if output is None:
        write_line(token)
    else:
        CommandOutput(output).show_record(created, _CREATED_COLUMNS, "id")
    target.report_done(f"created service account {record.get('name')}")


def _parse_days(text: str) -> int:
    span = parse_option_until("--expires-in", text)
    day = timedelta(days=1)
    if span % day:
        raise UsageError(
            f"{text!r} is not a whole number of days",
            hint=f"the lifetime of an account is 1d to {administration.MAXIMUM_ACCOUNT_DAYS}d",
        )
    return span // day


def _format_expiry(account: Record) -> str:
    end = account.get("expires_at")
    if end is None:
        return "never"
    try:
        ahead = datetime.fromisoformat(str(end)) - datetime.now(UTC)
    except (TypeError, ValueError):  # the time format of another server
        return str(end)
    return f"in {format_span(ahead.total_seconds())} ({format_time(str(end))})"


@app.command("list", epilog="Example: agentctl accounts list --name ci")
@with_target(without=("sort_by",))
async def list_accounts(
    target: Target, out: ListOutput, filter: administration.AccountFilter
) -> None:
    """List accounts, newest first; includes revoked ones."""
    await out.show(target, target.operations.accounts.list, filter, _LIST_COLUMNS, "id")


@app.command("revoke", epilog="Example: agentctl accounts revoke ci --yes")
@with_target()
async def revoke_account(
    target: Target,
    account: Annotated[str, argument("ID|NAME", "Account id or name")],
    yes: Yes = False,
) -> None:
    """Revoke an account; its token is rejected within a second.

    Its sessions and runs are kept, but a new account with the same name cannot see them.
    """
    check_confirmable(yes=yes)
    account_id = account
    text = f"service account {account}"
    if _UUID.fullmatch(account) is None:
        account_id = await _resolve_account_id(target, account)
        text = f"{text} ({account_id})"
    confirm(f"Revoke {text}, {target.place}?", yes=yes)
    await target.operations.accounts.revoke(account_id)
    target.report_done(f"revoked {text}")


async def _resolve_account_id(target: Target, name: str) -> str:
    """Return the id of the active account with a name, else of the last expired one.

    If there is none, the name can be the beginning of the id of an account.

    Raises:
        NotFound: every account with the name is revoked, or there is none.
        UsageError: several ids begin with the name.
    """
    expired: str | None = None
    async for record in _find_accounts(target, name):
        if record.get("name") != name:
            continue
        if record.get("state") == "active":
            return str(record["id"])
        if record.get("state") == "expired" and expired is None:
            expired = str(record["id"])

    if expired is None and is_id_prefix(name):
        names = {
            str(record.get("id")): str(record.get("name"))
            async for record in _find_accounts(target, None)
            if str(record.get("id")).startswith(name)
        }
        account_id = choose_id("service accounts", name, names)
        if account_id != name:
            return account_id
    if expired is None:
        hint = f"list them with: {target.command('accounts list')}"
        raise NotFound("No active service account has this name", hint=hint)
    return expired


def _find_accounts(target: Target, name: str | None) -> AsyncIterator[Record]:
    wanted = administration.AccountFilter(name, Page(limit=MAXIMUM_LIMIT))
    return read_rows(target.operations.accounts.list, wanted)
