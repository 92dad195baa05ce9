"""The adapter of the libraries of agents: what their runners open, the decided calls of a pause,
and the failures of models and tools as the libraries raise them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from traceback import walk_tb
from typing import Any, NamedTuple

import orjson

from agentctl.agents import RunContext
from agentctl.config.providers import PROVIDERS
from agentctl.records.kinds import ApprovalPolicy
from agentctl.records.text import read_name
from agentctl.runtime.failures import (
    MODEL_FAILURES,
    ExecutionError,
    FailureCode,
    classify_refusal,
    is_context_exceeded,
    is_library,
    is_temporary_status,
)
from agentctl.runtime.models.refusals import describe_client_refusal
from agentctl.runtime.pauses import DecidedCall, InputSchema
from agentctl.runtime.runners.hosted_run import HostedRun
from agentctl.work.event_loop import retrieve_exception
from agentctl.work.unstopped import abandon_task, install_executor

_log = logging.getLogger("agentctl.runtime")

BuildDeps = Callable[[RunContext], Any]
"""Makes the deps of a run; it may be asynchronous."""

CLOSE_SECONDS = 5.0
"""Maximum time to exit a context manager; after that its task is abandoned."""

_MODEL_CLIENTS = frozenset(traits.client for traits in PROVIDERS.values() if traits.client)
"""Packages of the clients of model providers."""

_CLIENTS = _MODEL_CLIENTS | {"botocore", "google", "httpx", "httpx2"}
"""Packages whose exceptions count as failures of a model only while a model is called."""

_TIMEOUTS = frozenset({408, 504})

_MODEL_ATTRIBUTES = ("model_name", "model_id", "model")
"""Attributes in which pydantic-ai, agno and LiteLLM name the model of an exception."""

_UNREADABLE = (AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Exceptions of libraries for an answer whose form they do not expect."""

_REFUSALS = frozenset({None, 400, 413, 422})
"""Statuses of a request that is too large; None for an error inside a stream."""


class RunnerOptions(NamedTuple):
    """The other keys of an agent in code."""

    build_deps: BuildDeps | None = None
    """Function that makes the deps of a run; None without the key `deps`."""

    approve: Mapping[str, ApprovalPolicy] = {}
    """Policies that approve the calls of tools, by names and patterns."""

    durable: bool = False

    folder: Path | None = None
    """Folder of the configuration; None without a folder."""

    store: str = "user"
    """The items that the store of a run reaches: `user`, `shared` or `off`."""

    configurable: tuple[str, ...] = ()
    """The fields of the context of a graph that a request may set."""

    limits_repeats: bool = False
    """True if calls of tools are refused after a number of repetitions (`HostedRun.repeats`)."""


class OwnerTask:
    """The owner of a context manager. Some libraries demand that one task enters and exits it.

    Args:
        build: returns the context manager.
    """

    def __init__(self, build: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self._build = build
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._entered: asyncio.Future[None]

    async def open(self) -> None:
        """Enter the context manager, unless it is entered. Raises what entering raises."""
        if self._task is None or self._task.done():
            self._closing.clear()
            self._entered = asyncio.get_running_loop().create_future()
            self._entered.add_done_callback(retrieve_exception)
            self._task = asyncio.create_task(self._own(self._entered))
        await asyncio.shield(self._entered)

    async def close(self) -> None:
        """Exit the context manager if it was entered, and wait at most `CLOSE_SECONDS`."""
        task = self._task
        self._task = None
        if task is None:
            return
        self._closing.set()
        _, pending = await asyncio.wait({task}, timeout=CLOSE_SECONDS)
        if pending:
            _log.warning("what an agent opened did not close within %g seconds", CLOSE_SECONDS)
            abandon_task(task)

    async def _own(self, entered: asyncio.Future[None]) -> None:
        try:
            async with self._build():
                if not entered.done():
                    entered.set_result(None)
                await self._closing.wait()
        except BaseException as error:
            if entered.done():
                _log.warning("what an agent opened did not close", exc_info=error)
            else:
                entered.set_exception(error)


class LibraryRunner:
    """A `runtime.runners.runner.Runner` of a library, without `run`.

    Args:
        owner: owns what the objects of the library enter; None for nothing.
    """

    kind: str
    input_schema: InputSchema | None = None
    message_obstacle: str | None

    def __init__(self, owner: OwnerTask | None = None) -> None:
        self._owner = owner
        self.message_obstacle = f"Agents of the kind {self.kind} take no messages while they work"

    @property
    def native_kinds(self) -> Sequence[str]:
        return (self.kind,)

    async def open(self) -> None:
        install_executor()
        if self._owner is not None:
            await self._owner.open()

    async def close(self) -> None:
        if self._owner is not None:
            await self._owner.close()


class DecidedCalls:
    """The decided calls of a pause, by the keys of the runner; stores their begin and their end.

    Attributes:
        approved: the calls that are to be made.
        settled: the texts of those that are not to be made, and whether they failed: they were
            rejected, or made before in a leg that was lost.
    """

    def __init__(self, run: HostedRun) -> None:
        self.approved: dict[Any, DecidedCall] = {}
        self.settled: dict[Any, tuple[str, bool]] = {}
        self._run = run

    async def begin(
        self, key: Any, arguments: Mapping[str, Any] | None = None, *, tool: str | None = None
    ) -> None:
        """Store that a call begins. The library makes it when this returns.

        It waits while the call is halted.

        Args:
            arguments: its arguments, if the library could make it with others than approved.
            tool: the name of its tool; None if the caller looks for halts of the tool itself.

        Raises:
            ExecutionError: the arguments differ from the approved arguments: the call is not made.
        """
        decision = self.approved.get(key)
        if decision is None:
            await self._run.environment.begin_effect(tool)
            return
        await self._run.environment.wait_while_halted(tool=decision.tool_name)
        if arguments is not None and arguments != decision.arguments:
            raise build_refusal(decision.tool_name)
        await self._run.begin_approved(decision.approval_id)

    async def end(self, key: Any, text: str, *, failed: bool) -> None:
        """Store the end of a call, if it was an approved one."""
        decision = self.approved.pop(key, None)
        if decision is not None:
            await self._run.environment.end_call(decision.approval_id, text, failed=failed)


def keep_state(run: HostedRun, dump: Callable[[], str | bytes]) -> Any:
    """Return the state of a library at a pause as a JSON value, without the bytes of files.

    Args:
        dump: returns its JSON; values of the code of the agent have their own serializers.

    Raises:
        ExecutionError: it has a value without a JSON form, or the run is too large.
    """
    try:
        data = dump()
    except Exception as error:
        # The library says what to change, such as a name that two agents have. Its text is for the
        # operator.
        _log.warning("run %s: its state cannot be stored", run.context.run_id, exc_info=error)
        run.environment.keep_cause(error)
        detail = "The run cannot wait: it has a value that cannot be stored"
        raise ExecutionError("AGENT_FAILED", detail) from error

    state = run.hide_files(orjson.loads(data))
    run.recorder.reserve(len(orjson.dumps(state)))
    return state


def build_refusal(tool: str) -> ExecutionError:
    """Build the failure of a call whose arguments differ from the approved arguments."""
    return ExecutionError(
        "AGENT_FAILED",
        f"The tool {tool} was called with other arguments than the approved ones: it was not"
        " executed",
    )


def to_public_failure(
    error: Exception, run: HostedRun, call_id: str | None = None, *, in_model: bool = False
) -> Exception:
    """Return the public failure for an exception of a tool or model, else the exception.

    The text of the exception goes to the log and to the causes of the run only.

    Args:
        call_id: the open call whose tool has raised the exception, if any.
        in_model: True if the exception ended a call of a model.
    """
    run_id = run.context.run_id
    name = run.transcript.open_calls.get(call_id or "")

    if call_id is not None and name is not None:
        _log.warning("run %s: the tool %s failed", run_id, name, exc_info=error)
        run.environment.keep_cause(error, name)
        detail = f"The tool {name} failed ({type(error).__name__})"
        run.end_call(call_id, detail, failed=True)
        return ExecutionError("TOOL_FAILED", detail)

    if failure := find_failure(error):
        if failure.code in MODEL_FAILURES:
            run.explain_failed_call(failure.code)
        return failure

    failure = find_client_failure(error, in_model=in_model)
    if failure is None:
        return error

    run.explain_failed_call(failure.code)
    _log.warning("run %s: the model failed", run_id, exc_info=error)
    run.environment.keep_cause(error)
    return failure


def find_failure(error: BaseException) -> ExecutionError | None:
    """Return the failure of a model of the configuration that is or caused an exception."""
    return next((cause for cause in list_causes(error) if isinstance(cause, ExecutionError)), None)


def find_client_failure(error: BaseException, *, in_model: bool) -> ExecutionError | None:
    """Return the failure of an exception that a client of a model provider has raised or caused.

    None for an exception of other code.

    Args:
        in_model: True if the exception ended a call of a model: then those of HTTP clients, which
            other code uses as well, count.
    """
    packages = _CLIENTS if in_model else _MODEL_CLIENTS

    for cause in list_causes(error):
        client = _find_client(cause, packages)
        if client is None:
            continue
        status = _find_status(cause)
        code = _read_code(cause, status)
        model = _find_model(error)
        return ExecutionError(code, describe_client_refusal(code, status, client, model))

    if in_model and is_unreadable(error):
        return ExecutionError("MODEL_ANSWER_INVALID")
    return None


def is_unreadable(error: BaseException) -> bool:
    """Return True if a library has raised an exception because it could not read an answer.

    An exception that ends a call of a model and is raised by other code is one of the agent, as is
    a text of the request that cannot be encoded.
    """
    if not isinstance(error, _UNREADABLE) or isinstance(error, UnicodeEncodeError):
        return False

    path = ""
    for frame, _ in walk_tb(error.__traceback__):
        path = frame.f_code.co_filename  # the last frame raised it
    return is_library(path)


def build_status_failure(status: int, error: BaseException) -> ExecutionError:
    """Return the failure of a response of a model provider with this HTTP status.

    Args:
        error: the exception of the library, which may name the model.
    """
    code = _read_status(status, str(error))
    return ExecutionError(code, describe_client_refusal(code, status, model=_find_model(error)))


def _read_status(status: int, text: str) -> FailureCode:
    if status in _TIMEOUTS:
        return "MODEL_TIMEOUT"
    if status == 402 or is_temporary_status(status):
        return "MODEL_UNAVAILABLE"
    return classify_refusal(status, text)


def list_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes, newest first."""
    cause: BaseException | None = error
    for _ in range(10):
        if cause is None:
            return

        yield cause
        if isinstance(cause, BaseExceptionGroup) and cause.exceptions:
            # The last of several models that were called one after the other.
            cause = cause.exceptions[-1]
            continue

        if cause.__cause__ is cause:
            # agno raises an exception again `from` itself: what caused it is its context.
            cause = cause.__context__
        else:
            cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def _find_client(error: BaseException, packages: frozenset[str]) -> str | None:
    """Return the package of a client that has raised an exception; None for other code."""
    for base in type(error).__mro__:
        name = base.__module__.split(".")
        for package in (".".join(name[:2]), name[0]):
            if package in packages:
                return package
    return None


def _find_model(error: BaseException) -> str:
    """Return the name of the model as an exception has it; "" if none has it."""
    for cause in list_causes(error):
        for attribute in _MODEL_ATTRIBUTES:
            name = read_name(getattr(cause, attribute, None))
            if name:
                return name
    return ""


def _read_code(error: BaseException, status: int | None) -> FailureCode:
    text = f"{error} {getattr(error, 'code', '')}"
    if status in _REFUSALS and is_context_exceeded(text):
        return "CONTEXT_EXCEEDED"

    if status is not None:
        return _read_status(status, text)

    if any("Timeout" in base.__name__ for base in type(error).__mro__):
        return "MODEL_TIMEOUT"

    return "MODEL_UNAVAILABLE"


def _find_status(error: Any) -> int | None:
    """Return the HTTP status of an exception of a client, where the client keeps it."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):
        # botocore
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    else:
        status = getattr(response, "status_code", None)

    # httpx has it in the response, the clients of Google in `code`, most others in `status_code`.
    statuses = (getattr(error, "status_code", None), getattr(error, "code", None), status)
    return next((value for value in statuses if isinstance(value, int)), None)
