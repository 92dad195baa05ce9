"""Service accounts, in the system database: one row each, revoked accounts included."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace

from agentctl.interface.requests.administration import AccountFilter
from agentctl.store.database import Sql, Statement, Steps, Work, build_insert, unit
from agentctl.store.listing import Conditions, Listing, RowPage, Slice


@dataclass(frozen=True, slots=True)
class AccountRow:
    """A service account. Times are microseconds UTC."""

    id: str
    name: str

    token_hash: str
    """SHA-256 of its token, in hexadecimal; the token itself is not stored."""

    token_hint: str

    scopes: str
    """A JSON array of strings."""

    created_by: str | None
    """The principal that created it; None if unknown."""

    created_at: int
    expires_at: int | None

    last_used_at: int | None
    """To the minute; None if the account has not been used."""

    revoked_at: int | None

    def is_valid_at(self, moment: int) -> bool:
        """Return True if the account is neither revoked nor expired at a time."""
        is_expired = self.expires_at is not None and moment >= self.expires_at
        return self.revoked_at is None and not is_expired


_NAMES = tuple(field.name for field in fields(AccountRow))
_COLUMNS = ", ".join(_NAMES)

_BY_HASH = Sql(f"SELECT {_COLUMNS} FROM service_accounts WHERE token_hash = :token_hash")

_GET = Sql(f"SELECT {_COLUMNS} FROM service_accounts WHERE id = :id")

# Changes nothing, but locks a row that every database has until the transaction ends: the next
# transaction that looks for the name sees the account that this one stores. A unique index cannot
# do that, because accounts expire by the clock.
_SERIALIZE = Sql("UPDATE schema_version SET applied_at = applied_at WHERE version = 1")

_FIND_NAME = Sql(
    "SELECT id FROM service_accounts WHERE name = :name AND revoked_at IS NULL"
    " AND (expires_at IS NULL OR expires_at > :now) LIMIT 1"
)

_CREATE = build_insert("service_accounts", _NAMES)

_REVOKE = Sql(
    "UPDATE service_accounts SET revoked_at = :now WHERE id = :id AND revoked_at IS NULL"
    " RETURNING id"
)

# Several processes may store the use at the same time; one of them is enough.
_RECORD_USE = Sql(
    "UPDATE service_accounts SET last_used_at = :now WHERE id = :id"
    " AND coalesce(last_used_at, 0) < :due"
)

# Without indexes: accounts are few.
LISTING = Listing(table="service_accounts", columns=_COLUMNS, id="id")


@unit
def create(row: AccountRow) -> Steps[bool]:
    """Store a new account.

    Return False if an account that is valid at its `created_at` has the name.
    """
    yield Statement(_SERIALIZE)
    if (yield Statement(_FIND_NAME, {"name": row.name, "now": row.created_at})):
        return False
    yield Statement(_CREATE, asdict(row))
    return True


def get_by_token_hash(token_hash: str) -> Work[AccountRow | None]:
    """Return the account with this token hash, revoked or expired accounts included."""
    return _BY_HASH.first(AccountRow, token_hash=token_hash)


def get(account_id: str) -> Work[AccountRow | None]:
    """Return the account with this id, revoked or expired accounts included."""
    return _GET.first(AccountRow, id=account_id)


def revoke(account_id: str, now: int) -> Work[bool]:
    """Revoke an account, expired or not.

    Return False if it does not exist or is revoked already.
    """
    return _REVOKE.has_rows(id=account_id, now=now)


def record_use(account_id: str, now: int, *, due: int) -> Work[None]:
    """Store that an account was used, unless a use at `due` or later is stored."""
    return _RECORD_USE.execute(id=account_id, now=now, due=due)


def list_page(filter: AccountFilter, page: Slice) -> Work[RowPage[AccountRow]]:
    """Read a page of the accounts that match a filter, and their total.

    Args:
        page: the page, in the order of `created_at`; its `sort` is not read.
    """
    conditions = Conditions().with_equal(name=filter.name)
    return LISTING.list_page(conditions, replace(page, sort="created_at"), AccountRow)
