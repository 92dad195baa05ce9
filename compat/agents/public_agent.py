"""A public agent, and the results that its tests expect."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.kit.scripted_models import Script


@dataclass(frozen=True)
class PublicAgent:
    """An agent, and the expected result of each of its runs.

    Attributes:
        shape: where the shape is from, in the table of the page.
        script: the answers of the models.
        content: the text of the run.
        inner: roles whose answers are not messages of the record: their results go to code.
        hidden: tools whose calls are an output, or are made by the library itself.
        config: lines for the table of the agent in the configuration.
        body: fields of the request next to the message.
        file: the file of the message, `picture` or `document`; empty for none.
        decision: the decision about each approval of the run, if it waits.
        output: the structured output; `...` if each run has another one.
        failure: the code of a failed model call, if it is not that of models.
        traced: False if no library reports the model calls.
        conversation: False if its models get no message of the user, only what its code writes.
        limits: cells that are not yes, by case, with the reason in the words of the page.
    """

    shape: str
    script: Script
    content: str
    inner: frozenset[str] = frozenset()
    hidden: frozenset[str] = frozenset({"final_result"})
    config: str = ""
    body: dict[str, Any] = field(default_factory=dict)
    file: str = ""
    decision: dict[str, Any] | None = None
    output: Any = None
    failure: str | None = None
    traced: bool = True
    conversation: bool = True
    limits: dict[str, str] = field(default_factory=dict)


STREAMED = "text that a node does not return is streamed, too, and is no content"


def inner(*roles: str) -> frozenset[str]:
    """Return a set of roles."""
    return frozenset(roles)
