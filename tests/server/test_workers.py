"""`agentctl serve --workers N`: the workers of one port, and their supervisor."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import orjson
import pytest

from agentctl.server.processes.listener import adopt_socket, bind_socket
from agentctl.server.processes.supervisor import MAXIMUM_PAUSE, STEADY_SECONDS, Backoff
from tests.kit.command import run_command
from tests.kit.conditions import PATIENCE, wait_for
from tests.kit.deployment import Deploy, Deployment
from tests.kit.mcp_wire import McpWire
from tests.kit.model import ModelEndpoint
from tests.kit.ports import find_free_port
from tests.kit.process import run_agentctl, start_agentctl
from tests.kit.process_states import is_alive, wait_for_ends
from tests.kit.threaded_server import serve_in_thread
from tests.server.forking_tools import FILES, call_tool, describe_agents, surviving
from tests.server.worker_server import WorkerServer, read_stream, serve_with_two_workers


def drain_seconds(deployment: Deployment, seconds: float) -> None:
    text = deployment.path.read_text()
    deployment.path.write_text(text.replace("drain_seconds = 1", f"drain_seconds = {seconds}"))


def test_every_worker_serves(pair: WorkerServer) -> None:
    workers = pair.workers()
    assert len(set(workers)) == 2
    assert pair.parent not in workers
    # Ctrl-C at a terminal reaches a group of processes: the parent alone.
    assert all(os.getsid(pid) == pid for pid in workers)
    assert pair.one_each("echo").keys() == set(workers)


def test_large_settings_reach_workers_and_stay_hidden(pair: WorkerServer) -> None:
    """They are longer than an environment variable or argument may be (128 KiB)."""
    assert len(pair.deployment.path.read_bytes()) > 128 * 1_024
    assert pair.client.get("/agents/long").status_code == 200

    secret = pair.deployment.settings.authorization.verification_keys[0].encode()
    # The settings travel in base64, in which the secret has one of three forms, by its place.
    forms = [secret, *(b64encode(bytes(place) + secret)[4:-4] for place in range(3))]
    for pid in (pair.parent, *pair.workers()):
        for name in ("environ", "cmdline"):
            public_bytes = Path(f"/proc/{pid}/{name}").read_bytes()
            assert not [form for form in forms if form in public_bytes]


def test_any_worker_cancels_a_hung_run(pair: WorkerServer) -> None:
    one, other = pair.workers()
    with pair.through(one) as owner, pair.through(other) as caller:
        for _ in range(4):
            run_id = pair.start("s1", through=owner)
            pair.await_status(run_id, "RUNNING")
            assert pair.process_of(run_id) == one
            url = f"/agents/hang/runs/{run_id}/cancel?session_id=s1&wait=30"
            answer = caller.post(url).json()
            assert (answer["status"], answer["cancel"]) == ("CANCELLED", "stopped")


def test_stream_continues_at_another_worker(pair: WorkerServer) -> None:
    one, other = pair.workers()
    with pair.through(one) as owner, pair.through(other) as caller:
        body = {"message": "hello", "session_id": "s2", "background": True}
        with read_stream(owner, "/agents/trickle/runs", body) as events:
            read = [next(events) for _ in range(10)]
        run_id = orjson.loads(read[0].data)["run_id"]
        place = {"session_id": "s2", "last_event_index": read[-1].seq}
        with read_stream(caller, f"/agents/trickle/runs/{run_id}/resume", place) as events:
            read += [next(events) for _ in range(10)]
            cancel = f"/agents/trickle/runs/{run_id}/cancel?session_id=s2&wait=30"
            assert pair.client.post(cancel).json()["status"] == "CANCELLED"
            read += events
    assert [event.seq for event in read] == list(range(len(read)))
    assert read[-1].name == "RunCancelled"
    parts = [orjson.loads(event.data)["content"] for event in read[1:-1]]
    assert orjson.loads(read[-1].data)["content"] == "".join(parts)


def test_draining_workers_reject_runs_until_a_second_signal(deployment: Deployment) -> None:
    """A signal to every process, as a service manager sends it, counts once."""
    drain_seconds(deployment, 600)
    with serve_with_two_workers(deployment) as server:
        runs = server.one_each()
        kept = len(server.rows("SELECT * FROM runs"))
        body = {"message": "hello", "session_id": "streamed"}
        with read_stream(server.client, "/agents/hang/runs", body) as events:
            streamed = orjson.loads(next(events).data)["run_id"]
            for pid in (*server.workers(), server.parent):
                os.kill(pid, signal.SIGTERM)
            server.await_draining()

            for _ in range(6):  # Any worker responds.
                asked = server.client.post("/agents/echo/runs", json={"message": "hello"})
                assert (asked.status_code, asked.json()["error_code"]) == (503, "UNAVAILABLE")
            for run_id in (*runs.values(), streamed):
                assert server.run(run_id)["status"] == "RUNNING"
            server.served.wait_for(f"stopping: waiting up to 10 min for {kept + 1} runs")

            server.served.process.send_signal(signal.SIGINT)
            assert [event.name for event in events] == ["RunCancelled"]

        assert server.served.process.wait(PATIENCE) == 0
        ends = "SELECT status, cancel_requested_by FROM runs"
        assert server.rows(ends) == [("CANCELLED", "system:shutdown")] * (kept + 1)


def test_workers_stop_together_so_streams_get_their_end(deployment: Deployment) -> None:
    with serve_with_two_workers(deployment) as server:
        idle, busy = server.workers()
        with server.through(busy) as there, server.through(idle) as here:
            run_id = server.start("s1", "trickle", through=there)
            resume = f"/agents/trickle/runs/{run_id}/resume"
            with read_stream(here, resume, {"session_id": "s1"}) as events:
                assert next(events).name == "RunStarted"
                server.served.process.send_signal(signal.SIGTERM)
                assert [event.name for event in events][-1] == "RunCancelled"
        assert server.served.process.wait(PATIENCE) == 0
        assert server.rows("SELECT * FROM workers") == []
        assert "Traceback" not in server.served.log_text
        assert server.served.log_text.splitlines()[-1] == "stopped"


METRICS = '\n[metrics]\nlisten = "127.0.0.1:0"\n'

SLOW_IMPORT = """
import os, sys, time
if "worker_main" in sys.argv[0]:
    with open("importing", "a") as file:
        file.write(f"{os.getpid()}\\n")
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def mortal(deploy: Deploy) -> Iterator[WorkerServer]:
    """A server whose workers die, which the last of its tests stops.

    A worker that starts while the folder has a file `slow` never becomes ready.
    """
    deployment = deploy(describe_agents(deploy.url) + METRICS, files=FILES)
    drain_seconds(deployment, 0)
    tools = deployment.folder / "world_tools.py"
    slow_import = SLOW_IMPORT.replace("if ", 'if os.path.exists("slow") and ')
    tools.write_text(f"{slow_import}\n{tools.read_text()}")
    with serve_with_two_workers(deployment) as server:
        yield server


def test_dead_worker_is_replaced_under_load(mortal: WorkerServer) -> None:
    """Also if a child of it lives on, and keeps its channel to the supervisor open."""
    key = mortal.deployment.folder / "keys" / "signing.pub.pem"
    runs = mortal.one_each()
    dead, living = runs
    with mortal.through(dead) as client:
        child = call_tool(client, "fork_in_c")
    with surviving(child), asking(mortal) as answered:
        wait_for(lambda: len(answered) > 20)
        text = key.read_bytes()
        key.unlink()
        os.kill(dead, signal.SIGKILL)
        # Its runs are lost. A replacement cannot start now; the other worker serves.
        mortal.await_status(runs[dead], "ERROR")
        mortal.served.wait_for("signing.pub.pem")
        assert mortal.workers() == [living]
        before = len(answered)
        wait_for(lambda: len(answered) > before + 5)
        key.write_bytes(text)
        wait_for(lambda: len(mortal.workers()) == 2)
        wait_for(lambda: count_workers_in_metrics(mortal) == 2)
    said = mortal.served.log_text
    assert f"worker process {dead} was killed by SIGKILL; starting another one" in said
    assert "Traceback" not in said
    assert mortal.run(runs[dead])["error"]["code"] == "WORKER_LOST"
    assert mortal.one_each("use_pool").keys() == set(mortal.workers())
    for run_id in answered:
        assert mortal.status(run_id) == "COMPLETED"
    wait_for(lambda: all(mortal.process_of(run_id) == living for run_id in going_on(mortal)))


def test_late_worker_is_killed_and_reported(mortal: WorkerServer) -> None:
    """A replacement that is not ready is killed as well, and has no runs to report."""
    stuck, dead = mortal.workers()
    (mortal.deployment.folder / "slow").touch()
    importing = mortal.deployment.folder / "importing"
    os.kill(dead, signal.SIGKILL)
    wait_for(lambda: importing.exists() and importing.read_text().endswith("\n"))
    os.kill(stuck, signal.SIGSTOP)

    assert mortal.served.stop() == 1

    assert not is_alive(stuck)
    assert not is_alive(int(importing.read_text()))
    said = mortal.served.log_text
    assert f"error: worker processes did not end in time and were killed: {stuck}\n" in said


def count_workers_in_metrics(server: WorkerServer) -> int:
    """Return how many workers report their metrics."""
    address = server.served.wait_for("metrics: ").partition("metrics: ")[2].split()[0]
    lines = httpx2.get(address, timeout=PATIENCE).text.splitlines()
    return sum(line.startswith("agentctl_worker_up{") and line.endswith(" 1.0") for line in lines)


def going_on(server: WorkerServer) -> list[str]:
    """Return the ids of live runs."""
    live = "SELECT run_id FROM runs WHERE status IN ('PENDING', 'RUNNING')"
    return [run_id for (run_id,) in server.rows(live)]


@contextlib.contextmanager
def asking(server: WorkerServer) -> Iterator[list[str]]:
    """Have four callers start one run after another; yield the ids of the completed runs."""
    answered = list[str]()
    over = threading.Event()

    def ask(session_id: str) -> None:
        body = {"message": "hello", "session_id": session_id, "stream": False}
        while not over.is_set():
            # A process that is killed has connections open.
            with contextlib.suppress(httpx2.TransportError):
                answer = server.client.post("/agents/echo/runs", json=body)
                assert answer.status_code == 200
                answered.append(answer.json()["run_id"])
            # The load shows the same with pauses, and the cores are free for the workers.
            over.wait(0.05)

    with ThreadPoolExecutor(4) as pool:
        callers = [pool.submit(ask, f"caller{number}") for number in range(4)]
        try:
            yield answered
        finally:
            over.set()
        for caller in callers:
            caller.result()


def test_pause_before_a_replacement_grows() -> None:
    backoff = Backoff()
    pauses = [backoff.next_pause(0.2) for _ in range(8)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, MAXIMUM_PAUSE, MAXIMUM_PAUSE]
    assert backoff.next_pause(STEADY_SECONDS) == 0
    assert backoff.next_pause(0) == 0.1


def break_port(deployment: Deployment) -> None:
    """Do nothing: the test itself holds the port."""


def break_key(deployment: Deployment) -> None:
    (deployment.folder / "keys" / "signing.pub.pem").unlink()


def break_tool(deployment: Deployment) -> None:
    (deployment.folder / "world_tools.py").write_text("import nothing_of_this_name\n")


def break_database(deployment: Deployment) -> None:
    (deployment.folder / "main.db").write_bytes(
        b"this is no database, and long enough to be seen" * 99
    )


@pytest.mark.parametrize("wrong", [break_port, break_key, break_tool, break_database])
def test_failed_start_is_reported_once(
    deployment: Deployment, wrong: Callable[[Deployment], None]
) -> None:
    wrong(deployment)
    place = {"environment": os.environ, "folder": deployment.folder}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1] if wrong is break_port else 0
        words = ("serve", "--config", str(deployment.path), f"--port={port}")
        one = run_command(*words, **place)
        many = run_agentctl(*words, "--workers", "2", cwd=deployment.folder)
    assert (many.returncode, many.stdout.decode()) == (one.code, one.stdout)
    assert many.stderr.decode() == one.stderr
    assert one.code > 0
    assert one.stderr.startswith("error: ")
    assert one.stderr.count("error: ") == 1
    assert (deployment.folder / "main.db").exists() == (wrong in (break_tool, break_database))


def test_workers_end_when_the_supervisor_dies(deployment: Deployment) -> None:
    drain_seconds(deployment, 600)
    with serve_with_two_workers(deployment) as server:
        workers = server.workers()
        runs = server.one_each()
        port = int(server.served.url.rpartition(":")[2])
        os.kill(server.parent, signal.SIGKILL)
        server.served.process.wait()

        # They drain and release the port for a new server.
        wait_for(lambda: is_free(port))
        assert {server.status(run_id) for run_id in runs.values()} == {"RUNNING"}

        with serve_in_thread(deployment) as host:
            for run_id, session_id in server.rows("SELECT run_id, session_id FROM runs"):
                cancel = f"/agents/hang/runs/{run_id}/cancel?session_id={session_id}&wait=30"
                answer = host.client.post(cancel, headers=server.headers)
                assert answer.json()["cancel"] == "stopped"
        wait_for_ends(workers, server.served.log)
        assert {server.status(run_id) for run_id in runs.values()} == {"CANCELLED"}
        assert server.rows("SELECT * FROM workers") == []


def test_starting_workers_end_when_the_supervisor_dies(deployment: Deployment) -> None:
    tools = deployment.folder / "world_tools.py"
    tools.write_text(f"{SLOW_IMPORT}\n{tools.read_text()}")
    port = find_free_port()
    importing = deployment.folder / "importing"
    options = ("--config", str(deployment.path), "--port", str(port), "--workers", "2")
    with (deployment.folder / "log").open("wb") as log:
        process = start_agentctl(
            "serve", *options, env=dict(os.environ), cwd=deployment.folder, stderr=log
        )
    try:
        wait_for(lambda: importing.exists() and importing.read_text().count("\n") == 2)
        workers = list(map(int, importing.read_text().split()))
    finally:
        process.kill()
        process.wait()
    wait_for_ends(workers, deployment.folder / "log")
    assert is_free(port)


def is_free(port: int) -> bool:
    try:
        bind_socket("127.0.0.1", port).close()
    except Exception:
        return False
    return True


def test_signal_during_the_start_ends_it(deployment: Deployment) -> None:
    log = deployment.folder / "server.log"
    options = ("--config", str(deployment.path), "--port", "0", "--workers", "2")
    with log.open("wb") as said:
        process = start_agentctl("serve", *options, env=dict(os.environ), stderr=said)
    try:
        wait_for((deployment.folder / "main.db").exists)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
    assert log.read_text() in ("stopped\n", "stopping\nstopped\n")


def test_child_programs_do_not_inherit_the_port() -> None:
    with bind_socket("127.0.0.1", 0) as listener:
        os.set_inheritable(listener.fileno(), True)
        with adopt_socket(os.dup(listener.fileno())) as taken:
            assert not os.get_inheritable(taken.fileno())


def test_cancel_of_an_mcp_call_reaches_another_worker(
    pair: WorkerServer, model_endpoint: ModelEndpoint
) -> None:
    first, second = pair.workers()
    before = model_endpoint.open_calls()
    with pair.through(first) as calling, pair.through(second) as cancelling:
        wire = McpWire(calling)
        with wire.call("agent_hang", 1, message="x") as messages:
            model_endpoint.wait_for_open(before + 1)
            assert wire.cancel(1, through=cancelling).status_code == 202
            (last,) = messages
        assert last["result"]["isError"]
        model_endpoint.wait_for_open(before)
        with wire.call("agent_hang", 2, message="x") as messages:
            model_endpoint.wait_for_open(before + 1)
            assert cancelling.delete("/mcp", headers=wire.headers).status_code == 204
            list(messages)
        model_endpoint.wait_for_open(before)
