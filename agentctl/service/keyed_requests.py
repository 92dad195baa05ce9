"""Requests with an idempotency key (docs/contract.md "Runs", docs/decisions/0015)."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from typing import Any

import orjson

from agentctl import errors
from agentctl.auth.principal import Principal
from agentctl.records.ids import is_idempotency_key
from agentctl.records.times import now
from agentctl.runs.life.admission import Idempotency
from agentctl.service.audit_log import AppendEntry, AuditedCall
from agentctl.service.hosting import Hosting
from agentctl.store.database import Database, Steps, unit
from agentctl.store.repositories import idempotency


def build_idempotency(
    principal: Principal, key: str | None, request: Sequence[Any]
) -> Idempotency | None:
    """Return the identity of a request; None without a key.

    Args:
        request: everything that two equal requests have in common, as JSON values.

    Raises:
        ValidationFailed: the key is not valid.
    """
    if key is None:
        return None
    if not is_idempotency_key(key):
        raise errors.ValidationFailed("Idempotency-Key must be 1 to 255 visible ASCII characters")
    # A subject is never empty, so the empty owner represents callers without a subject.
    owner = principal.subject or ""
    return Idempotency(owner, key, hashlib.sha256(orjson.dumps(list(request))).hexdigest())


async def find_repeated(database: Database, request: Idempotency | None) -> bool:
    """Return True if a request with the key was executed in the database before.

    Raises:
        ValidationFailed: that was another request.
    """
    if request is None:
        return False
    earlier = await database.read(idempotency.get_claim(request.principal, request.key, now()))
    if earlier is not None and earlier.body_hash != request.body_hash:
        raise errors.ValidationFailed("The Idempotency-Key was used for another request")
    return earlier is not None


async def prepare_keyed_entry(
    hosting: Hosting, call: AuditedCall, database: Database, request: Idempotency | None
) -> AppendEntry | None:
    """Return the unit that the transaction of a change in `database` has to append.

    In a database without the audit log the entry is committed first, but not for a repeated
    request.

    Raises:
        ValidationFailed: the key was used for a request in another database (docs/decisions/0015).
            A database that is unavailable is left out.
    """
    if request is not None:
        claimed = idempotency.is_claimed(request.principal, request.key, now())
        if database is not hosting.audit_log.database and await database.read(claimed):
            return _refuse_new_change
        for other in hosting.databases.get_open().values():
            with contextlib.suppress(errors.Unavailable):
                if other is not database and await other.read(claimed):
                    raise errors.ValidationFailed(
                        "The Idempotency-Key was used for another request"
                    )
    return await call.prepare_entry(database)


@unit
def _refuse_new_change() -> Steps[None]:
    """Fail instead of an audit entry: the key of a repeated request expired in between.

    The change would be made without an entry in the audit log.
    """
    yield from ()
    raise errors.Unavailable("The Idempotency-Key expired just now")
