"""`agentctl top`: the screen on a real server, driven by keys."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from agentctl.cli.target import Target, TargetOptions, open_target
from agentctl.errors import Unauthenticated, Unavailable
from agentctl.interface.requests import RunFilter
from agentctl.remote import RemoteOperations
from agentctl.server import create_app as create_server
from agentctl.top.app import TopApp
from agentctl.top.command import create_app
from agentctl.top.feed import Row, RunFeed, arrange_runs, matches
from agentctl.top.head import LONGEST_PAUSE, ConnectionState, count_runs, describe_failure
from agentctl.top.list import RecordTable
from agentctl.top.texts import build_cells, draw_facts, draw_runs
from tests.cli.conftest import Agentctl, Terminal
from tests.cli.demo import Demo
from tests.cli.held_tool import HOLD, NAPPER
from tests.commands import shift_clock
from tests.conditions import PATIENCE, wait_for
from tests.deployment import ADMIN, create_deployment
from tests.endpoint import ModelEndpoint
from tests.server.threaded_server import ThreadedServer, serve_in_thread

EXTRA = """
[[agents]]
id = "clerk"
name = "Clerk"
model = "echo"

[[agents]]
id = "poet"
name = "Poet"
model = "hang"

[[agents]]
id = "payer"
object = "paying_agent:wait_for_people"

[[teams]]
id = "support"
name = "Support"
mode = "broadcast"
model = "echo"
members = ["clerk", "poet"]

[[teams]]
id = "outer"
name = "Outer"
mode = "broadcast"
model = "echo"
members = ["jam"]
"""

Journey = Callable[["Screen"], Awaitable[None]]


@dataclass
class Screen:
    """The screen, and the keys that drive it."""

    app: TopApp
    pilot: Pilot[None]

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait for a condition."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, self.draw()
            await asyncio.sleep(0.05)

    async def see(self, *texts: str, gone: tuple[str, ...] = ()) -> None:
        """Wait until texts are on the screen, and others are not."""

        def is_seen() -> bool:
            shown = self.draw()
            return all(text in shown for text in texts) and not any(text in shown for text in gone)

        await self.until(is_seen)

    def draw(self) -> str:
        """Return the screen as text."""
        strips = self.app.screen._compositor.render_strips()
        return "\n".join(strip.text for strip in strips)

    async def filter(self, words: str) -> None:
        """Put words into the filter, as typing does."""
        self.app.query_one("#filter", Input).value = words
        await self.see(f"filter: {words}")


@pytest.fixture(autouse=True)
def without_color(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variable that Textual removes from the environment, and restore it."""
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[ThreadedServer]:
    folder = tmp_path_factory.mktemp("top")
    url = model_endpoint.base_url
    (folder / "top_tools.py").write_text(HOLD)
    shutil.copy(Path(__file__).parents[1] / "approvals" / "paying_agent.py", folder)
    deployment = create_deployment(
        folder, url, extra=NAPPER.format(url=url, module="top_tools") + EXTRA
    )
    with serve_in_thread(deployment, create_server(deployment.settings)) as host:
        yield host


def start(
    server: ThreadedServer,
    component: str,
    session: str,
    message: str,
    *,
    waits: bool = False,
    user: str = "me",
) -> str:
    """Start a run and return its id; with `waits` after its end."""
    body = {"message": message, "session_id": session, "stream": False, "background": not waits}
    headers = server.bearer(user, "agents:run", "teams:run")
    answer = server.client.post(f"/{component}/runs", json=body, headers=headers)
    assert answer.status_code in (200, 202), answer.text
    return str(answer.json()["run_id"])


def cancel(
    server: ThreadedServer,
    component: str,
    session: str,
    run_id: str,
    *,
    user: str = "me",
    wait: int = 0,
) -> None:
    """Cancel a run, so that it does not outlive its test."""
    server.client.post(
        f"/{component}/runs/{run_id}/cancel",
        params={"session_id": session, "wait": wait},
        headers=server.bearer(user, "agents:run", "teams:run"),
    )


def on_screen(
    server: ThreadedServer,
    journey: Journey,
    *,
    token: str | None = None,
    read_only: str = "",
    size: tuple[int, int] = (90, 30),
    user: str | None = None,
) -> None:
    """Open the screen on the server, and follow a journey."""
    token = token or server.deployment.token("boss", ADMIN)

    async def main() -> None:
        async with RemoteOperations(server.url, token) as operations:
            target = Target(operations, f"on {server.url}", token=token)
            await follow(target, journey, size=size, read_only=read_only, user=user)

    asyncio.run(main())


async def follow(
    target: Target,
    journey: Journey,
    *,
    size: tuple[int, int],
    read_only: str = "",
    user: str | None = None,
) -> None:
    wanted = RunFilter(user_id=user)
    app = create_app(target, wanted, every=0.2, caller="boss (admin)", read_only=read_only)
    async with app.run_test(size=size) as pilot:
        await journey(Screen(app, pilot))


def test_cancel_shows_both_facts(server: ThreadedServer) -> None:
    run = start(server, "agents/hang", "top-1", "Wait")

    async def journey(screen: Screen) -> None:
        await screen.filter("session:top-1")
        await screen.see("● running", "hang", f"{run[:13]} · session top-1")
        await screen.press("c")
        await screen.see("Cancel 1 run?", "Keep running")
        await screen.press("tab", "enter")
        await screen.see("cancel requested: 1 of 1", "stopped: 1 of 1", "by boss")
        await screen.press("escape")
        await screen.see("■ stopped", gone=("Cancel 1 run?",))

    on_screen(server, journey)


def test_transcript_of_a_live_run_has_its_text_so_far(server: ThreadedServer) -> None:
    run = start(server, "agents/half", "top-half", "Begin")

    async def journey(screen: Screen) -> None:
        await screen.filter("session:top-half")
        await screen.see("● running", f"{run[:13]} · session top-half", "[transcript]")
        await screen.see("one two three")

    on_screen(server, journey)
    cancel(server, "agents/half", "top-half", run)


def test_events_are_not_drawn_after_the_screen_is_closed(server: ThreadedServer) -> None:
    run = start(server, "agents/half", "top-x", "Begin")
    screens = list[Screen]()

    async def journey(screen: Screen) -> None:
        screens.append(screen)
        await screen.filter("session:top-x")
        await screen.see("● running")
        await screen.press("e")
        await screen.until(lambda: screen.app._events is not None)

    on_screen(server, journey)
    cancel(server, "agents/half", "top-x", run)
    # A timer that is due while the screen closes.
    screens[0].app._draw_events()


def test_cancel_names_work_that_goes_on(server: ThreadedServer) -> None:
    start(server, "agents/napper", "top-2", '{"name": "top-2"}')

    async def journey(screen: Screen) -> None:
        await screen.filter("session:top-2")
        await screen.see("● running")
        await screen.press("e")
        await screen.see("calls hold")
        await screen.press("c", "tab", "enter")
        await screen.see("tool hold has not returned", "stopped: 0 of 1")
        await screen.press("escape")
        await screen.see("■ stopped!")
        (server.deployment.folder / "top-2").touch()
        await screen.see("■ stopped ", gone=("stopped!",))

    on_screen(server, journey)


def test_paused_run_is_decided_on_the_screen(server: ThreadedServer) -> None:
    """The first approval has a policy that the user of the run may not decide about."""
    run = start(server, "agents/payer", "top-pay", "other ask")

    async def journey(screen: Screen) -> None:
        await screen.filter("session:top-pay")
        await screen.see("‖ paused", "1 paused", "waits", "for a decision about pay")
        await screen.press("t")
        await screen.see("‖ pay", "‖ ask")
        await screen.press("a")
        await screen.see("tool", "argument amount", "10", "and 1 more", "Approve", "Reject")
        await screen.until(lambda: is_focused(screen, "later"))
        await screen.press("tab", "enter")
        await screen.see("Which way?", "Answer", gone=("Approve",))
        await screen.until(lambda: is_focused(screen, "later"))
        await screen.press("shift+tab", *"up", "tab", "tab", "tab", "enter")
        await screen.see("answer does not match its schema")
        # A button ignores keys while it is drawn as pressed.
        await screen.until(lambda: not screen.app.screen.query("Button.-active"))
        screen.app.screen.query_one("#note", Input).value = "left"
        await screen.press("enter")
        await screen.see("✓ completed", gone=("Which way?",))

    on_screen(server, journey, size=(110, 36))
    record = server.client.get(f"/runs/{run}", headers=server.bearer("boss", ADMIN)).json()
    assert record["content"] == "Results: paid, left"


def is_focused(screen: Screen, widget: str) -> bool:
    focused = screen.app.focused
    return focused is not None and focused.id == widget


def test_all_shown_runs_are_cancelled_after_their_number(server: ThreadedServer) -> None:
    """The tree of a team in a team has three levels, and its members stop with it."""
    start(server, "teams/outer", "top-3", "Sing")
    start(server, "agents/hang", "top-3b", "Wait")

    async def journey(screen: Screen) -> None:
        await screen.filter("session:top-3")
        await screen.see("outer team", "└ ", "jam team", "  ├ ", "  └ ", "trickle")
        await screen.press("C")
        await screen.see("Cancel 2 runs and 3 of members?")
        await screen.press("tab", "enter")
        await screen.see("type 2 first", "Cancel 2 runs")
        await screen.press("2", "tab", "tab", "enter")
        await screen.see("cancel requested: 2 of 2", "stopped: 2 of 2")

    on_screen(server, journey)


def test_closed_dialog_cancels_nothing(server: ThreadedServer) -> None:
    run = start(server, "agents/hang", "top-4", "Wait")

    async def journey(screen: Screen) -> None:
        await screen.filter("session:top-4")
        await screen.see("● running")
        await screen.press("c")
        await screen.see("Cancel 1 run?")
        await screen.press("enter")
        await screen.see("● running", gone=("Cancel 1 run?",))

    on_screen(server, journey)
    headers = server.bearer("boss", ADMIN)
    record = server.client.get(f"/runs/{run}", headers=headers).json()
    assert (record["status"], record["cancel_requested_at"]) == ("RUNNING", None)
    cancel(server, "agents/hang", "top-4", run)


def test_readers_have_no_cancel(server: ThreadedServer) -> None:
    run = start(server, "agents/hang", "top-5", "Wait")

    async def journey(screen: Screen) -> None:
        await screen.filter("session:top-5")
        await screen.see("● running", "read-only: --read-only", gone=("c cancel",))
        await screen.press("c", "C")
        assert len(screen.app.screen_stack) == 1

    on_screen(server, journey, read_only="--read-only", size=(90, 15))
    cancel(server, "agents/hang", "top-5", run)


def test_views_show_sessions_components_and_help(server: ThreadedServer) -> None:
    start(server, "teams/choir", "top-6", "Sing", waits=True)

    async def journey(screen: Screen) -> None:
        await screen.press("2")
        await screen.see("[2 sessions]", "NAME", "top-6", "choir team")
        await screen.press("slash", *"top-6", "enter")
        await screen.see("session top-6", "What the members report")
        await screen.press("r")
        await screen.see("[1 runs]", "filter: session:top-6", "├ ", "└ ")
        await screen.press("t")
        await screen.see("total ", "█", "[timeline]")
        await screen.press("enter")
        await screen.see("[timeline]", gone=("COMPONENT",))
        await screen.press("escape", "3")
        await screen.see("[3 components]", "DESCRIPTION", "Answers as echo")
        await screen.press("4")
        await screen.see("[4 workers]", "WORKER", "HEARTBEAT")
        await screen.press("question_mark")
        await screen.see("timeline of the selected run", "quit; runs continue")
        await screen.press("escape", "escape")
        await screen.see("[1 runs]", gone=("quit; runs continue",))

    on_screen(server, journey, size=(90, 30))


class Relay:
    """A way to a server that a test closes and opens again on the same port."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._writers: list[asyncio.StreamWriter] = []
        self.port = 0

    async def open(self) -> None:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._listener.sockets[0].getsockname()[1]

    def close(self) -> None:
        self._listener.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers += [writer, forth]
        await asyncio.gather(self._pass(reader, forth), self._pass(back, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
        writer.close()


def test_lost_server_is_named_and_found_again(server: ThreadedServer) -> None:
    run = start(server, "agents/hang", "top-7", "Wait")
    token = server.deployment.token("boss", ADMIN)

    async def main() -> None:
        relay = Relay(server.port)
        await relay.open()

        async def journey(screen: Screen) -> None:
            await screen.see("● running", gone=("no answer since",))
            relay.close()
            await screen.see("no answer since", "trying again in", "no server listens", "● running")
            await relay.open()
            await screen.press("u")
            await screen.see("● running", gone=("no answer since",))

        url = f"http://127.0.0.1:{relay.port}"
        async with RemoteOperations(url, token) as operations:
            await follow(Target(operations, f"on {url}", token=token), journey, size=(90, 30))
        relay.close()

    asyncio.run(main())
    cancel(server, "agents/hang", "top-7", run)


def test_pauses_double_up_to_their_limit() -> None:
    state = ConnectionState()
    pauses = [state.fail(Unavailable("gone"), None, 0.5) for _ in range(6)]
    assert pauses == [1, 2, 4, 8, LONGEST_PAUSE, LONGEST_PAUSE]
    assert "no answer since" in state.describe()
    state.succeed()
    assert state.describe() == ""
    assert state.fail(Unavailable("gone"), None, 0.5) == 1


def test_expired_token_is_named(server: ThreadedServer) -> None:
    with shift_clock(-86_400):
        expired = server.deployment.token("boss", ADMIN)
    assert "the token expired at 20" in describe_failure(Unauthenticated(), expired)
    assert "AGENTCTL_TOKEN" in describe_failure(Unauthenticated(), None)

    async def journey(screen: Screen) -> None:
        await screen.see("access refused since", "the token expired at", "start top again")

    on_screen(server, journey, token=expired)


class CountedOperations:
    """Operations of a server that count the calls of each."""

    def __init__(self, operations: RemoteOperations) -> None:
        self._operations = operations
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(self._operations, name)


def test_refresh_is_one_request_also_when_runs_end(server: ThreadedServer) -> None:
    run = start(server, "agents/hang", "top-8", "Wait")

    async def main() -> Counter[str]:
        token = server.deployment.token("boss", ADMIN)
        async with RemoteOperations(server.url, token) as operations:
            counted = CountedOperations(operations)
            feed = RunFeed(counted, RunFilter())  # type: ignore[arg-type]
            await feed.refresh()
            assert feed.runs[run]["status"] in ("PENDING", "RUNNING")
            assert "messages" not in feed.runs[run]
            cancel(server, "agents/hang", "top-8", run, wait=30)
            await feed.refresh()
            assert feed.runs[run]["status"] == "CANCELLED"
            assert feed.count_ended()["stopped"] >= 1
            return counted.calls

    assert asyncio.run(main()) == {"get_runs": 2}


def test_live_runs_behind_many_newer_ones_are_read(
    server: ThreadedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentctl.top.feed.MAXIMUM_LIMIT", 1)
    old = start(server, "agents/hang", "top-9", "Wait")
    start(server, "agents/echo", "top-9b", "hello", waits=True)

    async def main() -> None:
        token = server.deployment.token("boss", ADMIN)
        async with RemoteOperations(server.url, token) as operations:
            feed = RunFeed(operations, RunFilter())
            await feed.refresh()
            assert feed.runs[old]["status"] in ("PENDING", "RUNNING")
            cancel(server, "agents/hang", "top-9", old, wait=30)
            await feed.refresh()
            assert feed.runs[old]["status"] == "CANCELLED"

    asyncio.run(main())


def test_burst_of_runs_is_counted_as_a_whole(
    server: ThreadedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More runs end between two readings than one of them has."""
    monkeypatch.setattr("agentctl.top.feed.MAXIMUM_LIMIT", 2)

    async def main() -> None:
        token = server.deployment.token("boss", ADMIN)
        async with RemoteOperations(server.url, token) as operations:
            feed = RunFeed(operations, RunFilter(user_id="burst"))
            await feed.refresh()
            for number in range(5):
                start(server, "agents/echo", f"burst-{number}", "x", waits=True, user="burst")
            for number in range(3):
                agent = "agents/http-500"
                start(server, agent, f"burst-e{number}", "x", waits=True, user="burst")
            await feed.refresh()
            assert feed.count_ended() == {"completed": 5, "failed": 3, "stopped": 0}
            assert feed.counted_seconds == 300
            assert "ended in 5 min: 5 ✓  3 ✗  0 ■" in count_runs(feed, 200)
            assert "tokens/min seen" in count_runs(feed, 200)

    asyncio.run(main())


def test_interrupt_ends_the_screen(server: ThreadedServer) -> None:
    async def journey(screen: Screen) -> None:
        await screen.see("agentctl top")
        await screen.press("ctrl+c")
        await screen.until(lambda: screen.app.return_code == 130)

    on_screen(server, journey)


def test_numbers_of_runs_fit_one_line() -> None:
    feed = RunFeed(None, RunFilter())  # type: ignore[arg-type]
    feed.runs = {str(n): {"status": "RUNNING"} for n in range(1_200)}
    assert "queued" in count_runs(feed, 120)
    assert len(count_runs(feed, 80)) <= 80
    assert count_runs(feed, 60).startswith("1200 running · ended in ")


def test_local_screen_has_the_workers(demo: Demo) -> None:
    demo.run("top-10", "word " * 2_000, agent="slow", leave=True)

    async def journey(screen: Screen) -> None:
        await screen.see("● running", "slow")
        await screen.press("4")
        await screen.see("● working", "alive; 1 live run", str(demo.process.pid))

    async def main() -> None:
        async with open_target(TargetOptions(config=demo.config)) as target:
            await follow(target, journey, size=(90, 30))

    asyncio.run(main())


@pytest.mark.parametrize("hostile", ["\x1b[31mred\x1b[0m", "\u202egnp", "[bold]x[/bold]", "a\nb"])
def test_hostile_texts_are_shown_as_text(hostile: str) -> None:
    run: dict[str, Any] = {
        "run_id": hostile,
        "session_id": hostile,
        "agent_id": hostile,
        "user_id": hostile,
        "status": "ERROR",
        "error": {"code": hostile, "detail": hostile},
        "input": hostile,
        "content": hostile,
        "created_at": "2030-01-31T12:00:00Z",
        "stopped_at": None,
        "cancel_reason": hostile,
    }
    cells = [str(each) for each in build_cells(Row(run))]
    texts = [*cells, draw_facts(run).plain, draw_runs([run], {}, 100, timeline=False).plain]
    for text in texts:
        assert not set(text) & {"\x1b", "\u202e"}
    assert "\n" not in "".join(cells)
    huge = {**run, "input": "x" * 1_000_000, "agent_id": "y" * 1_000_000}
    assert all(each.cell_len < 1_000 for each in build_cells(Row(huge)))


def test_words_filter_runs() -> None:
    run = {
        "run_id": "r1", "agent_id": "clerk", "user_id": "ada", "session_id": "s1",
        "status": "RUNNING",
    }  # fmt: skip
    matching = ("", "clerk", "agent:clerk", "user:ada status:running", "R1")
    assert all(matches(run, words) for words in matching)
    assert not any(matches(run, words) for words in ("bob", "team:clerk", "agent:clerk user:bob"))


def test_tree_is_sorted_on_each_level() -> None:
    runs: list[dict[str, Any]] = [
        {
            "run_id": run_id,
            "parent_run_id": parent,
            "created_at": at,
            "status": status,
            "total_tokens": tokens,
        }
        for run_id, parent, at, status, tokens in (
            ("a", None, "1", "COMPLETED", 9),
            ("b", None, "2", "RUNNING", 1),
            ("c", None, "3", "RUNNING", 5),
            ("b1", "b", "4", "RUNNING", 0),
            ("b2", "b", "5", "RUNNING", 0),
            ("b11", "b1", "6", "RUNNING", 0),
            ("x", "gone", "7", "ERROR", 0),
            ("loop", "loop", "0", "ERROR", 0),
        )
    ]

    def order(sort: str) -> str:
        return " ".join(f"{row.run_id}{row.level}" for row in arrange_runs(runs, "", sort))

    assert order("newest") == "c0 b0 b11 b112 b21 x0 a0 loop0"
    assert order("oldest") == "b0 b11 b112 b21 c0 loop0 a0 x0"
    assert order("tokens") == "c0 b0 b11 b112 b21 a0 x0 loop0"


def test_off_a_terminal_top_is_refused(agentctl: Agentctl, demo: Demo) -> None:
    ended = agentctl("top", "--config", str(demo.config))
    assert ended.code == 2
    assert "top needs a terminal" in ended.stderr


def test_a_terminal_shows_the_screen(terminal: Terminal, demo: Demo) -> None:
    seen = terminal(
        "top",
        "--url",
        demo.url,
        "--timeout",
        "20",
        env={"AGENTCTL_TOKEN": demo.token, "TERM": "xterm"},
        when="agentctl top",
        types="q",
    )
    assert seen.code == 0


@pytest.fixture(scope="module")
def busy(server: ThreadedServer) -> Iterator[ThreadedServer]:
    """The server with runs of `ada` in different states."""
    start(server, "agents/http-500", "busy-1", "Look up the price", waits=True, user="ada")
    start(server, "agents/clerk", "busy-2", "Price of tea?", waits=True, user="ada")
    poet = start(server, "agents/poet", "busy-3", "Write a haiku", user="ada")
    team = start(server, "teams/support", "busy-4", "Order two teas", user="ada")
    napper = start(server, "agents/napper", "busy-5", '{"name": "busy-5"}', user="ada")
    began = server.deployment.folder / "busy-5.began"
    headers = server.bearer("boss", ADMIN)

    def get(run_id: str) -> dict[str, Any]:
        record: dict[str, Any] = server.client.get(f"/runs/{run_id}", headers=headers).json()
        return record

    wait_for(lambda: began.exists() and len(get(team)["member_runs"]) >= 2)
    cancel(server, "agents/napper", "busy-5", napper, user="ada")
    yield server
    (server.deployment.folder / "busy-5").touch()
    cancel(server, "agents/poet", "busy-3", poet, user="ada")
    cancel(server, "teams/support", "busy-4", team, user="ada")


SEEN = ("● running", "support team", "├ ", "✓ completed", "└ ", "■ stopped!", "✗ failed", "poet")

NORMAL = (
    (r"http://[0-9.:]+", "URL"),
    (r"[0-9a-f]{8}-[0-9a-f]{4}", "RUN-ID"),
    (r"[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?", "TIME"),
    (r"[0-9]+(\.[0-9]+)? (ms|s|min)\b( [0-9]+ s)?", "SPAN"),
    (r"[0-9]+%", "N%"),
    (r"[0-9.]+( k)? tokens/min", "N tokens/min"),
    (r"(cancel requested|MODEL_UNAVAILABLE).*…", r"\1 …"),
    (r"[▁-▇]+|█+|▒+", ""),
    (r"─+", "─"),
    (r" +", " "),
)
"""Replacements of texts that differ from run to run."""


def normalize(screen: str) -> str:
    for pattern, text in NORMAL:
        screen = re.sub(pattern, text, screen)
    return "".join(f"{line.rstrip()}\n" for line in screen.splitlines())


@pytest.mark.parametrize(("size", "keys"), [((80, 24), "t"), ((120, 40), "")])
def test_screens_are_as_expected(
    busy: ThreadedServer, size: tuple[int, int], keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without colors; AGENTCTL_TEST_WRITE=1 writes the expected screens."""
    monkeypatch.setattr("agentctl.top.feed.ENDED_SECONDS", 3_600.0)
    golden = Path(__file__).with_name("golden") / f"top-{size[0]}.txt"
    shown: list[str] = []

    async def journey(screen: Screen) -> None:
        await screen.see(*SEEN)
        screen.app.query_one(RecordTable).move_cursor(row=5)
        if keys:
            await screen.press(*keys)
        await screen.see("[timeline]" if keys else "[transcript]", "session busy-2")

        def is_expected() -> bool:
            shown[:] = [normalize(screen.draw())]
            return shown[0] == golden.read_text()

        if os.environ.get("AGENTCTL_TEST_WRITE"):
            await asyncio.sleep(3)
            golden.write_text(normalize(screen.draw()))
        await screen.until(is_expected)

    on_screen(busy, journey, size=size, user="ada")


@pytest.mark.skipif(
    "AGENTCTL_TEST_SCREENSHOTS" not in os.environ,
    reason="writes docs/images: AGENTCTL_TEST_SCREENSHOTS=1",
)
def test_pictures_of_the_documentation(
    busy: ThreadedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write the pictures of docs/top.md."""
    monkeypatch.delenv("NO_COLOR")
    folder = Path(__file__).parents[2] / "docs" / "images"

    def save(screen: Screen, name: str) -> None:
        picture = screen.app.export_screenshot(title="agentctl top")
        # A picture of the documentation loads no font of another host.
        picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
        picture = picture.replace(busy.url, "https://agents.example.com")
        (folder / f"top-{name}.svg").write_text(picture)

    async def journey(screen: Screen) -> None:
        await screen.see(*SEEN, "session busy-4", "● running ·")
        save(screen, "runs")
        screen.app.query_one(RecordTable).move_cursor(row=4)
        await screen.see("session busy-5")
        await screen.press("e")
        await screen.see("calls hold")
        await screen.press("question_mark")
        await screen.see("quit; runs continue")
        await screen.press("escape", "e")
        (busy.deployment.folder / "busy-5").touch()
        start(busy, "agents/napper", "busy-6", '{"name": "busy-6"}', user="ada")
        await screen.see("napper", "● running", gone=("stopped!",))
        screen.app.query_one(RecordTable).move_cursor(row=0)
        await screen.see("session busy-6")
        await screen.press("c")
        await screen.see("Cancel 1 run?")
        await screen.press("tab", "enter")
        await screen.see("tool hold has not returned", "cancel requested: 1 of 1")
        save(screen, "cancel")
        (busy.deployment.folder / "busy-6").touch()

    on_screen(busy, journey, size=(100, 30), user="ada")
