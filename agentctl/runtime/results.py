"""What a tool returned, as the text that its model is told.

A tool may return anything: what has no end, no JSON form, or more than a run may keep. It is made
into text where the tool ran, within the tool's time.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from typing import Any

from agentctl.records.text import clean

__all__ = ["NoJsonForm", "text_of"]


class NoJsonForm(Exception):
    """A result that cannot be told to a model. The cause says why."""


def text_of(result: object, limit: int) -> str:
    """A result as text: a string as it is, anything else as JSON, cut at `limit` bytes of UTF-8.

    Of an iterator, such as a generator, as many items are taken as fit. What cannot be stored is
    replaced by U+FFFD.

    Raises:
        NoJsonForm: it is nothing that JSON can hold.
    """
    if isinstance(result, str):
        # An exact string, whatever a subclass makes of its methods.
        return _cut(str.__str__(result), limit)
    try:
        value = _taken(result, limit) if isinstance(result, Iterator) else _plain(result)
        return _cut(json.dumps(value, ensure_ascii=False, separators=(",", ":")), limit)
    except Exception as error:
        raise NoJsonForm from error
    finally:
        if inspect.iscoroutine(result):
            result.close()


def _plain(result: object) -> Any:
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(result)


def _taken(items: Iterator[object], limit: int) -> list[Any]:
    """Items until they are longer than `limit`; each is at least a comma."""
    taken: list[Any] = []
    size = 0
    for item in items:
        taken.append(_plain(item))
        size += 1 + len(json.dumps(taken[-1]))
        if size > limit:
            break
    return taken


def _cut(text: str, limit: int) -> str:
    """At most `limit` bytes, never half a character."""
    text = clean(text[:limit])
    data = text.encode()
    return text if len(data) <= limit else data[:limit].decode("utf-8", "ignore")
