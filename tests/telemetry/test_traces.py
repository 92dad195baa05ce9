"""The spans of runs, as a collector receives them."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from opentelemetry.sdk.resources import Resource

from agentctl.config.settings import Model, Settings
from agentctl.interface.requests import CancelRequest, RunRequest
from agentctl.interface.requests.approvals import Ruling
from agentctl.records.kinds import ComponentKind
from agentctl.records.logs import (
    RunTrace,
    TraceContext,
    build_child_trace,
    caller_trace,
    parse_traceparent,
)
from agentctl.records.text import new_id
from agentctl.runs.states import Ending
from agentctl.runs.workers.recovery import recover_runs
from agentctl.runtime.tracing import LegTrace
from agentctl.runtime.transcript.events import ToolCallStarted
from agentctl.runtime.transcript.transcript import Transcript
from agentctl.service.service import Service, ServiceOperations
from agentctl.telemetry import tracer
from agentctl.telemetry.spans import EndedLeg, SpanBuilder, list_models
from tests.kit.conditions import wait_until
from tests.kit.deployment import Deployment
from tests.kit.model import ModelEndpoint
from tests.kit.service import admin, open_service, streamed_run, user
from tests.runs.shared_databases import create_live_run, store_events
from tests.telemetry.conftest import build_deployment
from tests.telemetry.receiver import Collector, ReceivedSpan

CALLER = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", True)
SERVER = 2
CLIENT = 3
INTERNAL = 1
MARKER = "zebra-8471"
USAGE = {
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cache_read_tokens": "gen_ai.usage.cache_read.input_tokens",
    "reasoning_tokens": "gen_ai.usage.reasoning.output_tokens",
}


async def run(
    operations: ServiceOperations, kind: ComponentKind, component_id: str, message: str, **more: Any
) -> dict[str, Any]:
    request = RunRequest(message, **more)
    record: Any = (await operations.runs.create(kind, component_id, request)).value
    return dict(record)


def count_parts(records: list[dict[str, Any]]) -> int:
    """Return the number of runs, model calls and tool calls of a tree of runs."""
    kinds = Counter(span["kind"] for record in records for span in record["spans"])
    return len(records) + kinds["model"] + kinds["tool"]


async def read_tree(operations: ServiceOperations, root: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a run and all runs below it."""
    records = [root]
    for member in root["member_runs"]:
        record: Any = (await operations.runs.get(member)).value
        records += await read_tree(operations, record)
    return records


def draw(spans: list[ReceivedSpan], parent_id: str) -> dict[str, Any]:
    """Return the names of the spans below a span, as a tree in the order of their starts."""
    below = sorted((span for span in spans if span.parent_id == parent_id), key=lambda s: s.start)
    return {f"{number} {span.name}": draw(spans, span.span_id) for number, span in enumerate(below)}


async def test_runs_are_one_tree_below_the_caller(
    deployment: Deployment, collector: Collector
) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        caller_trace.set(CALLER)
        agent = await run(operations, "agent", "tool-add", '{"a": 1, "b": 2}')
        workflow = await run(operations, "workflow", "line", MARKER)
        records = [agent, *await read_tree(operations, workflow)]
    assert {record["trace_id"] for record in records} == {CALLER.trace_id}
    spans = collector.spans
    assert len(spans) == count_parts(records)
    assert {span.trace_id for span in spans} == {CALLER.trace_id}
    assert len({span.span_id for span in spans}) == len(spans)
    team = {
        "0 chat delegate": {},
        "1 execute_tool delegate_task_to_member": {"0 invoke_agent echo": {"0 chat echo": {}}},
        "2 chat delegate": {},
    }
    assert draw(spans, CALLER.span_id) == {
        "0 invoke_agent tool-add": {
            "0 chat tool:add": {},
            "1 execute_tool add": {},
            "2 chat tool:add": {},
        },
        "1 invoke_workflow line": {
            "0 invoke_agent echo": {"0 chat echo": {}},
            "1 invoke_agent crew": team,
        },
    }
    parents = {span.span_id: span for span in spans}
    for span in spans:
        parent = parents.get(span.parent_id)
        assert parent is None or parent.start <= span.start <= span.end <= parent.end


class TracedRun(NamedTuple):
    """A run of the agent `tool-add`, and its spans."""

    record: dict[str, Any]
    own: ReceivedSpan
    call: ReceivedSpan
    tool: ReceivedSpan
    answer: ReceivedSpan

    @property
    def shared_attributes(self) -> dict[str, Any]:
        return {"gen_ai.conversation.id": "s1", "agentctl.run.id": self.record["run_id"]}


async def trace_run(deployment: Deployment, collector: Collector) -> TracedRun:
    async with open_service(deployment) as service:
        record = await run(user(service), "agent", "tool-add", '{"a": 1, "b": 2}', session_id="s1")
    call, tool, answer, own = sorted(collector.spans, key=lambda s: (s.parent_id == "", s.start))
    return TracedRun(record, own, call, tool, answer)


async def test_span_of_a_run_has_the_attributes_of_the_conventions(
    deployment: Deployment, collector: Collector
) -> None:
    traced = await trace_run(deployment, collector)
    record = traced.record
    assert traced.own.kind == SERVER
    assert traced.own.attributes == {
        **traced.shared_attributes,
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.id": "tool-add",
        "gen_ai.agent.name": "Tool:Add",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "tool:add",
        **{f"agentctl.usage.{counter}": record["metrics"][counter] for counter in USAGE},
        "agentctl.run.status": "completed",
        "agentctl.run.leg": 1,
    }
    hexadecimal_id = record["run_id"].replace("-", "")
    assert (traced.own.trace_id, traced.own.span_id) == (hexadecimal_id, hexadecimal_id[16:])
    assert traced.own.trace_id == record["trace_id"]


async def test_span_of_a_model_call_has_the_attributes_of_the_conventions(
    deployment: Deployment, collector: Collector, model_endpoint: ModelEndpoint
) -> None:
    traced = await trace_run(deployment, collector)
    call = traced.call
    assert call.kind == CLIENT
    seconds = call.attributes.pop("gen_ai.response.time_to_first_chunk")
    assert 0 <= seconds <= (call.end - call.start) / 1e9
    metrics = traced.record["messages"][2]["metrics"]
    endpoint = urlsplit(model_endpoint.base_url)
    assert call.attributes == {
        **traced.shared_attributes,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "tool:add",
        "gen_ai.response.model": "tool:add",
        "gen_ai.response.id": "answer-1",
        "gen_ai.response.finish_reasons": ["tool_call"],
        **{name: metrics[counter] for counter, name in USAGE.items()},
        "agentctl.model.id": "tool-add",
        "server.address": endpoint.hostname,
        "server.port": endpoint.port,
    }
    assert traced.answer.attributes["gen_ai.response.finish_reasons"] == ["stop"]


async def test_span_of_a_tool_call_has_the_attributes_of_the_conventions(
    deployment: Deployment, collector: Collector
) -> None:
    traced = await trace_run(deployment, collector)
    assert traced.tool.kind == INTERNAL
    assert traced.tool.attributes == {
        **traced.shared_attributes,
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "add",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": traced.record["tools"][0]["tool_call_id"],
    }


async def test_tokens_are_counted_once_and_workflows_are_chains(
    deployment: Deployment, collector: Collector
) -> None:
    async with open_service(deployment) as service:
        record = await run(user(service), "workflow", "line", MARKER)
    spans = collector.spans
    counted = [span.attributes.get("gen_ai.usage.input_tokens") for span in spans]
    assert (
        sum(filter(None, counted))
        + sum(span.attributes.get("gen_ai.usage.output_tokens", 0) for span in spans)
        == record["total_tokens"]
    )
    kinds = {span.name: span.attributes.get("openinference.span.kind") for span in spans}
    assert kinds.pop("invoke_workflow line") == "CHAIN"
    assert set(kinds.values()) == {None}


def test_addresses_of_providers_are_known() -> None:
    models = [
        Model("a", "anthropic", "claude"),
        Model("b", "bedrock", "nova", region="eu-central-1"),
        Model("c", "demo", "echo"),
        Model("d", "azure", "gpt", base_url="https://name.openai.azure.com/openai/v1"),
        Model("e", "ollama", "qwen", base_url="http://gpu.example:8080"),
    ]
    assert {name: tuple(known.server.values()) for name, known in list_models(models).items()} == {
        "a": ("api.anthropic.com", 443), "b": (), "c": (),
        "d": ("name.openai.azure.com", 443), "e": ("gpu.example", 8080),
    }  # fmt: skip


async def test_no_text_is_exported_unless_asked_for(
    tmp_path: Path, model_endpoint: ModelEndpoint, collector: Collector
) -> None:
    (tmp_path / "off").mkdir()
    for folder, more in ((tmp_path, ""), (tmp_path / "off", "content = true")):
        deployment = build_deployment(folder, model_endpoint, collector, more=more)
        async with open_service(deployment) as service:
            operations = user(service, MARKER)
            await run(operations, "agent", "tool-wait", f'{{"seconds": 0, "x": "{MARKER}"}}')
            await run(operations, "team", "crew", MARKER)
        found = any(MARKER.encode() in body for body in collector.bodies)
        assert found is bool(more)
    own = next(span for span in collector.spans if "user.id" in span.attributes)
    assert own.attributes["user.id"] == MARKER
    tool = next(s for s in collector.spans if "gen_ai.tool.call.arguments" in s.attributes)
    assert MARKER in tool.attributes["gen_ai.tool.call.arguments"]


async def test_failed_and_cancelled_runs_end_all_spans(
    deployment: Deployment, collector: Collector
) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        failed = await run(operations, "agent", "http-500", "hello")
        async with streamed_run(operations, "team", "jam", message="x") as (record, events):
            await wait_until(lambda: len(service.hosting.engine.live_runs()) == 3)
            request = CancelRequest(session_id=record["session_id"], wait=30)
            await operations.runs.cancel("team", "jam", record["run_id"], request)
            await events
    spans = {(span.run_id, span.name): span for span in collector.spans}
    chat = spans[failed["run_id"], "chat http-500"]
    own = spans[failed["run_id"], "invoke_agent http-500"]
    assert (chat.status, chat.attributes["error.type"]) == (2, "MODEL_UNAVAILABLE")
    assert (own.status, own.attributes["error.type"]) == (2, failed["error"]["code"])
    own = spans[record["run_id"], "invoke_agent jam"]
    assert (own.status, own.attributes["error.type"]) == (0, "cancelled")
    assert own.attributes["agentctl.run.cancel_requested"] is True
    members = [span for span in collector.spans if span.parent_id == own.span_id]
    assert {span.name for span in members} == {"invoke_agent hang", "invoke_agent trickle"}
    assert {span.attributes["error.type"] for span in members} == {"cancelled"}


@pytest.mark.parametrize(
    ("more", "caller", "expected"),
    [
        ("", CALLER._replace(is_sampled=False), None),
        ("sample = 0", None, None),
        ("sample = 0", CALLER, "child"),
        ('parent = "link"', CALLER, "link"),
        ('parent = "ignore"', CALLER, "root"),
    ],
)
async def test_the_caller_or_the_sample_decides(
    tmp_path: Path,
    model_endpoint: ModelEndpoint,
    collector: Collector,
    more: str,
    caller: TraceContext | None,
    expected: str | None,
) -> None:
    deployment = build_deployment(tmp_path, model_endpoint, collector, more=more)
    async with open_service(deployment) as service:
        caller_trace.set(caller)
        record = await run(user(service), "agent", "echo", "hello")
    own = next((span for span in collector.spans if "invoke" in span.name), None)
    if expected is None:
        assert own is None
        return
    assert own is not None
    is_child = expected == "child"
    assert (own.trace_id == CALLER.trace_id, own.parent_id == CALLER.span_id) == (is_child,) * 2
    assert own.links == ([(CALLER.trace_id, CALLER.span_id)] if expected == "link" else [])
    assert record["trace_id"] == own.trace_id


async def test_background_work_is_a_trace_with_a_link(
    tmp_path: Path, model_endpoint: ModelEndpoint, collector: Collector
) -> None:
    agent = '[[agents]]\nid = "short"\nmodel = "echo"\nsummary = { every_runs = 1 }\n'
    deployment = build_deployment(tmp_path, model_endpoint, collector, extra=agent)
    async with open_service(deployment) as service:
        caller_trace.set(CALLER)
        record = await run(user(service), "agent", "short", "hello")
        await wait_until(lambda: not service.hosting.engine.has_live_runs())
        await wait_until(lambda: len(_list_runs(collector)) == 2)
    first = next(span for span in _list_runs(collector) if span.run_id == record["run_id"])
    later = next(span for span in _list_runs(collector) if span.run_id != record["run_id"])
    assert (later.attributes["agentctl.run.purpose"], later.parent_id) == ("summary", "")
    assert later.trace_id != first.trace_id
    assert later.links == [(first.trace_id, first.span_id)]


def _list_runs(collector: Collector) -> list[ReceivedSpan]:
    return [span for span in collector.spans if span.name.startswith("invoke_")]


async def test_the_agent_alone_can_be_traced(
    tmp_path: Path, model_endpoint: ModelEndpoint, collector: Collector
) -> None:
    agent = '[[agents]]\nid = "bare"\nmodel = "echo"\ntrace = "run"\n'
    deployment = build_deployment(tmp_path, model_endpoint, collector, extra=agent)
    async with open_service(deployment) as service:
        await run(user(service), "agent", "bare", "hello")
    assert [span.name for span in collector.spans] == ["invoke_agent bare"]


async def test_a_dead_collector_costs_no_run_and_does_not_delay_the_end(
    tmp_path: Path,
    model_endpoint: ModelEndpoint,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "1")
    monkeypatch.setattr(tracer, "FLUSH_SECONDS", 0)
    dead = Collector("http://127.0.0.1:9")
    async with open_service(build_deployment(tmp_path, model_endpoint, dead)) as service:
        for _ in range(6):
            assert (await run(user(service), "agent", "echo", "hello"))["status"] == "COMPLETED"
        assert _count_dropped(service) >= 12 - 8
    assert "spans are dropped: the collector of traces" in caplog.text
    assert "the collector of traces did not take the last spans in time" in caplog.text

    # It repeats the last export, and would work beside other tests.
    await wait_until(
        lambda: not any(each.name == "agentctl-telemetry" for each in threading.enumerate())
    )


def _count_dropped(service: Service) -> int:
    spans = service.hosting.engine.tracer
    return 0 if spans is None else spans.dropped


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        f"00-{'0' * 32}-{'1' * 16}-01",
        f"00-{'1' * 32}-{'0' * 16}-01",
        f"ff-{'1' * 32}-{'1' * 16}-01",
        f"00-{'A' * 32}-{'1' * 16}-01",
        f"00-{'1' * 32}-{'1' * 16}-01-more",
        f"00-{'1' * 32}-{'1' * 16}-1",
        None,
        7,
    ],
)
def test_wrong_traceparents_are_ignored(text: object) -> None:
    assert parse_traceparent(text) is None


def test_traceparents_of_later_versions_are_read() -> None:
    assert parse_traceparent(f"01-{CALLER.traceparent[3:]}-more") == CALLER


async def test_later_legs_are_traces_with_a_link(
    tmp_path: Path, model_endpoint: ModelEndpoint, collector: Collector
) -> None:
    agent = (
        '[[agents]]\nid = "gated"\nmodel = "tool-add"\ntools = ["world_tools:add"]\n'
        'approve = { add = "user" }\n'
    )
    deployment = build_deployment(tmp_path, model_endpoint, collector, extra=agent)
    async with open_service(deployment) as service:
        operations = admin(service)
        caller_trace.set(CALLER)
        paused = await run(operations, "agent", "gated", '{"a": 1, "b": 2}')
        caller_trace.set(None)
        asked = paused["approvals"][0]
        decision = Ruling("approve", asked["arguments_hash"])
        await operations.approvals.decide("agent", "gated", asked["approval_id"], decision)
        database = service.hosting.databases["main"]
        await service.hosting.engine.claims.claim(database, paused["run_id"])
        await wait_until(lambda: len(_list_runs(collector)) == 2)
        record: Any = (await operations.runs.get(paused["run_id"])).value
    first, later = sorted(_list_runs(collector), key=lambda span: span.start)
    status = "agentctl.run.status"
    assert [span.attributes[status] for span in (first, later)] == ["paused", "completed"]
    assert [span.attributes["agentctl.run.leg"] for span in (first, later)] == [1, 2]
    assert (first.trace_id, first.parent_id) == (CALLER.trace_id, CALLER.span_id)
    assert (later.parent_id, later.links) == ("", [(first.trace_id, first.span_id)])
    assert draw(collector.spans, first.span_id) == {"0 chat tool:add": {}}
    assert draw(collector.spans, later.span_id) == {"0 execute_tool add": {}, "1 chat tool:add": {}}
    assert record["trace_id"] == first.trace_id
    assert len(collector.spans) == count_parts([record]) + 1


async def test_the_spans_of_a_dead_worker_come_from_the_events(
    deployment: Deployment, collector: Collector
) -> None:
    call = {"tool_call_id": "c1", "tool_name": "add", "tool_args": {}}
    started = ToolCallStarted({**call, "tool_call_error": None, "result": None})
    async with open_service(deployment) as service:
        database = service.hosting.databases["main"]
        monitor = service.hosting.monitor
        trace = build_child_trace(new_id(), CALLER)
        lost = await create_live_run(database, "dead", component_id="echo", trace=trace.text)
        await store_events(database, lost, "text", started)
        assert await recover_runs(database, "dead", on_ended=monitor.on_lost_run) == ["r1"]
    tool, own = sorted(collector.spans, key=lambda span: span.name)
    assert (own.span_id, own.parent_id) == (trace.own.span_id, CALLER.span_id)
    assert (own.attributes["error.type"], own.status) == ("WORKER_LOST", 2)
    assert own.attributes["agentctl.recovered"] is True
    assert (tool.name, tool.parent_id, tool.status) == ("execute_tool add", own.span_id, 2)


@pytest.mark.parametrize("has_content", [False, True])
def test_delivered_message_is_an_event_of_its_leg(has_content: bool) -> None:
    transcript = Transcript()
    transcript.add_message("earlier", "before")
    transcript.messages[0]["created_at"] = 5
    transcript.add_message("m1", MARKER)
    trace = LegTrace(RunTrace(CALLER, None))
    leg = EndedLeg(
        trace=trace,
        run_id="r1",
        session_id="s1",
        user_id=None,
        input="work",
        purpose=None,
        is_root=True,
        attempt=1,
        kind="agent",
        component_id="echo",
        component_name="Echo",
        model="",
        ending=Ending.completed(),
        finished_at=trace.started_at + 1,
        transcript=transcript,
        calls=(),
    )
    settings = replace(Settings(), tracing=replace(Settings().tracing, content=has_content))
    (span,) = SpanBuilder(settings, Resource({})).build(leg)
    (event,) = span.events
    assert (event.name, event.attributes["agentctl.message.id"]) == (
        "agentctl.message.delivered",
        "m1",
    )
    assert (MARKER in str(event.attributes)) == has_content
    assert span.start_time <= event.timestamp
