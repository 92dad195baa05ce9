"""The numbered places of a task of a graph: its questions, subgraphs, and calls of functions.

LangGraph numbers the questions of a task (`interrupt`), the subgraphs that its code calls, and its
calls of functions (`@task`) in the order in which they arrive. It looks up answers, checkpoints and
results by these numbers. A task that waits runs again from its top, and code that works on several
things at once (`asyncio.gather`) can arrive in another order then: the answer to one question would
reach another one.

Here a place belongs to what it was used for at first: to the call of a tool that has used it, and
to the value of the question, the input of the subgraph, or the function and its arguments.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import langchain_core.tools
import langgraph.types
from langgraph._internal._constants import NS_SEP
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

_GRAPH_FOLDER = str(Path(langgraph.types.__file__).parent)

_TOOL_FOLDER = str(Path(langchain_core.tools.__file__).parent)

_serializer = JsonPlusSerializer(allowed_msgpack_modules=True)


@dataclass(slots=True)
class TaskPlace:
    """A numbered place."""

    number: int

    owner: str = ""
    """The id of the call of a tool that uses it; empty for other code of the task."""

    digest: str = ""
    """Hash of what it was used for; empty if that is not known."""

    has_asked: bool = False
    """True for a call of a function that has asked a person."""

    value: Any = None
    """The value that it is used for, until the digest is needed: most runs never wait."""

    namespace: str = ""
    """The namespace of the task of a call of a function."""

    def to_json(self) -> list[Any]:
        return [self.number, self.owner, self.digest or hash_value(self.value), self.has_asked]


class Places:
    """The places of one kind, by the namespaces of their tasks.

    Args:
        stored: what `to_json` returned at the last pause.
    """

    def __init__(self, stored: Mapping[str, Iterable[list[Any]]]) -> None:
        self._stored = {
            space: [TaskPlace(*values) for values in places] for space, places in stored.items()
        }
        self._used: dict[str, dict[int, TaskPlace]] = {}

    def take(
        self,
        namespace: str,
        owner: str,
        value: Any,
        offered: int,
        is_replaceable: Callable[[TaskPlace], bool],
    ) -> TaskPlace:
        """Return the place that was used for a value, or else a new one.

        Args:
            offered: the number that LangGraph would use.
            is_replaceable: returns True for a place that another value of the same code may take:
                the code that runs again arrives in the same order, with a changed value.
        """
        stored_places = self._stored.get(namespace, [])
        used_places = self._used.setdefault(namespace, {})
        free_places = [
            place
            for place in stored_places
            if place.number not in used_places and place.owner == owner
        ]

        place = find_place(free_places, value)
        if place is None:
            candidates = (place for place in free_places if owner or place.number == offered)
            place = next((place for place in candidates if is_replaceable(place)), None)
        if place is None:
            taken_numbers = used_places.keys() | {place.number for place in stored_places}
            number = offered if offered not in taken_numbers else max(taken_numbers) + 1
            place = TaskPlace(number, owner, value=value)

        used_places[place.number] = place
        return place

    def forget_used(self) -> None:
        """Forget the places of tasks that have ended."""
        self._used.clear()

    def to_json(self, asking_namespaces: Iterable[str]) -> dict[str, list[list[Any]]]:
        """Return the places of the tasks that run again.

        Args:
            asked: the namespaces of the tasks that have asked.
        """
        kept_places: dict[str, list[list[Any]]] = {}
        for namespace in self._stored.keys() | self._used.keys():
            if not _is_inside(namespace, asking_namespaces):
                continue

            places = {place.number: place for place in self._stored.get(namespace, ())}
            places |= self._used.get(namespace, {})

            for place in places.values():
                if place.namespace and _is_inside(place.namespace, asking_namespaces):
                    place.has_asked = True

            kept_places[namespace] = [place.to_json() for place in places.values()]

        return kept_places


def find_place(places: Iterable[TaskPlace], value: Any) -> TaskPlace | None:
    """Return the first place that was used for a value."""
    known_places = [place for place in places if place.digest]
    if not known_places:
        return None

    digest = hash_value(value)
    return next((place for place in known_places if place.digest == digest), None)


def hash_value(value: Any) -> str:
    """Return a hash of a value; an empty text for one without a serialized form."""
    try:
        kind, data = _serializer.dumps_typed(value)
    except Exception:
        # Any value of a user's class can fail here: then the order of arrival decides.
        return ""
    return hashlib.sha256(kind.encode() + data).hexdigest()[:24]


def keeps_order(owner: str) -> bool:
    """Return False in a task that code of the graph has started, to do several things at once.

    The order in which such tasks arrive may change. A node has a task of LangGraph, and a call of a
    tool one of LangChain inside of it: what these do one after the other keeps its order.

    Args:
        owner: the id of the call of a tool; empty for other code of a node.
    """
    try:
        task = asyncio.current_task()
    except RuntimeError:
        # The thread of a synchronous node.
        return True
    folders = (_GRAPH_FOLDER, _TOOL_FOLDER) if owner else (_GRAPH_FOLDER,)
    code = None if task is None else getattr(task.get_coro(), "cr_code", None)
    return code is not None and code.co_filename.startswith(folders)


def _is_inside(namespace: str, spaces: Iterable[str]) -> bool:
    """Return True if one of some tasks is the task of a namespace, or was started by it."""
    below = namespace + NS_SEP
    return any(space == namespace or space.startswith(below) for space in spaces)
