"""Where the tokens of service accounts are looked up: the system database."""

from __future__ import annotations

import logging

import orjson

from agentctl.auth.tokens.account_lookup import StoredAccount
from agentctl.errors import AgentctlError, Unavailable
from agentctl.records.times import now
from agentctl.runs.tasks import Tasks
from agentctl.store.databases import Databases
from agentctl.store.repositories import accounts
from agentctl.store.repositories.accounts import AccountRow

__all__ = ["StoredAccounts", "granted_scopes"]

_log = logging.getLogger("agentctl.service")

LAST_USE_INTERVAL = 60 * 1_000_000
"""Microseconds between two writes of an account's last use."""

_MAXIMUM_TRACKED = 4_096
"""Accounts of which is remembered when their use was noted."""


class StoredAccounts:
    """`auth.lookup.Accounts`, stored.

    Args:
        databases: of which the first one holds the accounts.
    """

    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        self._writes = Tasks()
        self._last_written = dict[str, int]()

    async def find(self, token_hash: str) -> StoredAccount | None:
        """The account with the token of this hash.

        Raises:
            Unavailable: the database does not answer.
        """
        try:
            row = await self._databases.system.read(accounts.get_by_token_hash(token_hash))
        except Unavailable:
            raise
        except AgentctlError as error:
            raise Unavailable("Service accounts cannot be looked up now") from error
        if row is None:
            return None
        return StoredAccount(
            id=row.id,
            token_hash=row.token_hash,
            scopes=frozenset(granted_scopes(row)),
            expires_at=row.expires_at,
            last_used_at=row.last_used_at,
            revoked_at=row.revoked_at,
        )

    def used(self, account: StoredAccount) -> None:
        """Note that an account was used, unless that was noted within the last minute.

        Nobody waits for it: a use that cannot be noted is told in the log.
        """
        moment = now()
        last = max(account.last_used_at or 0, self._last_written.get(account.id, 0))
        if last >= moment - LAST_USE_INTERVAL:
            return
        if len(self._last_written) >= _MAXIMUM_TRACKED:
            self._last_written.clear()
        self._last_written[account.id] = moment
        self._writes.start(self._note(account.id, moment))

    async def close(self, seconds: float = 2.0) -> None:
        """Wait for what is being noted, for so long at most."""
        await self._writes.done(seconds)
        await self._writes.end()

    async def _note(self, account_id: str, moment: int) -> None:
        due = moment - LAST_USE_INTERVAL
        try:
            await self._databases.system.write(accounts.record_use(account_id, moment, due=due))
        except AgentctlError as failure:
            _log.warning("the use of service account %s is not noted: %s", account_id, failure)


def granted_scopes(row: AccountRow) -> list[str]:
    """The scopes of an account, in the order in which they were granted."""
    found: list[str] = orjson.loads(row.scopes)
    return found
