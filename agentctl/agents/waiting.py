"""The part of the public interface with which an agent waits for people (docs/python.md).

`agentctl.agents` exports its names.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about a call, as `RunContext.approve` returns it. It is true if approved.

    Attributes:
        approved: True if the call may be made.
        arguments: the approved arguments, which a person may have edited.
        note: the remark of the person who decided.
        decided_by: the person who decided; `system:expiry` if no one did in time.
        call_id: id of the call, see `RunContext.call_id`.
        executed: True if an earlier leg went on after the decision: code outside of a step must not
            make the call again. A step is executed at most once.
    """

    approved: bool
    arguments: Mapping[str, Any] = field(default_factory=dict)
    note: str | None = None
    decided_by: str | None = None
    call_id: str = ""
    executed: bool = False

    def __bool__(self) -> bool:
        return self.approved


class Rejected(Exception):
    """A question was rejected, or no one answered it in time.

    Attributes:
        note: the remark of the person who rejected it.
        decided_by: that person.
    """

    def __init__(self, note: str | None = None, decided_by: str | None = None) -> None:
        super().__init__(note or "the question was rejected")
        self.note = note
        self.decided_by = decided_by


class StepFailed(Exception):
    """The function of a step raised an exception. Later legs of the run raise this again.

    Attributes:
        name: name of the step.
        reason: name of the class of the exception, which is the cause in the leg of the call.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"the step {name} failed ({reason})")
        self.name = name
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Message:
    """A message that a user has sent to the run while it works."""

    message_id: str
    text: str


class Replayer(Protocol):
    """Executes what a function waits for, and its steps: it runs again in each leg."""

    @property
    def drops_reports(self) -> bool:
        """True while reports repeat the reports of an earlier leg."""

    def approve(
        self, tool: str, arguments: Mapping[str, Any], question: str | None, policy: str
    ) -> Awaitable[Decision]: ...

    def ask(self, question: str, schema: Mapping[str, Any] | None) -> Awaitable[Any]: ...

    def messages(self) -> Awaitable[tuple[Message, ...]]: ...

    def step(
        self,
        name: str,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        *,
        idempotent: bool,
    ) -> Awaitable[Any]: ...


@dataclass(frozen=True, slots=True)
class File:
    """A file of a run: its name, its type by its bytes, such as `image/png`, and its size in bytes.

    Attributes:
        load: returns the bytes. A test of your own gives a function.
    """

    name: str
    media_type: str
    load: Callable[[], Awaitable[bytes]] = field(repr=False, compare=False)
    size: int = 0
    sha256: str = ""
    file_id: str = ""

    async def read(self) -> bytes:
        """Return the bytes.

        Raises:
            agentctl.errors.NotFound: the file was deleted.
        """
        return await self.load()


class ContextHost(Protocol):
    """The server side of a `RunContext`. Its methods may be called in any thread."""

    def is_cancelled(self) -> bool:
        """Return True if the work has to stop."""

    def report_progress(self, text: str | None, fraction: float | None) -> None:
        """Publish progress."""

    def report_usage(self, usage: Mapping[str, int]) -> None:
        """Add to the token counters of the run."""

    def get_call_id(self) -> str | None:
        """Return the id of the current call; None outside of one."""

    def read_tool_result(self, call_id: str, offset: int) -> str | None:
        """Return a page of a result of a tool; None if the run has none of this call."""

    async def find_path(self, file: File) -> Path:
        """Return the path of a copy of a file."""
        ...

    async def save_file(self, name: str, data: bytes) -> File:
        """Store a file that the run makes."""
        ...

    def find_replayer(self, method: str) -> Replayer:
        """Return the executor of a method that waits.

        Raises:
            RuntimeError: this is not the async function of an agent.
        """


class WaitingContext:
    """The methods of `RunContext` that wait for people, and `step`; see there for the arguments."""

    __slots__ = ("_host", "_replies")

    def __init__(self, host: ContextHost | None, replies: Iterable[Any]) -> None:
        self._host = host
        self._replies = iter(replies)

    def approve(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        question: str | None = None,
        policy: Literal["user", "other"] = "other",
    ) -> Awaitable[Decision]:
        """Wait until a person has decided whether a call may be made.

        The run is paused: the function ends here, and runs again from its top when it is decided,
        perhaps in another process. For async functions and generators that are agents.

        Args:
            tool: the name of the call.
            arguments: its arguments, an object with a JSON form.
            question: text for the person who decides.
            policy: `other`: not the user of the run; `user`: also this user.

        Raises:
            TypeError, ValueError: an argument is not usable.
            RuntimeError: there is no server, or this is not the async function of an agent.
        """
        if not isinstance(tool, str) or not tool:
            raise TypeError("the tool must be a text")
        if not isinstance(arguments, Mapping):
            raise TypeError("the arguments must be a mapping")
        if policy not in ("user", "other"):
            raise ValueError("the policy must be 'user' or 'other'")
        if self._host is not None:
            return self._host.find_replayer("approve").approve(tool, arguments, question, policy)
        return self._reply_to_approve(arguments)

    def ask(self, question: str, schema: Mapping[str, Any] | None = None) -> Awaitable[Any]:
        """Wait for the answer to a question, a JSON value; the run is paused as by `approve`.

        Args:
            schema: JSON Schema of the answer; None for any JSON value.

        Raises:
            Rejected: the question was rejected, or has expired.
            TypeError, RuntimeError: as for `approve`.
        """
        if not isinstance(question, str) or not question:
            raise TypeError("the question must be a text")
        if schema is not None and not isinstance(schema, Mapping):
            raise TypeError("the schema must be a mapping")
        if self._host is not None:
            return self._host.find_replayer("ask").ask(question, schema)
        return self._reply_to_ask()

    def step(
        self, name: str, function: Callable[..., Any], *arguments: Any, idempotent: bool = False
    ) -> Awaitable[Any]:
        """Call a function once in the run, and return its result as a JSON value.

        The result is stored at the next pause, or at once in a durable agent. When the function
        runs again, the step returns the stored result. A synchronous function is called in a
        thread.

        Args:
            name: name of the step.
            function: a sync or async function; its result has a JSON form.
            arguments: its arguments, with a JSON form.
            idempotent: True if the step may be made again with the same `call_id` after its server
                died; False asks a person what happened.

        Raises:
            StepFailed: the function raised an exception, in this leg or in an earlier one.
            TypeError, RuntimeError: as for `approve`.
        """
        if not isinstance(name, str) or not name:
            raise TypeError("the name of the step must be a text")
        if not callable(function):
            raise TypeError("the step needs a function")
        if self._host is not None:
            replayer = self._host.find_replayer("step")
            return replayer.step(name, function, arguments, idempotent=idempotent)
        return _call_step(name, function, arguments)

    def messages(self) -> Awaitable[tuple[Message, ...]]:
        """Return the messages that were sent to the run since the last call, oldest first.

        They are a part of the run then. When the function runs again, the call returns the same
        messages. A message that no call has returned at the end becomes the next run of the
        session, or is refused. For async functions and generators that are agents; without a
        server there are no messages.

        Raises:
            RuntimeError: this is not the async function of an agent.
        """
        if self._host is not None:
            return self._host.find_replayer("messages").messages()
        return _return_no_messages()

    async def _reply_to_approve(self, arguments: Mapping[str, Any]) -> Decision:
        reply = self._take_reply()
        if isinstance(reply, bool):
            reply = Decision(reply)
        if not isinstance(reply, Decision):
            raise TypeError("the reply to approve must be a Decision or a bool")
        return replace(reply, arguments=reply.arguments or dict(arguments))

    async def _reply_to_ask(self) -> Any:
        reply = self._take_reply()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _take_reply(self) -> Any:
        try:
            return next(self._replies)
        except StopIteration:
            raise RuntimeError(
                "there is no server to ask: give the replies, RunContext(replies=[...])"
            ) from None


async def _return_no_messages() -> tuple[Message, ...]:
    return ()


async def _call_step(name: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    try:
        result = function(*arguments)
        return await result if inspect.isawaitable(result) else result
    except Exception as error:
        raise StepFailed(name, type(error).__name__) from error
