"""The gate: the one place that decides whether work may begin now.

A request passes it before its run is stored, a run before it executes code, and each call of a
model or a tool before it is made. Halts and budgets decide here; a halt refuses new requests, and
lets work wait that has begun.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from agentctl import errors
from agentctl.config.settings import Agent, Settings, Team
from agentctl.records.halts import HaltScope
from agentctl.records.runs import RunState
from agentctl.records.times import format_rfc3339, now
from agentctl.runs.gate.breakers import Breakers
from agentctl.runs.gate.budgets import Budgets
from agentctl.runs.gate.halts import UNKNOWN, Halts, Scope
from agentctl.runs.states import ExecutedRun
from agentctl.runtime.component import Component
from agentctl.runtime.context import Halting
from agentctl.runtime.pauses import Ask
from agentctl.store.repositories.halts import HaltRow

RETRY_AFTER_SECONDS = 60.0
"""`Retry-After` of a request that a halt without an end refuses."""

EVERYTHING: Scope = ("all", None)

_NOUNS: Mapping[HaltScope, str] = {
    "agent": "The agent",
    "team": "The team",
    "workflow": "The workflow",
    "tool": "The tool",
    "model": "The model",
}


class Gate:
    """The gate of one process."""

    def __init__(
        self, settings: Settings, budgets: Budgets, halts: Halts, breakers: Breakers
    ) -> None:
        self.budgets = budgets
        self.halts = halts
        self.breakers = breakers
        self._models = {model.id: model for model in settings.models}
        self._on_halt = settings.runs.on_halt

    def check_open(self, component: Component) -> None:
        """Refuse a new run before its request is read, if it would be refused now.

        Raises:
            Halted: its component, or everything, is halted.
        """
        if self._on_halt == "hold" or not self.halts.is_known:
            return
        row = self.halts.find({EVERYTHING, (component.kind, component.id)})
        if row is not None:
            raise build_refusal(row)

    async def check_start(self, user_id: str | None, component: Component) -> bool:
        """Decide on a new run. Return True if it has to wait in the queue until a halt ends.

        Raises:
            Halted: a halt refuses it.
            BudgetExceeded: a budget is used up, or has no price for a model of the component.
            Unavailable: the halts cannot be read.
        """
        await self.halts.learn()
        row = self._find_refusal(user_id, component)
        if row is not None and self._on_halt == "refuse":
            raise build_refusal(row)
        await self.budgets.check_start(user_id, component)
        return row is not None

    def _find_refusal(self, user_id: str | None, component: Component) -> HaltRow | None:
        if self.halts.is_clear:
            return None
        row = self.halts.find(build_scopes(component, user_id))
        if row is not None:
            return row
        models = self._list_models(component)
        return self._find_of_models(models) if models else None

    def _list_models(self, component: Component) -> list[str]:
        """Return the model of a component and its fallbacks; empty for code."""
        spec = component.spec
        if not isinstance(spec, Agent | Team) or not spec.model:
            return []

        # It grows while it is read: a fallback may have fallbacks of its own.
        model_ids = [spec.model]
        for model_id in model_ids:
            fallbacks = self._models[model_id].fallbacks
            model_ids += [name for name in fallbacks if name not in model_ids]
        return model_ids

    def _find_of_models(self, models: Sequence[str]) -> HaltRow | None:
        """Return a halt if none of some models may be called."""
        rows = [self.halts.find({("model", model_id)}) for model_id in models]
        return rows[0] if None not in rows else None

    def find(
        self, scopes: Collection[Scope], tool: str | None = None, models: Sequence[str] = ()
    ) -> Halting | None:
        """Return what stops a call now; None if it may be made.

        Args:
            scopes: those of its run (`build_scopes`).
            tool: the name of the tool that is called, if any.
            models: the models of which one is called, if any.
        """
        row = self.halts.find(scopes)
        if row is None and tool is not None:
            row = self.halts.find({("tool", tool)})
        if row is None and models:
            row = self._find_of_models(models)
        return None if row is None else Halting(row.scope, row.reason)

    async def wait(
        self, scopes: Collection[Scope], tool: str | None, models: Sequence[str]
    ) -> None:
        """Wait until a call may be made; see `find`."""
        await self.halts.wait_until(lambda: self.find(scopes, tool, models) is None)

    def may_claim(self, state: RunState) -> bool:
        """Return True if no halt stops the next leg of a root run."""
        return self.halts.find(_list_scopes(state)) is None

    def has_held(self, state: RunState, ended_halts: Sequence[HaltRow]) -> bool:
        """Return True if a halt holds a root run that waits, or if an ended one has held it."""
        scopes = _list_scopes(state)
        if self.halts.find(scopes) is not None:
            return True
        return any((row.scope, row.scope_id) in scopes for row in ended_halts)

    async def check_work(self, run: ExecutedRun, *, is_continued: bool) -> Ask | None:
        """Check the budgets of a run whose work begins, and let decisions about them take effect.

        Args:
            is_continued: True if an earlier leg has done a part of its work.

        Returns:
            The question that the run has to ask before it begins; None if it may begin.

        Raises:
            ExecutionError: a budget is used up, or a price is not known.
        """
        await self.budgets.periods.settle(run)
        if is_continued:
            return await self.budgets.check(run, may_ask=None)
        # Nobody sees a pause of background work.
        may_ask = run.spec.purpose is None
        return await self.budgets.check(run, all_budgets=True, may_ask=may_ask)


def _list_scopes(state: RunState) -> set[Scope]:
    return {EVERYTHING, (state.component_type, state.component_id), ("user", state.user_id)}


def build_scopes(component: Component, user_id: str | None) -> frozenset[Scope]:
    """Return the scopes of a run, without those of the runs above it."""
    scopes: set[Scope] = {EVERYTHING, (component.kind, component.id)}
    if user_id is not None:
        scopes.add(("user", user_id))
    return frozenset(scopes)


def build_refusal(row: HaltRow) -> errors.AgentctlError:
    """Build the error of a new run that a halt refuses."""
    if row is UNKNOWN:
        return errors.Unavailable("The state of halts cannot be read")

    subject = "Everything"
    verb = "is"
    if row.scope in _NOUNS:
        subject = f"{_NOUNS[row.scope]} {row.scope_id}"
    elif row.scope == "user":
        subject = "The runs of this user"
        verb = "are"

    end = "until an operator ends it"
    seconds = RETRY_AFTER_SECONDS
    if row.until is not None:
        end = f"until {format_rfc3339(row.until)}"
        seconds = (row.until - now()) / 1_000_000

    # With the end: some clients show this text only, and no header field.
    detail = f"{subject} {verb} halted: {row.reason} ({end})"
    return errors.Halted(detail, halt=row.halt_id, seconds=seconds)
