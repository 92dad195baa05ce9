"""The context window of a model, and requests that fit into it (docs/models.md).

The prices and the windows of models come from the package `genai-prices`. It takes 0.3 s and
29 MB to load. It is loaded once, in a thread, for the first model whose price or window is needed,
is not configured, and is called at its provider.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import orjson

from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.transcript.context_window import (
    CERTAIN,
    EMPTIED,
    FULL,
    PAGE_CHARACTERS,
    Compaction,
    ContextMessages,
    FittedMessages,
    Reading,
    fit_messages,
    measure_message,
    offers_reading,
)

if TYPE_CHECKING:
    from agentctl.config.settings import Model
    from agentctl.records.components import ToolRecord
    from agentctl.runtime.models.calls import Message, PreparedModel

_log = logging.getLogger("agentctl.runtime")

SMALLEST_WINDOW = 3_000
"""Bytes of a request that every listed model takes: a token has at least one byte."""

ANSWER_TOKENS = 4_096
"""Tokens that are left to the answer, if the settings of the model do not bound it."""

_PROVIDERS = {"bedrock": "aws"}
"""The names of providers in the package, where they differ."""


def is_listed(model: Model) -> bool:
    """Return True if the package may know a model of the configuration."""
    # Another address belongs to another service, which has other prices and bounds.
    return model.provider not in ("demo", "ollama", "azure") and not model.base_url


async def find_listed(model: Model | str) -> Any:
    """Return what the package knows of a model: `model` and `model_price`; None for nothing.

    Args:
        model: a model of the configuration, or the name that a library gives to one.
    """
    if isinstance(model, str):
        return await asyncio.to_thread(_find, model, None)
    if not is_listed(model):
        return None
    provider = _PROVIDERS.get(model.provider, model.provider)
    return await asyncio.to_thread(_find, model.model, provider)


async def find_window(model: Model) -> int | None:
    """Return the tokens of the context window of a model; None if it is not known."""
    if model.context_tokens:
        return model.context_tokens

    listed_model = await find_listed(model)
    if listed_model is None:
        return None
    window: int | None = listed_model.model.context_window
    return window


def leave_answer(window: int, maximum: int | None) -> int:
    """Return the tokens of a window without the answer.

    Args:
        maximum: maximum tokens of an answer; None if the settings have none.
    """
    return window - min(maximum or ANSWER_TOKENS, window // 4)


def _find(model: str, provider: str | None) -> Any:
    try:
        from genai_prices import Usage, calc_price
    except ImportError:
        return None

    try:
        return calc_price(Usage(input_tokens=1), model, provider_id=provider)
    except LookupError:
        return None
    except Exception:
        # The sums of usage and the runs must not wait for the repair of a library.
        _log.exception("the model %s could not be looked up", model)
        return None


MAXIMUM_REFUSALS = 5
"""Refusals of one call as too large, each of a smaller request than the one before."""

BOUND_SECONDS = 3_600.0
"""Time for which the size of a refused request bounds the requests of later runs."""

_ADVICE = {
    "the message": "send a shorter message",
    "the instructions": "shorten the instructions of the agent",
    "the tools": "give the agent fewer tools",
}


class RequestBounds:
    """The sizes of requests that models have refused as too large, for later runs of the process.

    Providers count tokens, so a bound in bytes is an estimate. It is forgotten after an hour, and
    as soon as a request of that size is accepted.
    """

    def __init__(self) -> None:
        self._learned: dict[str, tuple[int, int, float]] = {}

    def learn(self, model: str, accepted: int, refused: int) -> None:
        """Keep that a model of the configuration has refused a size, and accepted a smaller one."""
        self._learned[model] = accepted, refused, time.monotonic() + BOUND_SECONDS

    def accept(self, model: str, size: int) -> None:
        """Correct a bound after a request that was accepted."""
        known_bounds = self._learned.get(model)
        if known_bounds is None or size <= known_bounds[0]:
            return

        self._learned[model] = size, *known_bounds[1:]
        if size >= known_bounds[1]:
            del self._learned[model]

    def find(self, model: str) -> int:
        """Return the bytes of a request that a model is expected to take; 0 if none are known.

        Between the sizes that it has accepted and refused the bound is searched by halves.
        """
        accepted, refused, until = self._learned.get(model, (0, 0, 0.0))
        if until < time.monotonic():
            return 0
        return accepted if refused - accepted <= accepted // 4 else (accepted + refused) // 2


class CallFitter:
    """Fits the messages of calls into the window of their model, and again after a refusal.

    Args:
        context: the messages, to which the messages of the next calls are added.
        bounds: the sizes that models have refused in this process.
        compaction: the compaction with which the first call begins.
        reading: the argument of the tool that reads a result; None if the model has no such tool
            but one of `tools`.

    Attributes:
        compaction: the compaction of the last call.
        fitted: the messages of the last call.
        room: the tokens for them in the window of its model; None if it is not known.
        note_bytes: bytes that are added to the instructions, such as a summary.
        windows: tokens of the windows that were looked up, by the id of the model.
    """

    def __init__(
        self,
        context: ContextMessages,
        instructions: str,
        tools: Sequence[ToolRecord],
        bounds: RequestBounds,
        compaction: Compaction | None = None,
        *,
        reading: Reading | None = None,
    ) -> None:
        self.context = context
        self.compaction = compaction or Compaction()

        self.windows: dict[str, int | None] = {}
        self.fitted: FittedMessages
        self.room: int | None = None
        self.note_bytes = 0

        self._parts = {
            "the instructions": len(instructions.encode()),
            "the tools": len(orjson.dumps(tools)),
        }
        self._other_bytes = sum(self._parts.values())

        if any(offers_reading(tool["name"], tool["parameters"]) for tool in tools):
            reading = "id"
        self._reading = reading

        self._bounds = bounds
        self._refusals = 0
        self._refused = ("", 0)

    async def begin_call(self, models: Sequence[PreparedModel]) -> None:
        """Prepare the next call: measure new messages, and look up the windows that matter."""
        self._refusals = 0
        self._refused = ("", 0)
        size = self.context.measure() + self._other_bytes
        for model in models:
            # No model has a smaller window, unless one is configured.
            is_large = size > SMALLEST_WINDOW or model.source.context_tokens
            if is_large and model.id not in self.windows:
                self.windows[model.id] = await find_window(model.source)

    @property
    def page_characters(self) -> int:
        """Characters of a result that one call of the reading tool returns."""
        # A page that would be cut again is of no use. A character has at most four bytes.
        bounds = (self.compaction.result_bytes, *self.windows.values())
        return min([PAGE_CHARACTERS, *(bound // 4 for bound in bounds if bound)])

    def list_left_out(self) -> dict[str, tuple[str, int]]:
        """Return the results that the last call does not show whole, by the ids of their calls.

        Each has its text, and the characters of a page that the model can take. Empty if the model
        does not read by ids.
        """
        if self._reading != "id" or not self.fitted.omissions:
            return {}
        cut = map(self.context.messages.__getitem__, self.context.list_cut(self.compaction))
        page = self.page_characters
        return {message["tool_call_id"]: (message["content"], page) for message in cut}

    def find_room(self, model: PreparedModel) -> int | None:
        """Return the tokens of a window without the answer; None if it is not known."""
        if (window := self.windows.get(model.id)) is None:
            return None
        return leave_answer(window, model.settings.max_tokens)

    def fit(self, model: PreparedModel) -> Sequence[Message]:
        """Return the messages of the next call.

        Raises:
            ExecutionError: CONTEXT_EXCEEDED: what cannot be left out is far too large.
        """
        if not self.compaction.maximum_bytes and (refused := self._bounds.find(model.id)):
            self.compaction = self.compaction._replace(maximum_bytes=refused)
        self.room = self.find_room(model)
        self.fitted = self._fit(self.compaction, self.room)
        self.compaction = self.fitted.compaction
        window = self.windows.get(model.id)
        if window is not None and self.fitted.estimated_tokens > window * CERTAIN:
            raise self.build_failure(model)
        return self.fitted.messages

    def _fit(self, compaction: Compaction, room: int | None) -> FittedMessages:
        other_bytes = self._other_bytes + self.note_bytes
        return fit_messages(
            self.context, room, compaction, other_bytes=other_bytes, reading=self._reading
        )

    def make_room(self) -> None:
        """Leave out more than a refused size requires, so that the next calls leave out nothing."""
        bound = self.compaction.maximum_bytes
        if bound and self.fitted.size > bound * EMPTIED / FULL:
            smaller = self.compaction._replace(maximum_bytes=int(bound * EMPTIED / FULL))
            self.compaction = self._fit(smaller, None).compaction._replace(maximum_bytes=bound)

    def shrink(self, model: PreparedModel) -> bool:
        """Make a call smaller that was refused as too large; return False if that is impossible.

        The size of the window is not known then: half of the size may fit, in the end the message
        alone.
        """
        self._refusals = self._refusals + 1
        self._refused = (model.id, self.fitted.size)

        half = self.fitted.size // 2 if self._refusals < MAXIMUM_REFUSALS else 1
        for bound in (half, 1):
            compaction = self.compaction._replace(maximum_bytes=max(bound, 1))
            smaller = self._fit(compaction, None)
            if smaller.size < self.fitted.size:
                self.compaction = compaction
                return self._refusals <= MAXIMUM_REFUSALS

        return False

    def accept(self, model: PreparedModel) -> None:
        """Keep the size of a call that was accepted, and of the larger call that was refused."""
        refused_by, size = self._refused
        if refused_by == model.id:
            self._bounds.learn(model.id, self.fitted.size, size)
        else:
            self._bounds.accept(model.id, self.fitted.size)

    def build_failure(self, model: PreparedModel) -> ExecutionError:
        """Return the failure of a call that no omission makes small enough."""
        window = self.windows.get(model.id)
        size = "" if window is None else f" of {window} tokens"
        parts = {**self._parts}

        for message in self.fitted.messages:
            part = "the message"
            if message["role"] == "tool":
                part = f"a result of {message['tool_name']}"
            elif message["role"] == "assistant":
                part = "an answer"

            parts[part] = max(parts.get(part, 0), measure_message(message))

        part = max(parts, key=parts.__getitem__)

        return ExecutionError(
            "CONTEXT_EXCEEDED",
            f"About {self.fitted.estimated_tokens} tokens are more than the context window{size}"
            f" of the model {model.id}; the largest part is {part} with {parts[part]} bytes:"
            f" {_ADVICE.get(part, 'set tool_result_tokens of the agent')}",
        )
