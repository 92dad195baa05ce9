"""Memory records: facts about a user that agents keep (docs/contract.md "Memories")."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from typing_extensions import TypedDict

from agentctl.errors import ValidationFailed
from agentctl.records.sessions import PageMeta
from agentctl.records.text import check_text
from agentctl.records.times import Timestamp

MAXIMUM_MEMORY_LENGTH = 4_000
"""Characters of the text of a memory."""

MAXIMUM_TOPICS = 16
"""Topics of a memory."""

MAXIMUM_TOPIC_LENGTH = 64
"""Characters of a topic."""

TOPIC_PREFIX = "topic:"
"""Prefix of the terms that are topics; no word contains a colon."""

_MAXIMUM_WORDS = 512
_MAXIMUM_WORD_LENGTH = 64
_WORD = re.compile(r"\w+")


class MemoryRecord(TypedDict):
    """A fact about one user.

    `agent_id`, `team_id` and `run_id` name the agent or team and the run that stored it; they are
    null for a memory that a person added.
    """

    memory_id: str
    memory: str
    topics: list[str]
    agent_id: str | None
    team_id: str | None
    user_id: str
    run_id: str | None
    created_at: Timestamp
    updated_at: Timestamp


class MemoryPage(TypedDict):
    """A page of memories."""

    data: list[MemoryRecord]
    meta: PageMeta


def split_words(text: str) -> list[str]:
    """Return the distinct words of a text in order, folded so that case does not matter.

    A word is a sequence of letters, digits and underscores of any script, cut at 64 characters;
    the first 512 words count.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    words = (word[:_MAXIMUM_WORD_LENGTH] for word in _WORD.findall(folded))
    return list(dict.fromkeys(words))[:_MAXIMUM_WORDS]


def check_memory(memory: str) -> str:
    """Return the text of a memory if it can be stored.

    Raises:
        ValidationFailed: it is empty, too long, or cannot be stored.
    """
    if not memory.strip() or len(memory) > MAXIMUM_MEMORY_LENGTH:
        raise ValidationFailed(
            f"memory must be 1 to {MAXIMUM_MEMORY_LENGTH} characters, not only spaces"
        )
    return check_text("memory", memory)


def check_topics(topics: Iterable[str]) -> tuple[str, ...]:
    """Return the topics of a memory, each once, if they can be stored.

    Raises:
        ValidationFailed: there are too many, or one is empty, too long, or has a comma.
    """
    distinct = tuple(dict.fromkeys(topics))
    if len(distinct) > MAXIMUM_TOPICS:
        raise ValidationFailed(f"topics must have at most {MAXIMUM_TOPICS} topics")
    for topic in distinct:
        if not topic.strip() or len(topic) > MAXIMUM_TOPIC_LENGTH or "," in topic:
            raise ValidationFailed(
                f"a topic must be 1 to {MAXIMUM_TOPIC_LENGTH} characters without a comma"
            )
        check_text("topics", topic)
    return distinct


def build_terms(memory: str, topics: Iterable[str]) -> list[str]:
    """Return the terms that find a memory: its words, the words of its topics, and its topics."""
    topics = list(topics)
    words = split_words(" ".join([memory, *topics]))
    return [*words, *(f"{TOPIC_PREFIX}{topic}" for topic in dict.fromkeys(topics))]
