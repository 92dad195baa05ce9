"""The public interface for agents and tools in Python (docs/python.md). Its names stay stable.

`waiting` has the part that waits for people. Models for libraries of agents are modules of
`agentctl` itself, such as `agentctl.langchain`: users import them by these paths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeVar, get_args, overload

from agentctl.agents.waiting import (
    ContextHost,
    Decision,
    File,
    Message,
    Rejected,
    StepFailed,
    WaitingContext,
)

__all__ = [
    "Decision",
    "Event",
    "File",
    "Memories",
    "Memory",
    "Message",
    "Output",
    "Progress",
    "Rejected",
    "RunContext",
    "StepFailed",
    "Thinking",
    "ToolCompleted",
    "ToolStarted",
    "Usage",
    "tool",
]

Approver = Literal["user", "other"]
"""The people who may approve a call: the user of the run and approvers, or only approvers who are
not that user."""

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = "__agentctl_tool__"


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """The options of a tool that its code sets, see `tool`."""

    approve: Approver | None = None
    idempotent: bool = False

    repeat_calls: int | None = None
    """None for the limit of the component."""


@overload
def tool(function: F, /) -> F: ...


@overload
def tool(
    *, approve: Approver | None = None, idempotent: bool = False, repeat_calls: int | None = None
) -> Callable[[F], F]: ...


def tool(
    function: F | None = None,
    /,
    *,
    approve: Approver | None = None,
    idempotent: bool = False,
    repeat_calls: int | None = None,
) -> F | Callable[[F], F]:
    """Set options of a function that is a tool, and return the function unchanged.

    Args:
        approve: who has to approve each call: `"user"`, `"other"`, or None for no one. The
            configuration may ask for more, never for less.
        idempotent: True if a call may be made again with the same `RunContext.call_id` after its
            server died, without a second effect.
        repeat_calls: how often a model may make one call of it in a row, in place of the key of its
            component; 0 for a tool whose calls repeat on purpose, such as a poll.

    Raises:
        TypeError: an option has another type.
    """
    if approve is not None and approve not in get_args(Approver):
        raise TypeError(f"approve must be one of: {', '.join(get_args(Approver))}")
    if not isinstance(idempotent, bool):
        raise TypeError("idempotent must be True or False")
    if repeat_calls is not None and not _is_count(repeat_calls):
        raise TypeError("repeat_calls must be a number of calls, or None")

    def set_options(target: F) -> F:
        if not callable(target):
            raise TypeError("a tool must be a function")
        setattr(target, _OPTIONS, ToolOptions(approve, idempotent, repeat_calls))
        return target

    return set_options if function is None else set_options(function)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def get_tool_options(function: Callable[..., Any]) -> ToolOptions:
    """Return the options that `tool` has set."""
    options = getattr(function, _OPTIONS, None)
    return options if isinstance(options, ToolOptions) else ToolOptions()


@dataclass(frozen=True, slots=True)
class Memory:
    """A fact about the user of a run.

    Attributes:
        updated_at: the time of the last change, UTC.
    """

    memory_id: str
    memory: str
    topics: tuple[str, ...]
    updated_at: datetime


class Memories(Protocol):
    """The memories of the user of a run, and of no other user.

    The methods raise `agentctl.errors.AgentctlError` if a value is not allowed or the database is
    not available.
    """

    async def remember(self, memory: str, topics: Sequence[str] = ()) -> Memory:
        """Store a fact of at most 4,000 characters."""

    async def recall(self, text: str = "", *, limit: int = 10) -> list[Memory]:
        """Return the memories that share words with a text, the best first; at most 50.

        Without a text, or if none shares a word, return the newest.
        """

    async def update(self, memory_id: str, memory: str) -> bool:
        """Replace the text of a memory; return False if there is none."""

    async def forget(self, memory_id: str) -> bool:
        """Delete a memory; return False if there is none."""


class RunContext(WaitingContext):
    """The run that a function works for: its user, session, request and state.

    The server passes it to every parameter of a tool or of an agent function that has this type.
    Such a parameter is not part of the schema that a model sees. A test of your own can create one:
    `RunContext(user_id="ann", state={})`.

    Args:
        user_id: the user of the run, who owns its session; None without authorization.
        session_id: the session of the run.
        run_id: the run. A member of a team and a step of a workflow have a separate run.
        component_id: the agent or team that the run executes.
        call_id: the tool call that the function executes: the same after a wait for people and
            after every restart, and different from that of every other call. None outside a call.
        claims: the verified claims of the token of the request, read-only; empty without a JWT.
        metadata: the object `metadata` of the request, read-only.
        dependencies: the object `dependencies` of the request, read-only. It is not stored.
        input: the object `input` of the request; None if the request has none.
        state: the state of the session. Changes are stored with the end of the run.
        history: the messages of earlier runs of the session that the component receives, oldest
            first: objects with `role` and `content`.
        memories: the memories of the user; None for a run without a user.
        files: the files of the message.
        replies: for a test of your own: the results of `approve` (a `Decision` or a bool) and of
            `ask` (an answer, or an exception to raise), in their order.
        host: set by the server.
    """

    __slots__ = (
        "_call_id",
        "claims",
        "component_id",
        "dependencies",
        "files",
        "history",
        "input",
        "memories",
        "metadata",
        "run_id",
        "session_id",
        "state",
        "user_id",
    )

    def __init__(
        self,
        *,
        user_id: str | None = None,
        session_id: str = "",
        run_id: str = "",
        component_id: str = "",
        call_id: str | None = None,
        claims: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        dependencies: Mapping[str, Any] | None = None,
        input: dict[str, Any] | None = None,
        state: dict[str, Any] | None = None,
        history: Sequence[Mapping[str, Any]] = (),
        memories: Memories | None = None,
        files: Sequence[File] = (),
        replies: Iterable[Any] = (),
        host: ContextHost | None = None,
    ) -> None:
        super().__init__(host, replies)
        self.user_id = user_id
        self.session_id = session_id
        self.run_id = run_id
        self.component_id = component_id
        self.claims: Mapping[str, Any] = MappingProxyType(dict(claims or {}))
        self.metadata: Mapping[str, Any] = MappingProxyType(dict(metadata or {}))
        self.dependencies: Mapping[str, Any] = MappingProxyType(dict(dependencies or {}))
        self.input = input
        self.state: dict[str, Any] = {} if state is None else state
        self.history = history
        self.memories = memories
        self.files = files
        self._call_id = call_id

    def __repr__(self) -> str:
        return f"RunContext(run_id={self.run_id!r}, user_id={self.user_id!r})"

    @property
    def cancelled(self) -> bool:
        """True once the work has to stop: after a cancel, at a time limit, when the client left.

        A function in a thread cannot be stopped from outside: one that works for long reads this
        flag and returns. It may be read in any thread.
        """
        return self._host is not None and self._host.is_cancelled()

    def progress(
        self, update: str | float | None = None, /, *, fraction: float | None = None
    ) -> None:
        """Publish the event `RunProgress`; may be called in any thread.

        Args:
            update: a text of at most 1,000 characters, or the fraction of the work that is done.
            fraction: the fraction, from 0 to 1, together with a text.

        Raises:
            TypeError: `update` is neither text nor a number, or there is no update.
            ValueError: the fraction is not between 0 and 1.
        """
        text = update if isinstance(update, str) else None
        if update is not None and not isinstance(update, str):
            if fraction is not None:
                raise TypeError("the fraction is given twice")
            fraction = update

        if fraction is None and text is None:
            raise TypeError("progress needs a text or a fraction")

        if fraction is not None:
            if isinstance(fraction, bool) or not isinstance(fraction, int | float):
                raise TypeError("the fraction must be a number")
            if not 0 <= fraction <= 1:
                raise ValueError("the fraction must be from 0 to 1")
            fraction = float(fraction)

        if self._host is not None:
            self._host.report_progress(text, fraction)

    def usage(
        self,
        *,
        input_tokens: int = 0,
        output_tokens: int = 0,
        total_tokens: int | None = None,
        cache_read_tokens: int = 0,
        cache_write_tokens: int = 0,
        reasoning_tokens: int = 0,
    ) -> None:
        """Add tokens to the counters of the run; may be called in any thread.

        Args:
            total_tokens: None for the sum of input and output.

        Raises:
            TypeError: a number is not an integer.
            ValueError: a number is negative.
        """
        counters = Usage(
            input_tokens,
            output_tokens,
            total_tokens,
            cache_read_tokens,
            cache_write_tokens,
            reasoning_tokens,
        ).counters()
        if self._host is not None:
            self._host.report_usage(counters)

    async def read_tool_result(self, id: str, offset: int = 0) -> str:
        """Return a part of a tool result, below a line with its place and the size of the result.

        The run has the results of its calls, and those of the earlier runs in `history`.

        Args:
            id: id of the call of the tool.
            offset: the first character. The part has at most 8,000.

        Raises:
            LookupError: the run has no result of this call.
            TypeError, ValueError: an argument is not usable.
        """
        if not isinstance(id, str) or not isinstance(offset, int) or isinstance(offset, bool):
            raise TypeError("the id must be a text, and the offset an integer")
        if offset < 0:
            raise ValueError("the offset must not be negative")
        page = None if self._host is None else self._host.read_tool_result(id, offset)
        if page is None:
            raise LookupError(f"There is no result {id}")
        return page

    async def file_path(self, file: File) -> Path:
        """Return the path of a copy of a file for code that reads paths; it ends with the run.

        Raises:
            agentctl.errors.NotFound: the file was deleted.
            RuntimeError: there is no server.
        """
        return await self._require_host("file_path").find_path(file)

    async def save_file(self, name: str, data: bytes) -> File:
        """Store a file of the session that the record of the run names, and return it.

        A name that the session has already gets the next version. The same bytes again, as when a
        function runs again after a wait, are the same file.

        Raises:
            agentctl.errors.AgentctlError: the name, the type of the bytes or their size is refused,
                or they cannot be stored.
            RuntimeError: there is no server.
        """
        if not isinstance(name, str) or not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError("the name must be a text, and the data bytes")
        return await self._require_host("save_file").save_file(name, bytes(data))

    def _require_host(self, method: str) -> ContextHost:
        if self._host is None:
            raise RuntimeError(f"context.{method} needs a server")
        return self._host

    @property
    def call_id(self) -> str | None:
        """Id of the current tool call or step, the same in every leg; None outside of one.

        No other call has it: pass it on as the idempotency key of an effect.
        """
        current = None if self._host is None else self._host.get_call_id()
        return current or self._call_id


@dataclass(frozen=True, slots=True)
class Thinking:
    """A part of the thinking of an agent. It is not part of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """The start of a tool call.

    Attributes:
        call_id: id of the call, unique in the run.
        name: name of the tool.
        arguments: the arguments, an object with a JSON form; a text is the argument `input`.
    """

    call_id: str
    name: str
    arguments: Mapping[str, Any] | str


@dataclass(frozen=True, slots=True)
class ToolCompleted:
    """The end of a tool call.

    Attributes:
        call_id: id of the call that started.
        result: text, or a value with a JSON form.
        failed: True if the call failed; then the result describes the failure.
    """

    call_id: str
    result: Any = ""
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an agent: a text, a fraction from 0 to 1, or both."""

    text: str | None = None
    fraction: float | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens to add to the counters of the run. `total_tokens` None: input and output together."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int | None = None
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    def counters(self) -> dict[str, int]:
        """Return the counters by their names in `metrics`.

        Raises:
            TypeError: a number is not an integer.
            ValueError: a number is negative.
        """
        counters = {each.name: getattr(self, each.name) for each in fields(self)}
        if self.total_tokens is None:
            counters["total_tokens"] = self.input_tokens + self.output_tokens
        for name, count in counters.items():
            if not isinstance(count, int) or isinstance(count, bool):
                raise TypeError(f"{name} must be an integer")
            if count < 0:
                raise ValueError(f"{name} must not be negative")
        return counters


@dataclass(frozen=True, slots=True)
class Output:
    """The structured result of the run: a pydantic model, or another value with a JSON form."""

    value: Any


Event = Thinking | ToolStarted | ToolCompleted | Progress | Usage | Output
"""The events that an async generator may yield besides text, which is a `str`."""
