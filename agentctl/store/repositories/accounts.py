"""Service accounts, in the system database: one row each, also of those that are revoked."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from agentctl.store.database import Sql, Statement, Steps, unit
from agentctl.store.listing import Cursor, Filter, Lead, Listing, Order, RowPage, Slice

__all__ = [
    "LISTING",
    "AccountRow",
    "AccountRowPage",
    "create",
    "get",
    "get_by_token_hash",
    "list_page",
    "record_use",
    "revoke",
]


@dataclass(frozen=True, slots=True)
class AccountRow:
    """A service account. Times are microseconds.

    Attributes:
        token_hash: SHA-256 of its token, in hexadecimal; the token itself is kept nowhere.
        token_hint: the last characters of the token.
        scopes: a JSON array of texts.
        created_by: the principal that made it; None: nobody knows.
        expires_at: None: never.
        last_used_at: to the minute; None: it has not been used.
    """

    id: str
    name: str
    token_hash: str
    token_hint: str
    scopes: str
    created_by: str | None
    created_at: int
    expires_at: int | None
    last_used_at: int | None
    revoked_at: int | None


AccountRowPage = RowPage[AccountRow]

_NAMES = tuple(field.name for field in fields(AccountRow))
_COLUMNS = ", ".join(_NAMES)

_BY_HASH = Sql(f"SELECT {_COLUMNS} FROM service_accounts WHERE token_hash = :token_hash")

_GET = Sql(f"SELECT {_COLUMNS} FROM service_accounts WHERE id = :id")

# Changes nothing, and holds a row that every database has until the end of the transaction: who
# looks next whether a name is taken sees what this one stores. No index could refuse a second one,
# since accounts expire by the clock.
_SERIALIZE = Sql("UPDATE schema_version SET applied_at = applied_at WHERE version = 1")

_FIND_NAME = Sql(
    "SELECT id FROM service_accounts WHERE name = :name AND revoked_at IS NULL"
    " AND (expires_at IS NULL OR expires_at > :now) LIMIT 1"
)

_CREATE = Sql(
    f"INSERT INTO service_accounts ({_COLUMNS}) VALUES ({', '.join(f':{name}' for name in _NAMES)})"
)

_REVOKE = Sql(
    "UPDATE service_accounts SET revoked_at = :now WHERE id = :id AND revoked_at IS NULL"
    " RETURNING id"
)

# Several processes may have found it due.
_RECORD_USE = Sql(
    "UPDATE service_accounts SET last_used_at = :now WHERE id = :id"
    " AND coalesce(last_used_at, 0) < :due"
)

# They are few, so they are read in whatever order they have.
LISTING = Listing(
    table="service_accounts",
    columns=_COLUMNS,
    id="id",
    sorts=("created_at",),
    free={"name": Filter("name", "= :name")},
    choices=(),
    leads=(Lead(("name",), ("created_at",)),),
)


@unit
def create(row: AccountRow) -> Steps[bool]:
    """Store a new account; False when one that is good at its `created_at` has the name."""
    yield Statement(_SERIALIZE)
    if (yield Statement(_FIND_NAME, {"name": row.name, "now": row.created_at})):
        return False
    yield Statement(_CREATE, asdict(row))
    return True


@unit
def get_by_token_hash(token_hash: str) -> Steps[AccountRow | None]:
    """The account with the token of this hash, whatever its state."""
    return _first_account((yield Statement(_BY_HASH, {"token_hash": token_hash})))


@unit
def get(account_id: str) -> Steps[AccountRow | None]:
    """The account of this id, whatever its state."""
    return _first_account((yield Statement(_GET, {"id": account_id})))


@unit
def revoke(account_id: str, now: int) -> Steps[bool]:
    """End an account, expired or not; False when there is none, or it is revoked already."""
    return bool((yield Statement(_REVOKE, {"id": account_id, "now": now})))


@unit
def record_use(account_id: str, now: int, *, due: int) -> Steps[None]:
    """Note that an account was used, unless that was noted at `due` or later."""
    yield Statement(_RECORD_USE, {"id": account_id, "now": now, "due": due})


@unit
def list_page(
    *, name: str | None, order: Order, limit: int, offset: int, after: Cursor | None
) -> Steps[AccountRowPage]:
    """One page of the accounts by the time of their creation, and how many there are.

    Args:
        name: only those of this name; None: all.
    """
    part = Slice("created_at", order, limit, offset, after)
    given = {} if name is None else {"name": name}
    return (yield from LISTING.page(given, part, AccountRow))


def _first_account(rows: list[Any]) -> AccountRow | None:
    return AccountRow(*rows[0]) if rows else None
