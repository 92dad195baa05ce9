"""Breakers: they halt a component whose runs fail, or a model whose calls fail, too often.

A breaker costs nothing until something fails. Then the failure is stored in the system database,
where all servers count together (`runs.gate.halting.record_failure`).
"""

from __future__ import annotations

import logging

from agentctl import errors
from agentctl.config.settings import Breaker, Settings
from agentctl.records.halts import HaltScope
from agentctl.records.logs import RateLimitedLog
from agentctl.records.run_spec import RunSpec
from agentctl.records.text import new_id
from agentctl.records.times import now
from agentctl.runs.gate.halting import record_failure
from agentctl.runs.gate.halts import Halts, Scope
from agentctl.runs.states import Ending
from agentctl.runtime.failures import UNCOUNTED_FAILURES
from agentctl.store.databases import Databases
from agentctl.store.repositories.failures import Failure

_log = logging.getLogger("agentctl.runs")


class Breakers:
    """The breakers of one process."""

    def __init__(self, settings: Settings, databases: Databases, halts: Halts) -> None:
        self._databases = databases
        self._halts = halts
        self._rate_limited_log = RateLimitedLog(_log)

        self._breakers: dict[Scope, Breaker] = {}
        self._breakers |= {("agent", agent.id): agent.breaker for agent in settings.agents}
        self._breakers |= {("team", team.id): team.breaker for team in settings.teams}
        self._breakers |= {("workflow", flow.id): flow.breaker for flow in settings.workflows}
        self._breakers |= {("model", model.id): model.breaker for model in settings.models}

    async def count_run(self, spec: RunSpec, ending: Ending) -> None:
        """Count the stored end of a run if it is a failure of its component.

        Summaries and memories do not count: nobody sees these runs.
        """
        if ending.status == "ERROR" and spec.purpose is None:
            code = ending.error_code or ""
            await self.count_failure(spec.component_type, spec.component_id, code, spec.run_id)

    async def count_failure(
        self, scope: HaltScope, scope_id: str, code: str, failure_id: str = ""
    ) -> None:
        """Count a failure, and halt what has failed if its breaker says so.

        It does not fail: a failure that cannot be stored is logged, and does not count.

        Args:
            scope: the kind of what has failed: a component or a model.
            scope_id: its id.
            code: the code of the failure (docs/contract.md "Failures of a run").
            failure_id: the id of the run that has failed; "" for a call.
        """
        breaker = self._breakers.get((scope, scope_id))
        if breaker is None or not breaker.failures or code in UNCOUNTED_FAILURES:
            return

        failure = Failure(scope, scope_id, now(), failure_id or new_id(), code)
        database = self._databases.system
        try:
            halt = await database.write(record_failure(database.outbox, failure, breaker))
            if halt is not None:
                database.outbox.wake()
                _log.warning("the breaker of the %s %s: %s", scope, scope_id, halt.reason)
                await self._halts.refresh()
        except errors.AgentctlError as error:
            self._rate_limited_log.log(
                "a failure was not counted for its breaker: %s", error.detail
            )
