"""The list of checks of `agentctl doctor`, executed one at a time for a progress line."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agentctl.admin.databases import check_index
from agentctl.admin.doctor import configuration, databases, runs
from agentctl.admin.doctor.files import check_store
from agentctl.admin.doctor.production import check_production
from agentctl.config.settings import Database, Settings
from agentctl.errors import AgentctlError
from agentctl.records.system import Finding, from_failure, from_os_error, wrong
from agentctl.store.search import Tokenizer


@dataclass(frozen=True, slots=True)
class DoctorStep:
    """One step of the doctor."""

    name: str
    check: Callable[[], Awaitable[list[Finding]]]


def list_steps(
    settings: Settings | AgentctlError, *, production: bool = False, backups: Path | None = None
) -> Iterator[DoctorStep]:
    """Yield the steps in order.

    Args:
        settings: the configuration, or the error of loading it: then only the steps without a
            configuration follow.
        production: add the checks of a server in production.
        backups: the folder with the backups, for these checks.
    """
    if isinstance(settings, AgentctlError):
        failure = settings
        yield _sync_step("configuration", lambda: [from_failure("configuration", failure)])

    else:
        loaded = settings
        yield _sync_step("configuration", lambda: configuration.check_configuration(loaded))
        yield _sync_step("keys", lambda: configuration.check_keys(loaded))
        yield _sync_step("exposure", lambda: configuration.check_exposure(loaded))
        foreign = configuration.has_third_party_keys
        yield _sync_step(
            "settings", lambda: configuration.check_settings(loaded, foreign=foreign(loaded))
        )
        yield _sync_step("proxies", lambda: configuration.check_outgoing(loaded))
        yield _sync_step("models", lambda: configuration.check_models(loaded))
        yield _sync_step("tools", lambda: configuration.check_tools(loaded))
        yield _sync_step("agents", lambda: configuration.check_objects(loaded))
        for server in loaded.mcp_servers:
            connect = partial(configuration.check_mcp_server, loaded, server)
            yield DoctorStep(f"mcp server {server.id}", connect)

    yield _sync_step("clock", lambda: [configuration.check_clock()])

    if isinstance(settings, AgentctlError):
        return

    for entry in settings.databases:
        check = partial(_check_database, entry, settings.server.workers)
        yield DoctorStep(f"database {entry.id}", check)
        if settings.search.enabled:
            indexed = partial(_check_index, entry, settings.search.tokenizer)
            yield DoctorStep(f"search in {entry.id}", indexed)

    yield DoctorStep("files", partial(_check_store, settings))
    yield DoctorStep("runs", partial(_check_runs, settings))
    if settings.budgets:
        yield DoctorStep("budgets", partial(runs.check_budgets, settings))
    if settings.webhooks:
        yield DoctorStep("webhooks", partial(_check_webhooks, settings))
    if production:
        production_settings = settings
        yield _sync_step("production", lambda: check_production(production_settings, backups))


async def _check_database(entry: Database, processes: int) -> list[Finding]:
    return [finding async for finding in databases.check_database(entry, processes)]


async def _check_index(entry: Database, tokenizer: Tokenizer) -> list[Finding]:
    exists = await databases.database_exists(entry)
    return [await check_index(entry, tokenizer)] if exists else []


async def _check_store(settings: Settings) -> list[Finding]:
    return await check_store(settings) if await _are_created(settings) else []


async def _check_runs(settings: Settings) -> list[Finding]:
    return await runs.check_runs(settings) if await _are_created(settings) else []


async def _check_webhooks(settings: Settings) -> list[Finding]:
    if not await _are_created(settings):
        return runs.check_webhook_keys(settings)
    return await runs.check_webhooks(settings)


async def _are_created(settings: Settings) -> bool:
    return all([await databases.database_exists(entry) for entry in settings.databases])


async def run_step(step: DoctorStep) -> list[Finding]:
    """Execute a step; an unexpected error becomes a finding, and the doctor continues."""
    try:
        return await step.check()
    except AgentctlError as failure:
        return [from_failure(step.name, failure)]
    except OSError as failure:
        return [from_os_error(step.name, failure)]
    except Exception as failure:
        return [wrong(step.name, f"the check failed ({type(failure).__name__})")]


def _sync_step(name: str, check: Callable[[], Iterable[Finding]]) -> DoctorStep:
    async def execute() -> list[Finding]:
        return list(check())

    return DoctorStep(name, execute)
