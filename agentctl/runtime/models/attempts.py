"""Attempts of model calls: retries after temporary failures, and fallbacks (docs/models.md).

A model call is repeated only while nothing of its answer has arrived, so that no text is sent
twice. The clients of the providers do not retry by themselves: a wait is a part of the run's task,
and a cancel ends it at once (decision 143).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from agentctl.records.jitter import jitter
from agentctl.records.text import mask_secrets
from agentctl.records.times import DurationHistogram
from agentctl.runtime.context import RunSendGate
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.models.call_fitting import CallFitter, RequestBounds
from agentctl.runtime.models.calls import (
    AnswerSink,
    Message,
    ModelAnswer,
    ModelCall,
    ModelConnection,
    ModelFailure,
    NativeMessage,
    PreparedModel,
)
from agentctl.runtime.models.refusals import describe_client_refusal, describe_refusal
from agentctl.runtime.tracing import Span, enter_span
from agentctl.work.send_gate import current_send_gate

if TYPE_CHECKING:
    from agentctl.config import settings as config
    from agentctl.runtime.context import RunEnvironment
    from agentctl.runtime.transcript.transcript import Transcript

_log = logging.getLogger("agentctl.runtime")

RETRY_SECONDS = 30.0
"""Time after the start of a call from which no further attempt starts."""

FIRST_BACKOFF_SECONDS = 0.5
"""Longest wait before the second attempt."""

MAXIMUM_BACKOFF_SECONDS = 8.0
"""Longest wait before any attempt.

The waits double from the first to the maximum, each with jitter, unless the provider asks for
another wait with Retry-After.
"""

FALLBACK_PATIENCE_SECONDS = 2.0
"""A model that asks for a longer wait is not waited for if another model can be called."""

_TEMPORARY = {"MODEL_UNAVAILABLE", "MODEL_TIMEOUT"}
"""The failures after which a call is made again."""

SECONDS_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Bounds of the histograms of model calls, in seconds."""

_EMPTY_ANSWER_REASONS = {
    "length": "the answer was cut off before it began",
    "content_filter": "the answer was filtered",
    "tool_call": "the answer ends with tool calls and has none",
}
"""Finish reasons with which an empty answer is a failure."""

_LOGGED_CHARACTERS = 2_000
"""Maximum number of characters of a provider's text in the log."""

NAMED_MODELS = 100
"""Maximum number of models that agents in code name; further models count as `OTHER_MODEL`."""

OTHER_MODEL = "other"

TokenType = Literal["input", "output", "cache_read", "cache_write"]

_TOKENS: dict[TokenType, str] = {
    "input": "input_tokens",
    "output": "output_tokens",
    "cache_read": "cache_read_tokens",
    "cache_write": "cache_write_tokens",
}
"""The counters of an answer, by the type of their tokens."""


def prepare_models(
    connections: Iterable[tuple[config.Model, ModelConnection]], settings: Mapping[str, Any]
) -> list[PreparedModel]:
    """Prepare a model and its fallbacks.

    Args:
        connections: the model and its fallbacks, in order.
        settings: the settings that override the settings of each model, by name.
    """
    return [
        PreparedModel(
            id=model.id,
            connection=connection,
            settings=replace(model.settings, **settings),
            source=model,
        )
        for model, connection in connections
    ]


class CallCounters:
    """The calls of one model since the process started.

    Attributes:
        seconds: their times, failed calls included.
        first_token_seconds: their times to the first part of the answer, if there was one.
        tokens: their tokens by type; tokens of a cache are also input.
    """

    def __init__(self) -> None:
        self.seconds = DurationHistogram(SECONDS_BUCKETS)
        self.first_token_seconds = DurationHistogram(SECONDS_BUCKETS)
        self.tokens: dict[TokenType, int] = dict.fromkeys(_TOKENS, 0)

    def add(self, call: Span) -> None:
        """Count a call that has ended."""
        if call.finished_at is not None:
            self.seconds.add((call.finished_at - call.started_at) / 1_000_000)
        if call.first_token_at is not None:
            self.first_token_seconds.add(max(call.first_token_at - call.started_at, 0) / 1_000_000)
        for kind, count in list_tokens(call).items():
            self.tokens[kind] += count


def list_tokens(call: Span) -> dict[TokenType, int]:
    """Return the known tokens of a model call by their type."""
    counters = {"input_tokens": call.input_tokens, "output_tokens": call.output_tokens}
    if call.answer is not None:
        counters |= call.answer["metrics"]

    tokens = dict[TokenType, int]()
    for kind, name in _TOKENS.items():
        count = counters.get(name)
        if count:
            tokens[kind] = count
    return tokens


class ModelCounters:
    """Counts of model calls since the process started, zeros included for configured models.

    Args:
        models: ids of the configured models.

    Attributes:
        retries: by id of the model that was called again.
        fallbacks: by id of the model that was not available and has a fallback.
        calls: by id of the model, or by the name that an agent in code reports.
        bounds: what refusals have shown of the windows of the models.
    """

    def __init__(self, models: Iterable[str]) -> None:
        self.retries = dict.fromkeys(models, 0)
        self.fallbacks = dict(self.retries)
        self.calls = {model: CallCounters() for model in self.retries}
        self.bounds = RequestBounds()

    def count_call(self, call: Span) -> None:
        """Count a model call that has ended."""
        counters = self.calls.get(call.name)
        if counters is None:
            is_known = len(self.calls) - len(self.retries) < NAMED_MODELS
            name = call.name if is_known else OTHER_MODEL
            counters = self.calls.setdefault(name, CallCounters())
        counters.add(call)


class Attempts:
    """The attempts of the model calls of one run.

    A run that has changed to a fallback continues with it.

    Attributes:
        models: the model of the component and its fallbacks, in order.
        transcript: the transcript of the run, which records the requests; None outside a run.
        keep_cause: keeps the last failure of a call with the run (`RunEnvironment.keep_cause`).
        environment: the run; None outside a run.
    """

    def __init__(
        self,
        run_id: str,
        models: Sequence[PreparedModel],
        counters: ModelCounters,
        transcript: Transcript | None = None,
        keep_cause: Callable[[BaseException], None] = lambda error: None,
        environment: RunEnvironment | None = None,
    ) -> None:
        self.run_id = run_id
        self.models = models
        self.transcript = transcript
        self.keep_cause = keep_cause
        self.environment = environment
        self._counters = counters
        self._index = 0
        self._failed = 0
        self._started = 0.0

    @property
    def model(self) -> PreparedModel:
        """The model of the next attempt."""
        return self.models[self._index]

    @property
    def bounds(self) -> RequestBounds:
        """The sizes that models of this process have refused."""
        return self._counters.bounds

    @property
    def about(self) -> dict[str, Any]:
        """The number of the next attempt from 2 on, and of the fallback from 1 on."""
        numbers = dict[str, Any]()
        if self._failed:
            numbers["attempt"] = self._failed + 1
        if self._index:
            numbers["fallback"] = self._index
        return numbers

    def choose(self, model_id: str) -> None:
        """Continue with a model of an earlier leg of the run, if it is still configured."""
        ids = [model.id for model in self.models]
        self._index = ids.index(model_id) if model_id in ids else 0

    def begin_call(self) -> None:
        """Start a new model call, with a new budget."""
        self._failed = 0
        self._started = time.monotonic()

    async def pass_gate(self) -> None:
        """Wait while the run is halted. A halted model is passed over for a fallback.

        It waits as well if the model and all further fallbacks are halted.
        """
        environment = self.environment
        if environment is None or environment.find_halt(models=[self.model.id]) is None:
            return

        remaining_ids = [model.id for model in self.models[self._index :]]
        # Again after each wait: other halts may have begun.
        while environment.find_halt(models=remaining_ids) is not None:
            await environment.wait_while_halted(models=remaining_ids)

        # At least one of them is not halted.
        halted_count = 0
        while environment.find_halt(models=[remaining_ids[halted_count]]) is not None:
            halted_count += 1
        if halted_count:
            _log.warning(
                "run %s: model %s is halted, its fallback %s is called",
                self.run_id,
                self.model.id,
                remaining_ids[halted_count],
            )
            self._index += halted_count
            self.begin_call()

    async def report_failure(self, model: PreparedModel, code: str) -> None:
        """Report that a model has failed for good, whether a fallback is called or not."""
        if self.environment is not None:
            await self.environment.report_model_failure(model.id, code)

    async def wait_after(self, failure: ModelFailure) -> bool:
        """Wait until the next attempt. Return False if there is none."""
        if failure.code not in _TEMPORARY:
            return False

        self._failed += 1
        has_fallback = self._index + 1 < len(self.models)
        longest_wait = FALLBACK_PATIENCE_SECONDS if has_fallback else float("inf")

        seconds = self._choose_wait(failure)
        if seconds is not None and seconds <= longest_wait:
            await asyncio.sleep(seconds)
            self._counters.retries[self.model.id] += 1
            _log.info(
                "run %s: model %s is called again, attempt %d after %.1f s",
                self.run_id,
                self.model.id,
                self._failed + 1,
                seconds,
            )
            return True

        if has_fallback:
            failed_id = self.model.id
            self._index += 1
            self.begin_call()
            self._counters.fallbacks[failed_id] += 1
            _log.warning(
                "run %s: model %s is not available, its fallback %s is called",
                self.run_id,
                failed_id,
                self.model.id,
            )

        return has_fallback

    def _choose_wait(self, failure: ModelFailure) -> float | None:
        """Return the seconds until the next attempt of the model; None if there is none."""
        if self._failed > self.model.source.retries or not failure.is_repeatable:
            return None

        # All runs that were refused at one time must not return at one time.
        if failure.retry_after is None:
            longest = min(FIRST_BACKOFF_SECONDS * 2 ** (self._failed - 1), MAXIMUM_BACKOFF_SECONDS)
            seconds = longest * jitter(0.5, 1.0)
        else:
            seconds = max(failure.retry_after, 0.0) + jitter(0.0, FIRST_BACKOFF_SECONDS)

        remaining_seconds = self._started + RETRY_SECONDS - time.monotonic()
        return seconds if seconds <= remaining_seconds else None


class AttemptSink(AnswerSink, Protocol):
    """The receiver of an answer and of the attempts before it.

    Attributes:
        has_answer_begun: True if text or thinking of the answer has arrived.
    """

    @property
    def has_answer_begun(self) -> bool: ...

    def begin_answer(self, model: str) -> Span | None:
        """Start a new answer of a model of the configuration, before each attempt.

        Returns:
            The span of the attempt; None if the receiver records none.
        """
        ...

    def fail_answer(self, code: str) -> None:
        """Record that the attempt failed, with the code of the failure."""
        ...


async def call_model(
    attempts: Attempts,
    build_call: Callable[[PreparedModel], ModelCall],
    sink: AttemptSink,
    fitter: CallFitter,
) -> ModelAnswer:
    """Call a model, again after temporary failures while nothing of the answer has arrived.

    However the call ends, its text and usage so far are in the sink.

    Args:
        fitter: makes a call smaller that was too large for the context window.

    Raises:
        ExecutionError: the last attempt failed.
    """
    while True:
        await attempts.pass_gate()
        model = attempts.model
        try:
            answer = await _attempt_call(attempts, model, build_call(model), sink)
            fitter.accept(model)
            return answer
        except ModelFailure as error:
            failure = classify_failure(error, attempts.run_id, model)
            if error.code == "CONTEXT_EXCEEDED" and not sink.has_answer_begun:
                if not fitter.shrink(model):
                    attempts.keep_cause(error)
                    raise fitter.build_failure(model) from error
                continue

            can_continue = not sink.has_answer_begun and await attempts.wait_after(error)
            if not can_continue or attempts.model is not model:
                await attempts.report_failure(model, error.code)
            if not can_continue:
                attempts.keep_cause(error)
                raise failure from error


def classify_failure(
    error: ModelFailure, run_id: str, model: PreparedModel | None = None
) -> ExecutionError:
    """Return the public failure of a run; the text of the provider goes to the log.

    Args:
        run_id: run that called the model.
        model: the model that was called, whose key is masked in the log; None for a model that the
            code of an agent has made.
    """
    secrets = [] if model is None else [model.connection.secret]
    text = mask_secrets(" ".join(str(error).split()), secrets)
    _log.warning("run %s: the model failed: %s", run_id, text[:_LOGGED_CHARACTERS])

    if model is None:
        return ExecutionError(error.code, describe_client_refusal(error.code, error.status))
    return ExecutionError(error.code, describe_refusal(error.code, error.status, model.source))


async def _attempt_call(
    attempts: Attempts, model: PreparedModel, call: ModelCall, sink: AttemptSink
) -> ModelAnswer:
    """Call a model once.

    Raises:
        ModelFailure: the call failed, the answer is not complete, or it is empty because the
            provider cut or filtered it.
    """
    span = sink.begin_answer(model.id)

    transcript = attempts.transcript
    record = {} if transcript is None else transcript.requests.add(attempts, model, call, span)

    send_gate: RunSendGate | None = None
    if attempts.environment is not None:
        send_gate = RunSendGate(attempts.environment, [model.id])

    # The client of the model looks for halts when it sends the request.
    token = current_send_gate.set(send_gate)
    try:
        with enter_span(span):
            answer = await model.connection.answer(call, sink)
    except ModelFailure as failure:
        record["error"] = failure.code
        sink.fail_answer(failure.code)
        raise
    finally:
        current_send_gate.reset(token)

    if transcript is not None:
        transcript.requests.end(record, answer, span)

    if answer.finish_reason is None:
        raise ModelFailure("MODEL_UNAVAILABLE", "the stream ended without a finish reason")
    if answer.finish_reason == "error":
        raise ModelFailure("MODEL_UNAVAILABLE", "the provider ended the answer with an error")

    reason = _EMPTY_ANSWER_REASONS.get(answer.finish_reason)
    if reason and not answer.calls and not answer.text.strip():
        is_refusal = answer.finish_reason == "content_filter"
        raise ModelFailure("MODEL_REJECTED" if is_refusal else "MODEL_ANSWER_INVALID", reason)

    return answer


def dump_message(message: Message, models: Sequence[PreparedModel]) -> dict[str, Any]:
    """Return a message as a JSON object, for the checkpoint of a run that waits.

    An answer keeps the form of its provider: some providers need it back, such as signed thinking.

    Args:
        models: the models of the run.
    """
    dumped = dict(message)
    native: NativeMessage | None = dumped.pop("native", None)
    if native is None:
        return dumped

    for model in models:
        if model.connection is native.connection:
            value = model.connection.dump_native(native.value)
            dumped["native"] = {"model": model.id, "value": value}
            break
    return dumped


def load_message(stored_message: dict[str, Any], models: Sequence[PreparedModel]) -> Message:
    """Return the message of `dump_message`; in neutral form if its model cannot read it."""
    message = dict(stored_message)
    native = message.pop("native", None)
    if native is None:
        return message

    for model in models:
        if model.id == native["model"]:
            value = model.connection.load_native(native["value"])
            if value is not None:
                message["native"] = NativeMessage(model.connection, value)
            break
    return message
