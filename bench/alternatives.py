"""Other servers for the same agents: `langgraph dev` for a graph, LiteLLM for OpenAI's interface.

`langgraph dev` keeps everything in memory and checks no token; its queue is polled, so its rates
say little. LiteLLM calls the model and stores nothing. agentctl verifies a JWT, and stores
sessions, runs and events in SQLite.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench.client import build_message, encode_form
from bench.hosted import add_agents
from bench.load import CONNECTIONS, Batch, Load, compare_loads
from bench.measure import Row, at_most
from bench.peers import LANGGRAPH, LITELLM, serve_langgraph, serve_litellm
from bench.processes import Memory, compare_starts
from bench.reads import AGENT, LEAST
from bench.servers import RunningServer, serve_agentctl
from bench.tokens import (
    FAST,
    PACED,
    Side,
    build_completion,
    build_post,
    build_run_side,
    build_token_row,
    measure_sides,
)
from bench.work import create_work

__all__ = ["compare_with_langgraph", "compare_with_litellm"]

JSON = "application/json"

CLIENT_TITLES = {"own": "graph with ChatOpenAI", "configured": "graph with a configured model"}

HALF = at_most(0.5)

PATH = "/v1/chat/completions"


def compare_with_langgraph(folder: Path, model_url: str) -> Iterator[Row]:
    """Compare the same graph on agentctl and on `langgraph dev`.

    With ChatOpenAI both sides have the same code; the model of the configuration is that of
    agentctl. Each is measured on a separate server.
    """
    name = LANGGRAPH.title
    works = {}
    for client, title in CLIENT_TITLES.items():
        works[title] = work = create_work(folder / client, model_url, [])
        add_agents(work.folder, "langgraph", model_url, [client])
    with ExitStack() as stack:
        other = stack.enter_context(serve_langgraph(work))
        own = {title: stack.enter_context(serve_agentctl(works[title])) for title in works}
        memories = {title: Memory(own[title], other, name, f"{title}: ") for title in own}
        sides = {
            title: build_run_side(own[title], client) for client, title in CLIENT_TITLES.items()
        }
        theirs = Side(other, partial(_build_graph_run, other), b'"chunk_position":"last"')
        yield from _compare_tokens(sides, name, theirs)
        body = _encode_graph_run(build_message(3))
        for client, title in CLIENT_TITLES.items():
            plain = Batch(own[title].post(f"/agents/{client}/runs", encode_form(stream=False)), 160)
            batch = Batch(other.post("/runs/wait", body, kind=JSON), 64)
            yield compare_loads(f"{title}: runs, plain", plain, name, batch, 3, LEAST)
        for memory in memories.values():
            yield from memory.rows()
    for title in works:
        serve_other = partial(serve_langgraph, works[title])
        yield from compare_starts(works[title], name, serve_other, agent=f"{title}: ")


def _build_graph_run(place: RunningServer, message: str) -> bytes:
    body = _encode_graph_run(message, stream_mode=["messages-tuple"]).encode()
    return build_post(place, "/runs/stream", JSON, body)


def _encode_graph_run(message: str, **options: object) -> str:
    messages = [{"role": "user", "content": message}]
    return json.dumps({"assistant_id": "agent", "input": {"messages": messages}, **options})


def compare_with_litellm(folder: Path, model_url: str) -> Iterator[Row]:
    """Compare chat completions of agentctl, which calls an agent, and of the proxy of LiteLLM."""
    work = create_work(folder / "litellm", model_url, [])
    name = LITELLM.title
    with (work.folder / "agentctl.toml").open("a") as file:
        file.write("\n[openai]\nenabled = true\n")
    with serve_agentctl(work) as own, serve_litellm(work) as other:
        memory = Memory(own, other, name)
        ours, theirs = (
            Side(place, partial(build_completion, place, PATH, model), b"[DONE]")
            for place, model in ((own, AGENT), (other, "paced"))
        )
        yield from _compare_tokens({"chat completions": ours}, name, theirs)
        for title, clients in (("", CONNECTIONS), (", one at a time", 1)):
            one = _complete(own, AGENT, clients)
            batch = Batch(_complete(other, "paced", clients), 160)
            yield compare_loads(f"chat completions, plain{title}", one, name, batch, 3, LEAST)
        yield from memory.rows()
    yield from compare_starts(work, name, partial(serve_litellm, work))


def _complete(place: RunningServer, model: str, connections: int) -> Load:
    messages = [{"role": "user", "content": build_message(3)}]
    body = json.dumps({"model": model, "messages": messages})
    return place.post(PATH, body, kind=JSON, seconds=2, connections=connections)


def _compare_tokens(ours: Mapping[str, Side], name: str, theirs: Side) -> Iterator[Row]:
    for load in (PACED, FAST):
        found = measure_sides({**ours, name: theirs}, load, 3)
        for title in ours:
            yield build_token_row(load, found[title], name, found[name], HALF, title)
