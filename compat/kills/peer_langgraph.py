"""LangGraph graphs in a process; used by `compat.kills.peers`.

    python compat/kills/peer_langgraph.py start|resume|work|go-on FOLDER

The first graph asks for a payment. The second one, of `work` and `go-on`, makes three calls, each
in a node.

The checkpointer keeps its checkpoints in a file, which is written after each step, as a database
would.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

CONFIG: Any = {"configurable": {"thread_id": "t"}}


class State(TypedDict):
    """The state of the graph."""

    result: str


class FileSaver(InMemorySaver):
    """A checkpointer that stores everything in a file after each write."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._lock = threading.Lock()
        if path.exists():
            storage, writes, blobs = pickle.loads(path.read_bytes())
            for thread, spaces in storage.items():
                for space, checkpoints in spaces.items():
                    self.storage[thread][space].update(checkpoints)
            self.writes.update(writes)
            self.blobs.update(blobs)

    def put(self, *arguments: Any, **options: Any) -> Any:
        """Store a checkpoint."""
        result = super().put(*arguments, **options)
        self._store()
        return result

    def put_writes(self, *arguments: Any, **options: Any) -> None:
        """Store the writes of a task."""
        super().put_writes(*arguments, **options)
        self._store()

    def _store(self) -> None:
        with self._lock:
            storage = {
                thread: {space: dict(found) for space, found in spaces.items()}
                for thread, spaces in self.storage.items()
            }
            content = pickle.dumps((storage, dict(self.writes), dict(self.blobs)))
            part = self._path.with_suffix(".part")
            part.write_bytes(content)
            part.replace(self._path)


def write(folder: Path, line: str) -> None:
    """Write a line to the ledger, and work for a second."""
    with (folder / "ledger").open("a") as ledger:
        ledger.write(f"{line}\n")
        ledger.flush()
        os.fsync(ledger.fileno())
    time.sleep(1.0)


def build_steps(folder: Path) -> Any:
    """Return the compiled graph with three calls."""

    def call(number: int) -> Any:
        def make(state: State) -> State:
            write(folder, str(number))
            return {"result": f"{state['result']}{number}"}

        return make

    graph = StateGraph(State)
    places = [START, *(f"step-{number}" for number in range(3)), END]
    for number, place in enumerate(places[1:-1]):
        graph.add_node(place, call(number))
    for before, after in pairwise(places):
        graph.add_edge(before, after)
    return graph.compile(checkpointer=FileSaver(folder / "checkpoints"))


def build(folder: Path) -> Any:
    """Return the compiled graph that asks."""

    def pay(state: State) -> State:
        answer = interrupt("pay bob?")
        if answer != "yes":
            return {"result": "rejected"}
        write(folder, "pay bob")
        return {"result": "paid"}

    graph = StateGraph(State)
    graph.add_node("pay", pay)
    graph.add_edge(START, "pay")
    graph.add_edge("pay", END)
    return graph.compile(checkpointer=FileSaver(folder / "checkpoints"))


if __name__ == "__main__":
    action = sys.argv[1]
    folder = Path(sys.argv[2])
    inputs: dict[str, Any] = {
        "start": {"result": ""},
        "resume": Command(resume="yes"),
        "work": {"result": ""},
        "go-on": None,
    }
    graph = build(folder) if action in ("start", "resume") else build_steps(folder)
    print(graph.invoke(inputs[action], CONFIG, durability="sync"), flush=True)
