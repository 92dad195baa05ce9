"""Publishes the answers that the models of a graph stream, one after the other.

Answers that arrive at the same time wait for the one that is published, with all of their pieces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from agentctl.light_dataclass import dataclass
from agentctl.runtime.runners.hosted_run import HostedRun
from agentctl.runtime.runners.langgraph_callbacks import ModelCalls
from agentctl.runtime.runners.langgraph_messages import read_text, read_thinking


@dataclass(slots=True)
class _Waiting:
    """The pieces of an answer that waits for another one."""

    origin: Mapping[str, str]
    texts: list[str] = field(default_factory=list)
    thinking: list[str] = field(default_factory=list)
    size: int = 0


class AnswerStream:
    """The streamed answers of one graph.

    Args:
        begun: ids of the answers whose text was published before this leg.

    Attributes:
        begun: ids of the answers of which some text is published.
    """

    def __init__(self, run: HostedRun, model_calls: ModelCalls, begun: set[str]) -> None:
        self.begun = begun
        self._run = run
        self._model_calls = model_calls
        self._live: str | None = None
        self._waiting: dict[str, _Waiting] = {}
        self._waiting_size = 0
        self._ended: set[str] = set()

    def add(self, piece: Any, answer: str, origin: Mapping[str, str]) -> None:
        """Publish a piece of an answer, or keep it while another answer is published.

        Args:
            answer: the id of the answer.
            origin: the fields `node`, `message_id` and `member_run_id` of the event.

        Raises:
            ExecutionError: the pieces that wait exceed `limits.run_bytes`.
        """
        if answer in self._ended:
            return
        if self._live is not None and self._live in self._model_calls.failed:
            self._end(self._live)
        if self._live is None:
            self._live = answer
        text, thinking = read_text(piece), read_thinking(piece)
        if answer == self._live:
            self._publish(answer, text, thinking, origin)
        else:
            self._keep(answer, text, thinking, origin)
        # The callback at the end of a call comes before its last pieces are read here.
        if piece.chunk_position == "last":
            self._end(answer)

    def drop(self, answer: str) -> None:
        """Forget an answer that is known as a whole."""
        if (pieces := self._waiting.pop(answer, None)) is not None:
            self._waiting_size -= pieces.size
        self._end(answer)

    def _end(self, answer: str) -> None:
        self._ended.add(answer)
        if answer == self._live:
            self._live = None
        while self._waiting and self._live is None:
            following = next(iter(self._waiting))
            pieces = self._waiting.pop(following)
            self._waiting_size -= pieces.size
            if following in self._model_calls.failed:
                continue
            if following not in self._ended:
                self._live = following
            texts, thinking = "".join(pieces.texts), "".join(pieces.thinking)
            self._publish(following, texts, thinking, pieces.origin)

    def _publish(self, answer: str, text: str, thinking: str, origin: Mapping[str, str]) -> None:
        if thinking:
            self._run.add_thinking(thinking)
        if text:
            if answer not in self.begun:
                self.begun.add(answer)
                self._run.begin_answer()
            self._run.add_text(text, origin)

    def _keep(self, answer: str, text: str, thinking: str, origin: Mapping[str, str]) -> None:
        size = len(text) + len(thinking)
        self._waiting_size += size
        self._run.check_room(self._waiting_size)
        waiting = self._waiting.setdefault(answer, _Waiting(origin))
        waiting.size += size
        waiting.texts.append(text)
        waiting.thinking.append(thinking)
