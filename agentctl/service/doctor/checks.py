"""The whole checkup, a step at a time: whoever asks can say what it is at."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from agentctl.config.settings import Settings
from agentctl.errors import AgentctlError
from agentctl.service.doctor import components, configuration, databases, keys, runs
from agentctl.service.doctor.finding import Finding, of_failure, wrong

__all__ = ["Step", "run", "steps"]


@dataclass(frozen=True, slots=True)
class Step:
    """A part of the checkup.

    Attributes:
        name: what it is about.
        look: does it.
    """

    name: str
    look: Callable[[], Awaitable[list[Finding]]]


def steps(settings: Settings | AgentctlError) -> Iterator[Step]:
    """What is to be looked at, in order.

    Args:
        settings: the configuration, or why there is none: then the rest is looked at.
    """
    if isinstance(settings, AgentctlError):
        failure = settings
        yield _at_once("configuration", lambda: [of_failure("configuration", failure)])
    else:
        yield from _of_settings(settings)
    yield _at_once("versions", configuration.check_versions)
    yield _at_once("clock", lambda: [configuration.check_clock()])
    if not isinstance(settings, AgentctlError):
        yield from _of_data(settings)


def _of_settings(settings: Settings) -> Iterator[Step]:
    yield _at_once("configuration", lambda: configuration.check_configuration(settings))
    yield _at_once("keys", lambda: keys.check_keys(settings))
    yield _at_once("exposure", lambda: configuration.check_exposure(settings))
    foreign = keys.has_foreign_keys
    yield _at_once(
        "settings", lambda: configuration.check_settings(settings, foreign=foreign(settings))
    )
    yield _at_once("models", lambda: components.check_models(settings))
    yield _at_once("tools", lambda: components.check_tools(settings))


def _of_data(settings: Settings) -> Iterator[Step]:
    processes = settings.server.workers
    for entry in settings.databases:
        look = partial(databases.check_database, entry, processes)
        yield _in_turn(f"database {entry.id}", look)
    yield Step("runs", partial(_work, settings))


async def _work(settings: Settings) -> list[Finding]:
    """Of databases that are not there, or not in order, the steps before have told already."""
    for entry in settings.databases:
        if not await databases.is_there(entry):
            return []
    return await runs.check_work(settings)


async def run(step: Step) -> list[Finding]:
    """Take a step. What fails in an unforeseen way is a finding too, and no end."""
    try:
        return await step.look()
    except AgentctlError as failure:
        return [of_failure(step.name, failure)]
    except OSError as failure:
        return [wrong(step.name, f"{failure.filename}: {os.strerror(failure.errno or 0)}")]
    except Exception as failure:
        return [wrong(step.name, f"it could not be looked at ({type(failure).__name__})")]


def _at_once(name: str, look: Callable[[], Iterable[Finding]]) -> Step:
    async def looked() -> list[Finding]:
        return list(look())

    return Step(name, looked)


def _in_turn(name: str, look: Callable[[], AsyncIterator[Finding]]) -> Step:
    async def looked() -> list[Finding]:
        return [finding async for finding in look()]

    return Step(name, looked)
