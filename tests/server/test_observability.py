"""The log and the metrics of a server."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from typer.testing import CliRunner

from agentctl.cli.root import app
from agentctl.config.extras import build_extra_command
from tests.kit.conditions import PATIENCE, wait_for
from tests.kit.deployment import Deployment
from tests.kit.documents import ROOT
from tests.kit.model import ModelEndpoint
from tests.server.observed_server import MCP_SERVER, ObservedServer, serve_observed
from tests.server.raw_http import open_raw_connection
from tests.server.worker_server import WorkerServer

MESSAGE = "words that a user sends to a model"
EMPTY = ("agentctl_webhooks_", "agentctl_database_notified", "agentctl_rows_expired_")
"""Beginnings of the names of metrics without samples on this server."""

ROW = re.compile(r"^\| `(agentctl_\w+)` \| (\w+) \| ([^|]*) \|", re.MULTILINE)


@pytest.fixture(scope="module")
def seen(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[ObservedServer]:
    """A server with one process and the JSON log."""
    folder = tmp_path_factory.mktemp("seen")
    url = model_endpoint.base_url
    with serve_observed(folder, url, more=MCP_SERVER) as server:
        yield server


@pytest.fixture
def observed_pair(pair: WorkerServer) -> Iterator[ObservedServer]:
    """A server with two workers and the readable log."""
    with httpx2.Client(timeout=PATIENCE) as anybody:
        yield ObservedServer(pair.deployment, pair.served, pair.client, anybody)


def of_request(seen: ObservedServer, request_id: str) -> list[dict[str, object]]:
    return [line for line in seen.lines() if line.get("request_id") == request_id]


def run(
    seen: ObservedServer, agent: str, session_id: str, message: str = MESSAGE
) -> tuple[str, str]:
    """Start a run, wait for its end and return the ids of request and run."""
    body = {"message": message, "session_id": session_id, "stream": False}
    answer = seen.client.post(f"/agents/{agent}/runs", json=body)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-request-id"], answer.json()["run_id"]


def test_finished_request_has_a_log_line(seen: ObservedServer) -> None:
    request_id, run_id = run(seen, "echo", "s1")
    wait_for(lambda: of_request(seen, request_id))
    (line,) = of_request(seen, request_id)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(line.pop("time")))
    assert 0 < float(str(line.pop("duration_ms"))) < 30_000
    assert line == {
        "level": "info",
        "logger": "agentctl.access",
        "message": "request finished",
        "operation": "create_agent_run",
        "method": "POST",
        "status": 200,
        "via": "http",
        "request_id": request_id,
        "principal": "me",
        "session_id": "s1",
        "run_id": run_id,
    }


def test_failed_request_has_a_log_line(seen: ObservedServer) -> None:
    odd = "%0a%7b%22forged%22%3a1%7d%1b[2J%e2%80%ae" + "a" * 5_000
    answers = [
        seen.client.get("/nothing-that-there-is"),
        seen.client.get(f"/sessions/{odd}"),
        seen.client.get("/agents", headers={"Authorization": "Bearer none"}),
        seen.client.head("/agents"),
    ]
    wanted = [
        (None, "GET", 404, "me"),
        ("get_session_by_id", "GET", 404, "me"),
        ("get_agents", "GET", 401, None),
        ("get_agents", "HEAD", 200, "me"),
    ]
    for answer, fields in zip(answers, wanted, strict=True):
        request_id = answer.headers["x-request-id"]
        wait_for(lambda request_id=request_id: of_request(seen, request_id))  # type: ignore[misc]
        (line,) = of_request(seen, request_id)
        found = (line["operation"], line["method"], line["status"], line.get("principal"))
        assert found == fields
        assert len(str(line.get("session_id", ""))) < 300
    assert "nothing-that-there-is" not in seen.served.log_text


def test_invalid_http_is_logged_with_its_request_id(seen: ObservedServer) -> None:
    with open_raw_connection(int(seen.served.url.rpartition(":")[2])) as connection:
        connection.send(b"GET /agents HTTP/1.1\r\n\r\n")
        answer = connection.answer()
    assert answer.status == 400
    request_id = answer.fields["x-request-id"]
    wait_for(lambda: of_request(seen, request_id))
    assert [line["logger"] for line in of_request(seen, request_id)] == ["agentctl.server"]


def test_log_lines_of_a_run_have_its_ids(seen: ObservedServer) -> None:
    request_id, run_id = run(seen, "http-500", "s2")
    wait_for(lambda: len(of_request(seen, request_id)) >= 2)
    warnings = [line for line in of_request(seen, request_id) if line["level"] == "warning"]
    assert any("the model failed" in str(line["message"]) for line in warnings)
    for line in warnings:
        assert (line["run_id"], line["session_id"]) == (run_id, "s2")
        assert line["principal"] == "me"
    assert MESSAGE not in seen.served.log_text


def test_log_lines_of_a_member_have_its_run_id(seen: ObservedServer) -> None:
    body = {"message": "hello", "session_id": "s3", "stream": False}
    answer = seen.client.post("/teams/choir/runs", json=body)
    request_id = answer.headers["x-request-id"]
    run_id = answer.json()["run_id"]
    wait_for(lambda: run_id in {line.get("run_id") for line in of_request(seen, request_id)})
    levels = {line["run_id"]: line["level"] for line in of_request(seen, request_id)}
    assert levels.pop(run_id) == "info"
    assert set(levels.values()) == {"warning"}


def test_every_event_is_one_line(seen: ObservedServer) -> None:
    request_id, _ = run(seen, "explode", "s4", "{}")
    wait_for(lambda: len(of_request(seen, request_id)) >= 2)
    (failed,) = [line for line in of_request(seen, request_id) if "exception" in line]
    assert "tool-text\n1999-01-01" in str(failed["exception"])
    written = seen.served.log_text
    assert written.isascii()
    assert re.search(r"[\x00-\x09\x0b-\x1f\x7f]", written) is None
    notes = [line for line in written.splitlines() if line[:1] != "{"]
    said = ["agentctl", "authorization:", "console:", "chat:", "metrics:"]
    assert [note.split(" ")[0] for note in notes] == said


def test_blocked_event_loop_is_logged(seen: ObservedServer) -> None:
    wait_for(lambda: seen.value("agentctl_loop_lag_seconds_count") > 0)

    def count_long_lags() -> float:
        counts = {(sample.name, sample.labels.get("le")): sample.value for sample in seen.scrape()}
        short = counts["agentctl_loop_lag_seconds_bucket", "1.0"]
        return counts["agentctl_loop_lag_seconds_count", None] - short

    before = count_long_lags()
    run(seen, "hold", "s5", '{"seconds": 1.4}')
    wait_for(lambda: count_long_lags() > before)
    # A busy machine adds to the time. A line that it caused shortly before takes the place of this.
    said = re.compile(r"the event loop was blocked for [1-9]\d*\.\d s")
    wait_for(lambda: any(said.search(line["message"]) for line in seen.lines()))


READABLE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z [A-Z]+ (\[\d+\] )?agentctl\.\w+: .*")


def test_readable_format_of_two_workers(observed_pair: ObservedServer) -> None:
    """Lines of two processes are complete. A traceback is indented below its line."""
    seen = observed_pair
    start = len(seen.served.log_text)

    request_id, run_id = run(seen, "explode", "s1", "{}")
    seen.client.get("/sessions/s 1 request_id=forged%0A")
    for _ in range(20):
        seen.client.get("/teams")

    # Each worker writes the line of a request when its response has been sent.
    for text, count in (("get_teams ", 20), ("create_agent_run ", 1), ("get_session_by_id ", 1)):
        wait_for(lambda: seen.served.log_text[start:].count(f"operation={text}") == count)  # noqa: B023
    said = seen.served.log_text[start:]
    assert re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", said) is None
    lines = said.splitlines()
    for line in lines:
        assert READABLE.fullmatch(line) or line.startswith("    "), line
    [finished] = [line for line in lines if "operation=create_agent_run" in line]
    assert f"request_id={request_id} " in finished
    assert f"run_id={run_id}" in finished
    assert 'session_id="s 1 request_id=forged' in said
    pids = {line.split("[")[1].split("]")[0] for line in lines if "get_teams" in line}
    assert all(pid.isdecimal() for pid in pids)


def start(seen: ObservedServer, agent: str, *, background: bool = False) -> str:
    body = {"message": "hello", "session_id": agent, "stream": False, "background": background}
    answer = seen.client.post(f"/agents/{agent}/runs", json=body)
    assert answer.status_code in (200, 202), answer.text
    run_id: str = answer.json()["run_id"]
    return run_id


def test_requests_are_counted_by_operation(seen: ObservedServer) -> None:
    def counts() -> list[float]:
        labels = {"operation": "get_agents", "method": "GET"}
        return [
            seen.value("agentctl_requests_total", **labels, status="2xx"),
            seen.value("agentctl_requests_total", **labels, status="4xx"),
            seen.value("agentctl_request_seconds_count", **labels, status="2xx"),
            seen.value("agentctl_request_seconds_bucket", **labels, status="2xx", le="60.0"),
            seen.value("agentctl_requests_total", operation="none", method="other"),
        ]

    before = counts()
    for _ in range(3):
        assert seen.client.get("/agents").status_code == 200
    seen.client.get("/agents", headers={"Authorization": "Bearer no"})
    seen.client.get("/agents/absent-one")
    for number in range(4):
        seen.client.request("PURGE", f"/path-{number}")

    def count_more() -> list[float]:
        return [now - then for now, then in zip(counts(), before, strict=True)]

    # A request is counted when its response has been sent: the caller may be quicker.
    wait_for(lambda: sum(count_more()) >= sum([3, 1, 3, 3, 4]))
    assert count_more() == [3, 1, 3, 3, 4]
    text = seen.anybody.get(seen.metrics_url).text
    assert "path-" not in text
    assert "absent-one" not in text


def test_runs_are_counted(seen: ObservedServer) -> None:
    def counts() -> list[float]:
        ends = ("completed", "error", "cancelled")
        return [
            seen.value("agentctl_runs_started_total", kind="agent"),
            *(seen.value("agentctl_runs_ended_total", kind="agent", status=end) for end in ends),
            seen.value("agentctl_cancel_seconds_count"),
        ]

    before = counts()
    spent = seen.value("agentctl_cancel_seconds_sum")
    start(seen, "echo")
    start(seen, "http-500")
    run_id = start(seen, "hang", background=True)
    assert seen.value("agentctl_runs_live", kind="agent") == 1
    began = time.monotonic()
    answer = seen.client.post(f"/agents/hang/runs/{run_id}/cancel?wait=30")
    assert answer.json()["cancel"] == "stopped"
    more = [now - then for now, then in zip(counts(), before, strict=True)]
    assert more == [3, 1, 1, 1, 1]
    assert seen.value("agentctl_runs_live") == 0
    took = time.monotonic() - began
    assert 0 < seen.value("agentctl_cancel_seconds_sum") - spent <= took
    assert run_id not in seen.anybody.get(seen.metrics_url).text


def test_decisions_are_counted(seen: ObservedServer) -> None:
    def counts() -> list[float]:
        statuses = ("approved", "rejected", "expired", "answered")
        name = "agentctl_approvals_decided_total"
        return [
            *(seen.value(name, decision=status) for status in statuses),
            seen.value("agentctl_approval_wait_seconds_count"),
        ]

    before = counts()
    for decision in ("approve", "reject"):
        form = {"message": "{}", "stream": "false"}
        (approval,) = seen.client.post("/agents/pay/runs", data=form).json()["approvals"]
        decided = seen.client.post(
            f"/agents/pay/approvals/{approval['approval_id']}/decide",
            json={"decision": decision, "arguments_hash": approval["arguments_hash"]},
        )
        assert decided.status_code == 200, decided.text
    more = [now - then for now, then in zip(counts(), before, strict=True)]
    assert more == [1, 1, 0, 0, 2]
    assert seen.value("agentctl_approval_wait_seconds_sum") > 0


def test_documentation_lists_every_metric(seen: ObservedServer) -> None:
    """Compare names, types and labels, when the first sweep has counted what waits."""
    seen.client.get("/info")  # the counters of requests have no labels before the first one
    counted = "agentctl_approvals_pending"
    wait_for(lambda: any(sample.name == counted for sample in seen.scrape()))
    page = (ROOT / "docs/observability.md").read_text()
    listed = {name: (kind, labels) for name, kind, labels in ROW.findall(page)}
    samples = seen.scrape()
    found = {}
    text = seen.anybody.get(seen.metrics_url).text
    for family, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
        own = [each for each in samples if each.name in (family, f"{family}_bucket")]
        labels = {label for sample in own for label in sample.labels}
        shown = ", ".join(f"`{label}`" for label in sorted(labels - {"worker", "le"}))
        # Without a webhook or a schedule there is nothing to count for it.
        has_samples = bool(own) or not family.startswith(EMPTY)
        found[family] = (kind, shown) if has_samples else listed[family]
    assert listed.pop("agentctl_worker_up") == ("gauge", "")
    # With traces only, see tests/telemetry.
    assert listed.pop("agentctl_spans_dropped_total") == ("counter", "")
    assert listed == found
    assert {sample.labels["worker"] for sample in samples} == {"0"}


def test_mcp_servers_have_metrics(seen: ObservedServer) -> None:
    wait_for(lambda: seen.value("agentctl_mcp_connected", server="files") == 1)
    assert seen.value("agentctl_mcp_connections_total", server="files") >= 1
    assert seen.value("agentctl_mcp_calls_total", server="files") == 0


def test_databases_and_heartbeats_have_metrics(seen: ObservedServer) -> None:
    assert {
        sample.labels["database"]
        for sample in seen.scrape()
        if sample.name == "agentctl_database_size"
    } == {"main", "second"}
    assert seen.value("agentctl_database_size", database="main", kind="sqlite") == 8
    assert 0 <= seen.value("agentctl_oldest_beat_age_seconds") < 30
    assert seen.value("agentctl_process_resident_memory_bytes") > 1_000_000


def test_metrics_address_serves_nothing_else(seen: ObservedServer) -> None:
    base = seen.metrics_url.removesuffix("/metrics")
    for path in ("/", "/health", "/agents", "/metrics/", "/metricsx", "//metrics"):
        assert seen.anybody.get(base + path, headers=seen.client.headers).status_code == 404, path
    assert seen.anybody.post(seen.metrics_url).status_code == 405
    assert seen.anybody.get(seen.metrics_url + "?name=x").status_code == 200
    assert seen.client.get("/metrics").status_code == 404
    host, port = base.removeprefix("http://").split(":")
    with (
        socket.create_connection((host, int(port))) as slow,
        socket.create_connection((host, int(port))) as wrong,
    ):
        slow.sendall(b"GET /metr")
        wrong.sendall(b"\x16\x03\x01" + b"x" * 40_000)
        wrong.settimeout(PATIENCE)
        assert wrong.recv(12) == b"HTTP/1.1 400"
        while wrong.recv(65_536):
            pass
        assert seen.value("agentctl_info") == 1


def test_metrics_on_loopback_refuse_pages(seen: ObservedServer) -> None:
    """They need no token: a page of a web site could read them otherwise (T20 to T22)."""

    def ask(name: str, value: str) -> int:
        return seen.anybody.get(seen.metrics_url, headers={name: value}).status_code

    assert ask("Host", "127.0.0.1") == ask("Host", "localhost") == 200
    assert ask("Host", "evil.example") == ask("Origin", "https://evil.example") == 403
    assert ask("Sec-Fetch-Site", "cross-site") == 403


def test_metrics_show_a_blocked_worker(observed_pair: ObservedServer) -> None:
    seen = observed_pair
    before = seen.value("agentctl_requests_total", operation="get_models")
    for _ in range(30):
        seen.client.get("/models", headers={"Connection": "close"})
    # A request is counted when its response has been sent.
    wait_for(lambda: seen.value("agentctl_requests_total", operation="get_models") == before + 30)
    up = {s.labels["worker"] for s in seen.scrape() if s.name == "agentctl_worker_up"}
    assert up == {"0", "1"}

    parent = seen.served.process.pid
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGSTOP)
    try:
        # It is stopped until the other one has answered.
        assert seen.value("agentctl_worker_up") == 1
    finally:
        os.kill(int(children[0]), signal.SIGCONT)
    wait_for(lambda: seen.value("agentctl_worker_up") == 2)


def serve(deployment: Deployment, listen: str, *more: str) -> tuple[int, str]:
    """Return exit code and error of a failed start."""
    text = "\n".join([deployment.path.read_text(), "[metrics]", f'listen = "{listen}"', *more])
    deployment.path.write_text(text)
    done = CliRunner().invoke(
        app, ["serve", "--config", str(deployment.path)], prog_name="agentctl"
    )
    return done.exit_code, done.stderr


def test_missing_package_is_named(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    code, said = serve(deployment, "127.0.0.1:0")
    assert code == 2
    assert f"hint: {build_extra_command('metrics')}, or listen" in said
    assert "Traceback" not in said


def test_metrics_port_in_use_is_named(deployment: Deployment) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said = serve(deployment, f"127.0.0.1:{port}")
    assert code != 0
    assert f"port {port} on 127.0.0.1 is in use" in said
    assert "metrics.listen" in said


@pytest.mark.parametrize("listen", ["0.0.0.0:9464", "[::]:9464", "example.org:9464"])
def test_external_metrics_address_needs_allow_remote(deployment: Deployment, listen: str) -> None:
    code, said = serve(deployment, listen)
    assert code == 2
    assert "metrics.listen" in said
    assert "allow_remote = true" in said
