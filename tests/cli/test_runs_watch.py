"""`agentctl runs watch`, locally and on a server."""

from __future__ import annotations

import io
import itertools
import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agentctl.cli import follow
from agentctl.cli.io import IO, using_io
from agentctl.cli.show import event_lines
from agentctl.cli.show.answer import RunOutput
from agentctl.cli.show.event_lines import EventLines
from agentctl.cli.show.output import write_text
from agentctl.records.events import Event, parse_event
from tests.cli.conftest import Agentctl, Terminal
from tests.cli.demo import Demo, serving
from tests.cli.local_project import running_command, wait_for_line, write_config
from tests.cli.projects import make_project
from tests.cli.proxy import proxied
from tests.kit.conditions import PATIENCE

_numbers = itertools.count()


@pytest.fixture
def session() -> str:
    return f"w-{next(_numbers)}"


@pytest.fixture
def slow(demo: Demo, session: str, agentctl: Agentctl) -> Iterator[str]:
    """A run that is at work, in the background; its id."""
    run_id = demo.run(session, "one two three", agent="slow", leave=True)
    yield run_id
    agentctl("runs", "cancel", run_id, "--config", str(demo.config))


def test_a_finished_run_is_replayed(through: Agentctl, demo: Demo, session: str) -> None:
    run_id = demo.run(session, "hello\n there", leave=True)
    ended = through("runs", "watch", run_id)
    assert (ended.code, ended.stdout) == (0, "hello\n there\n")
    first, *_, last = ended.stderr.splitlines()
    assert first.startswith(f"run {run_id} of agent echo, session {session}, is ")
    assert last.startswith(f"run {run_id} completed, ")


def test_watch_in_every_output_format(through: Agentctl, demo: Demo, session: str) -> None:
    run_id = demo.run(session, "hello", leave=True)
    lines = through("runs", "watch", run_id, "-o", "jsonl").lines
    events = [json.loads(line)["event"] for line in lines]
    assert (events[0], events[-1]) == ("RunStarted", "RunCompleted")
    record = through("runs", "watch", run_id, "-o", "json")
    assert record.stdout == through("runs", "get", run_id, "-o", "json").stdout
    assert through("runs", "watch", run_id, "-o", "name").lines == [run_id]


def test_watch_resumes_after_an_event(through: Agentctl, demo: Demo, session: str) -> None:
    run_id = demo.run(session, "hello", leave=True)
    through("runs", "watch", run_id)
    whole = through("runs", "watch", run_id, "-o", "jsonl").lines
    rest = through("runs", "watch", run_id, "-o", "jsonl", "--after", "1").lines
    assert rest == whole[2:]
    nothing_new = through("runs", "watch", run_id, "--after", str(len(whole) - 2))
    assert (nothing_new.code, nothing_new.stdout) == (0, "")
    assert through("runs", "watch", run_id, "--after", "-1").code == 2


def test_watch_with_component_and_session(through: Agentctl, demo: Demo, session: str) -> None:
    run_id = demo.run(session, "hello", leave=True)
    known = ("--agent", "echo", "--session", session)
    assert through("runs", "watch", run_id, *known).stdout == "hello\n"
    assert through("runs", "watch", run_id, *known, "-o", "name").lines == [run_id]
    assert through("runs", "watch", run_id, "--agent", "slow", "--session", session).code == 5
    assert through("runs", "watch", "nowhere").code == 5


@pytest.mark.parametrize("kind", ["team", "workflow"])
def test_members_and_steps_are_on_stderr(
    agentctl: Agentctl, demo: Demo, session: str, kind: str
) -> None:
    name = {"team": "duo", "workflow": "relay"}[kind]
    here = ("--config", str(demo.config))
    start = ("runs", "start", f"--{kind}", name, "-m", "good day", "--session", session)
    run_id = json.loads(agentctl(*start, "-o", "jsonl", *here).lines[0])["run_id"]
    seen = agentctl("runs", "watch", run_id, *here)
    assert (seen.code, seen.stdout) == (0, "good day\n")
    beside = [line.strip() for line in seen.stderr.splitlines()[1:-1]]
    if kind == "team":
        assert beside[0].startswith('calls delegate_task_to_member {"')
        assert beside[1:4] == ["Echo: started", "Echo: good day", "Echo: completed"]
        assert beside[4] == "delegate_task_to_member returned: good day"
    else:
        assert [line for line in beside if line.startswith("step")] == [
            "step repeat", "step repeat completed", "step discuss", "step discuss completed",
        ]  # fmt: skip
        assert "Duo: good day" in beside


def test_progress_of_code_is_on_stderr(agentctl: Agentctl, tmp_path: Path) -> None:
    (tmp_path / "watched_code.py").write_text(
        "from agentctl import Progress\n\n\nasync def answer(message, context):\n"
        '    context.progress("searching", fraction=0.25)\n    yield Progress(fraction=0.5)\n'
        '    context.progress("done")\n    yield message\n'
    )
    tables = '[[databases]]\nid = "main"\nurl = "sqlite:///runs.db"\n'
    agent = '[[agents]]\nid = "code"\nobject = "watched_code:answer"\n'
    here = ("--config", str(make_project(tmp_path, rest=tables + agent)))
    start = ("runs", "start", "--agent", "code", "-m", "good day", "-o", "jsonl", *here)
    run_id = json.loads(agentctl(*start).lines[0])["run_id"]
    seen = agentctl("runs", "watch", run_id, *here)
    assert (seen.code, seen.stdout) == (0, "good day\n")
    lines = [line.strip() for line in seen.stderr.splitlines()]
    shown = [line for line in lines if line.startswith("progress: ")]
    assert shown == ["progress: 25% searching", "progress: 50%", "progress: done"]


def test_stderr_is_dim_at_a_terminal(
    terminal: Terminal, agentctl: Agentctl, demo: Demo, session: str
) -> None:
    here = ("--config", str(demo.config))
    start = ("runs", "start", "--team", "duo", "-m", "good day", "--session", session)
    run_id = json.loads(agentctl(*start, "-o", "jsonl", *here).lines[0])["run_id"]
    colors = {"NO_COLOR": "", "TERM": "xterm"}
    seen = terminal("runs", "watch", run_id, *here, env=colors)
    assert "\x1b[2m  Echo: good day\x1b[0m\n" in seen.screen
    assert "\x1b[Kgood day\n" in seen.screen
    assert "\x1b" not in terminal("runs", "watch", run_id, *here).screen


def test_watch_sees_a_cancel_by_another_command(
    demo: Demo, slow: str, environment: dict[str, str], agentctl: Agentctl, tmp_path: Path
) -> None:
    here = ("--config", str(demo.config))
    log = tmp_path / "watch.log"
    watch = ("runs", "watch", slow, *here)
    with running_command(*watch, environment=environment, log=log) as command:
        assert command.stdout.read(8) == b"one two "
        assert agentctl("runs", "cancel", slow, "--reason", "enough", *here).code == 0
        assert command.wait(PATIENCE) == 1
    error = f"error: run {slow} was cancelled\n  cause: enough\n"
    assert log.read_text().endswith(error)


@pytest.mark.parametrize("remotely", [False, True])
def test_an_interrupt_does_not_cancel_the_run(
    terminal: Terminal, demo: Demo, slow: str, agentctl: Agentctl, remotely: bool
) -> None:
    door = ("--url", demo.url) if remotely else ("--config", str(demo.config))
    variables = {"AGENTCTL_TOKEN": demo.token, "TERM": "xterm"} if remotely else {}
    seen = terminal("runs", "watch", slow, *door, types="\x03", when="one two ", env=variables)
    assert seen.code == 130
    assert ("\x1b[Kone two " in seen.screen) == remotely  # a dumb terminal erases no line
    goes_on, again, stop = seen.screen.splitlines()[-3:]
    assert goes_on.endswith(f"interrupted: run {slow} continues")
    assert again.startswith(f"resume with: agentctl runs watch {slow} --after ")
    assert stop == f"cancel it with: agentctl runs cancel {slow} {' '.join(door)}"
    state = agentctl("runs", "get", slow, "-o", "json", "--config", str(demo.config))
    assert json.loads(state.raw)["status"] == "RUNNING"


def test_the_suggested_command_resumes_without_a_gap(
    demo: Demo, slow: str, environment: dict[str, str], tmp_path: Path
) -> None:
    """The process gets signals, which may come while it writes a word."""
    line = f"runs watch {slow} --config {demo.config}"
    text = b""
    for number in range(2):
        log = tmp_path / f"{number}.log"
        with running_command(*line.split(), environment=environment, log=log) as process:
            assert process.stdout is not None
            text += process.stdout.read(8)
            process.send_signal(signal.SIGINT)
            text += process.stdout.read().removesuffix(b"\n")
            assert process.wait(PATIENCE) == 130
        line = log.read_text().partition("resume with: agentctl ")[2].splitlines()[0]
    words = text.decode().split()
    assert words == (["one", "two", "three"] * len(words))[: len(words)]


def test_a_run_without_stored_events_is_waited_for(
    environment: dict[str, str], agentctl: Agentctl, tmp_path: Path
) -> None:
    config = write_config(tmp_path)
    here = ("--config", str(config))
    start = ("runs", "start", "--agent", "slow", "-m", "word", "--no-stream", "--session", "p")
    agentctl("runs", "start", "--agent", "echo", "-m", "x", *here)
    log = tmp_path / "plain.log"
    with running_command(*start, *here, environment=environment, log=log) as worker:
        while not (live := agentctl("runs", "list", "--live", "-o", "name", *here).lines):
            assert worker.poll() is None, log.read_text()
        watching = tmp_path / "watch.log"
        watch = ("runs", "watch", live[0], *here)
        with running_command(*watch, environment=environment, log=watching) as eye:
            wait_for_line(
                watching,
                "no events yet: they are stored only for runs that were started with --stream",
            )
            worker.terminate()
            assert eye.wait(PATIENCE) == 1
            assert eye.stdout.read().startswith(b"word")
        assert watching.read_text().splitlines()[-2].endswith("was cancelled")


def test_a_run_without_a_worker_is_reported(
    environment: dict[str, str], agentctl: Agentctl, tmp_path: Path
) -> None:
    config = write_config(tmp_path)
    here = ("--config", str(config))
    start = ("runs", "start", "--agent", "slow", "-m", "word")
    log = tmp_path / "killed.log"
    with running_command(*start, *here, environment=environment, log=log) as worker:
        assert worker.stdout is not None
        assert worker.stdout.read(10) == b"word word "
        worker.kill()
        worker.wait(PATIENCE)
    run_id = wait_for_line(log, "started run ").partition("started run ")[2].split()[0]
    ended = agentctl("runs", "watch", run_id, *here)
    assert (ended.code, ended.stdout[:4]) == (1, "word")
    assert f"error: run {run_id} has no worker" in ended.stderr
    assert ended.stderr.endswith(
        f"hint: write it with: agentctl doctor --runs --fix {' '.join(here)}\n"
    )


def test_an_interrupted_stream_is_resumed(
    demo: Demo, slow: str, agentctl: Agentctl, environment: dict[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "watch.log"
    interrupted = "the stream was interrupted, resuming in 0.5 s"
    with proxied(demo.url, cut_behind=b"RunContent", times=2) as proxy:
        token = environment | {"AGENTCTL_TOKEN": demo.token}
        watch = ("runs", "watch", slow, "--url", proxy.url)
        with running_command(*watch, environment=token, log=log) as command:
            seen = command.stdout.read(len("one two three one two three one "))
            wait_for_line(log, interrupted, times=2)  # one stream can have had all these words
            agentctl("runs", "cancel", slow, "--config", str(demo.config))
            assert command.wait(PATIENCE) == 1
            seen += command.stdout.read()
    words = seen.decode().split()
    assert proxy.cut == 2
    assert words == (["one", "two", "three"] * len(words))[: len(words)]
    assert log.read_text().count(interrupted) == 2


def test_text_after_a_note_is_complete() -> None:
    def event(name: str, content: str) -> Event:
        data = {"run_id": "r1", "content": content, "metrics": {}}
        return parse_event(name, json.dumps(data))

    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    with using_io(IO(io.StringIO(), out, io.StringIO())):
        output = RunOutput("agent", write=write_text, run_id="r1")
        lines = EventLines(output)
        lines.take(event("RunContent", "one two"))
        lines.flush()  # as before a note about an interrupted stream
        lines.take(event("RunCompleted", "one two three"))
        lines.flush()
    assert out.buffer.getvalue() == b"one two\n three\n"


def test_text_of_members_is_written_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_lines, "MAXIMUM_PARTIAL_LINES", 2)
    texts = [
        ("m1", "one "),
        ("m2", "other"),
        ("m1", "two\nthree\n"),
        ("m3", "third"),
        ("m1", "x" * 401),
        ("m4", "fourth"),
    ]
    errors = io.StringIO()
    with using_io(IO(io.StringIO(), io.TextIOWrapper(io.BytesIO(), "utf-8"), errors)):
        lines = EventLines(RunOutput("team", write=write_text, run_id="r1"))
        for run_id, text in texts:
            data = {"run_id": run_id, "agent_id": run_id.upper(), "content": text}
            lines.take(parse_event("RunContent", json.dumps(data)))

        # Of three members with an unfinished line, the line of the first one has ended.
        shown = ["M1: one two", "M1: three", f"M1: {'x' * 401}", "M2: other"]
        assert [line.strip() for line in errors.getvalue().splitlines()] == shown

        lines.flush()
    last_lines = errors.getvalue().splitlines()[len(shown) :]
    assert [line.strip() for line in last_lines] == ["M3: third", "M4: fourth"]


def test_a_server_that_is_away_is_waited_for(
    demo: Demo, slow: str, agentctl: Agentctl, environment: dict[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "watch.log"
    token = environment | {"AGENTCTL_TOKEN": demo.token}
    with ExitStack() as stack:
        with proxied(demo.url) as proxy:
            watch = ("runs", "watch", slow, "--url", proxy.url)
            watching = running_command(*watch, environment=token, log=log)
            command = stack.enter_context(watching)
            assert command.stdout.read(4) == b"one "
        wait_for_line(log, "the stream was interrupted, resuming in 0.5 s")
        agentctl("runs", "cancel", slow, "--config", str(demo.config))
        with proxied(demo.url, port=proxy.port):
            assert command.wait(PATIENCE) == 1
    assert f"error: run {slow} was cancelled" in log.read_text()


def test_a_killed_server_is_waited_for(
    tmp_path: Path, agentctl: Agentctl, environment: dict[str, str]
) -> None:
    folder = tmp_path / "data"
    log = tmp_path / "watch.log"
    with serving(folder) as server:
        run_id = server.run("k-1", "word", agent="slow", leave=True)
        port = server.url.rpartition(":")[2]
        token = environment | {"AGENTCTL_TOKEN": server.token}
        command = ("runs", "watch", run_id, "--url", server.url)
        with running_command(*command, environment=token, log=log) as process:
            assert process.stdout is not None
            assert process.stdout.read(4) == b"word"
            server.process.kill()
            server.process.wait()
            wait_for_line(log, "the stream was interrupted")
            with serving(folder, "--port", port):
                assert process.wait(PATIENCE) == 1
    assert f"error: run {run_id} failed\n  cause: WORKER_LOST: " in log.read_text()


def test_a_server_that_stays_away_is_an_error(
    agentctl: Agentctl, demo: Demo, slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "RECONNECT_DELAYS", (0.01, 0.02))
    with proxied(demo.url, cut_behind=b"text/event-stream", times=100) as proxy:
        token = {"AGENTCTL_TOKEN": demo.token}
        ended = agentctl("runs", "watch", slow, "--url", proxy.url, env=token)
    assert ended.code == 7
    assert "error: the stream was interrupted and could not be resumed" in ended.stderr
    assert f"resume with: agentctl runs watch {slow} --" in ended.stderr


def test_an_idempotency_key_returns_the_first_run(on_demo: Agentctl, session: str) -> None:
    start = ("runs", "start", "--agent", "echo", "-m", "once", "--session", session)
    keyed = (*start, "--idempotency-key", session, "--no-stream")
    first, second = (on_demo(*keyed, "-o", "json") for _ in range(2))
    assert (first.code, second.code) == (0, 0)
    assert json.loads(first.raw)["run_id"] == json.loads(second.raw)["run_id"]
    other = on_demo(*keyed[:4], "-m", "twice", *keyed[6:])
    assert other.code == 2
    assert "used for another request" in other.stderr


def test_an_interrupt_with_a_key_does_not_cancel_the_first_run(
    agentctl: Agentctl, terminal: Terminal, environment: dict[str, str], tmp_path: Path
) -> None:
    here = ("--config", str(write_config(tmp_path)))
    start = ("runs", "start", "--agent", "slow", "-m", "word", "--idempotency-key", "k", *here)
    with running_command(*start, environment=environment, log=tmp_path / "log") as owner:
        assert owner.stdout.read(4) == b"word"
        guest = terminal(*start, types="\x03", when="word word")
        assert guest.code == 130
        assert "interrupted: check the run with: agentctl runs get " in guest.screen
        assert len(agentctl("runs", "list", "--live", "-o", "name", *here).lines) == 1
        owner.terminate()
        assert owner.wait(PATIENCE) == 128 + signal.SIGTERM
    assert agentctl("runs", "list", *here).lines[1].split("\t")[4] == "CANCELLED"
