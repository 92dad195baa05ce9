"""The views of the screen: runs, sessions, components and workers, each a list with a pane."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import field
from typing import Any, Literal, NamedTuple, Protocol

from rich.text import Text

from agentctl.cli.show.columns import get_last_run
from agentctl.errors import AgentctlError, Forbidden, Unsupported
from agentctl.interface.operations import Operations
from agentctl.interface.requests import (
    MAXIMUM_LIMIT,
    Page,
    RunFilter,
    RunView,
    SessionFilter,
    SessionLocator,
    SessionRunsQuery,
)
from agentctl.light_dataclass import dataclass
from agentctl.records.kinds import KINDS, ComponentKind, Record, find_component
from agentctl.top.feed import SORTS, Run, RunFeed, arrange_runs, is_live, is_paused, is_settled
from agentctl.top.texts import build_cells, cell, draw_runs, format_age, format_state, number
from agentctl.transcripts.model import clean_line

Form = Literal["transcript", "timeline", "events"]

CUT = 2_000
"""Characters of a message or a result in the pane."""

SESSION_RUNS = 20
"""Newest runs of a session that the pane is made of, with those of members."""

COMPONENT_SECONDS = 30.0
"""Seconds between two readings of the components, which change with the configuration only."""


_WORKER_STATES = {
    "dead": ("✗ dead", "red"),
    "working": ("● working", "blue"),
    "idle": ("✓ idle", "green"),
}


class ListColumn(NamedTuple):
    """A column of a list.

    Attributes:
        least: columns of the screen below which it is left out.
        is_right: numbers are at the right.
    """

    name: str
    least: int = 0
    most: int = 24
    is_right: bool = False


class TableRow(NamedTuple):
    """A row of a list; its cells are in the order of the columns of the view."""

    key: str
    cells: list[Text]


class View(Protocol):
    """A list of records of one kind, with a pane about the selected one."""

    name: str
    empty: str
    columns: Sequence[ListColumn]
    sorts: Sequence[str]

    async def refresh(self) -> None:
        """Read the records. An `AgentctlError` leaves the previous ones."""
        ...

    def list_rows(self, words: str, sort: str) -> list[TableRow]:
        """Return the rows that match the words of a filter, in an order of `sorts`."""
        ...

    def find_run(self, key: str) -> Run | None:
        """Return the summary of a run with this key; None in lists of other records."""
        return None

    def find_filter(self, key: str) -> str | None:
        """Return the words that filter the runs of a row; None if there are none."""
        return None

    def get_version(self, key: str) -> object:
        """Return a value that differs after the pane of the row may have changed."""
        ...

    async def read_pane(self, key: str, form: Form, width: int) -> tuple[str, Text]:
        """Return the title and the text of the pane."""
        ...


class RunsView(View):
    """The live and paused runs, and those that ended in the last minute."""

    name = "runs"
    empty = "no live runs; a run that ends stays here for a minute"
    columns: Sequence[ListColumn] = (
        ListColumn("RUN", most=21),
        ListColumn("STATUS", most=14),
        ListColumn("COMPONENT", most=18),
        ListColumn("USER", least=90, most=14),
        ListColumn("AGE", most=9, is_right=True),
        ListColumn("TOKENS", least=70, most=11, is_right=True),
        ListColumn("LAST", most=200),
    )
    sorts: Sequence[str] = tuple(SORTS)

    def __init__(self, feed: RunFeed) -> None:
        self.feed = feed

    async def refresh(self) -> None:
        await self.feed.refresh()

    def list_rows(self, words: str, sort: str) -> list[TableRow]:
        rows = arrange_runs(self.feed.runs.values(), words, sort)
        return [TableRow(row.run_id, build_cells(row)) for row in rows]

    def find_run(self, key: str) -> Run | None:
        return self.feed.runs.get(key)

    def find_filter(self, key: str) -> str | None:
        run = self.feed.runs.get(key)
        return None if run is None else f"session:{run.get('session_id')}"

    def get_version(self, key: str) -> object:
        """Return the summary of an ended run; a live run changes all the time."""
        run = self.feed.runs.get(key)
        return run if run is None or is_settled(run) else time.monotonic()

    async def read_pane(self, key: str, form: Form, width: int) -> tuple[str, Text]:
        operations = self.feed.operations
        run: Record = (await operations.get_run(key, form=RunView("items", CUT))).value
        children: dict[str, list[Record]] = {}
        if run.get("member_runs"):
            # One request for all members, which begin after their run.
            where = SessionLocator(db_id=self.feed.filter.db_id)
            query = SessionRunsQuery(where, after=key, form=RunView("items", CUT))
            session_id = str(run["session_id"])
            for member in (await operations.get_session_runs(session_id, query)).value:
                children.setdefault(str(member.get("parent_run_id")), []).append(member)
        merged = {**(self.feed.runs.get(key) or {}), **run}
        title = f"{clean_line(key[:13])} · session {clean_line(run.get('session_id'))}"
        return title, draw_runs([merged], children, width, timeline=form == "timeline")


class SessionsView(View):
    """The sessions, the last used first."""

    name = "sessions"
    empty = "no sessions yet"
    columns: Sequence[ListColumn] = (
        ListColumn("SESSION", most=20),
        ListColumn("STATUS", most=12),
        ListColumn("COMPONENT", most=18),
        ListColumn("USER", least=90, most=14),
        ListColumn("RUNS", is_right=True),
        ListColumn("TOKENS", least=70, is_right=True),
        ListColumn("USED", is_right=True),
        ListColumn("NAME", most=200),
    )
    sorts: Sequence[str] = ("last used", "tokens", "runs")

    def __init__(self, operations: Operations, filter: RunFilter) -> None:
        self._operations = operations
        self._filter = filter
        self._sessions: dict[str, Record] = {}

    async def refresh(self) -> None:
        runs = self._filter
        where = SessionLocator(runs.component_type, runs.user_id, runs.db_id)
        page = Page(limit=MAXIMUM_LIMIT, sort_by="updated_at")
        query = SessionFilter(where, runs.component_id, page=page)
        sessions = (await self._operations.get_sessions(query)).value["data"]
        self._sessions = {session["session_id"]: session for session in sessions}

    def list_rows(self, words: str, sort: str) -> list[TableRow]:
        keys = {"tokens": "total_tokens", "runs": "run_count"}
        rows = [row for row in self._sessions.values() if _has_words(row, words)]
        if sort in keys:
            rows.sort(key=lambda row: row.get(keys[sort]) or 0, reverse=True)
        return [TableRow(str(row["session_id"]), self._build_cells(row)) for row in rows]

    def _build_cells(self, session: Record) -> list[Text]:
        kind, component = find_component(session) or ("", "")
        last = get_last_run(session)
        return [
            cell(session["session_id"]),
            format_state(last) if last else Text(""),
            cell(component if kind == "agent" else f"{component} {kind}"),
            cell(session.get("user_id") or ""),
            number(session.get("run_count")),
            number(session.get("total_tokens")),
            Text(format_age(session.get("updated_at"))),
            cell(session.get("session_name") or ""),
        ]

    def find_filter(self, key: str) -> str | None:
        return f"session:{key}"

    def get_version(self, key: str) -> object:
        session = self._sessions.get(key)
        is_busy = session is not None and not is_settled(get_last_run(session))
        return time.monotonic() if is_busy else session

    async def read_pane(self, key: str, form: Form, width: int) -> tuple[str, Text]:
        where = SessionLocator(db_id=self._filter.db_id)
        query = SessionRunsQuery(where, SESSION_RUNS, order="desc", form=RunView("items", CUT))
        runs = (await self._operations.get_session_runs(key, query)).value
        children: dict[str, list[Record]] = {}
        for run in reversed(runs):
            children.setdefault(str(run["parent_run_id"]), []).append(run)
        tops = children.get("None", [])
        title = f"session {clean_line(key)} · newest runs"
        if not tops:
            return title, Text("no runs yet", "dim")
        return title, draw_runs(tops, children, width, timeline=form == "timeline")


@dataclass(slots=True)
class ComponentsView(View):
    """The agents, teams and workflows, with their live runs."""

    operations: Operations
    feed: RunFeed
    name: str = "components"
    empty: str = "no agents, teams or workflows are configured, or visible to you"
    columns: Sequence[ListColumn] = (
        ListColumn("COMPONENT", most=24),
        ListColumn("TYPE"),
        ListColumn("LIVE", is_right=True),
        ListColumn("STOPPING", is_right=True),
        ListColumn("TOKENS", least=70, is_right=True),
        ListColumn("MODEL", least=90, most=20),
        ListColumn("DESCRIPTION", most=200),
    )
    sorts: Sequence[str] = ("live", "name", "tokens")
    _records: dict[str, tuple[ComponentKind, Record]] = field(default_factory=dict)
    _read_at: float | None = None

    async def refresh(self) -> None:
        """Read the runs, and sometimes the components that the caller may read."""
        await self.feed.refresh()
        if self._read_at is not None and time.monotonic() - self._read_at < COMPONENT_SECONDS:
            return
        found: dict[str, tuple[ComponentKind, Record]] = {}
        refused: list[AgentctlError] = []
        for kind in KINDS:
            try:
                records: Any = (await self.operations.get_components(kind)).value
            except Forbidden as failure:
                refused.append(failure)
                continue
            for record in records:
                found[f"{kind}:{record[KINDS[kind].id_field]}"] = kind, record
        if len(refused) == len(KINDS):
            raise refused[0]
        self._records = found
        self._read_at = time.monotonic()

    def list_rows(self, words: str, sort: str) -> list[TableRow]:
        live: Counter[str] = Counter()
        stopping: Counter[str] = Counter()
        tokens: Counter[str] = Counter()
        for run in self.feed.runs.values():
            key = ":".join(find_component(run) or ())
            if is_live(run) and not is_paused(run):
                live[key] += 1
                stopping[key] += run.get("cancel_requested_at") is not None
            tokens[key] += (run.get("metrics") or {}).get("total_tokens") or 0
        keys = [key for key, (_, record) in self._records.items() if _has_words(record, words)]
        order = {"live": live, "tokens": tokens}.get(sort, Counter())
        keys.sort(key=lambda key: (-order[key], key))
        return [
            TableRow(key, self._build_cells(key, live[key], stopping[key], tokens[key]))
            for key in keys
        ]

    def _build_cells(self, key: str, live: int, stopping: int, tokens: int) -> list[Text]:
        kind, record = self._records[key]
        style = "" if live else "dim"
        return [
            cell(record[KINDS[kind].id_field], style),
            Text(kind, style),
            Text(f"● {live}" if live else "0", "blue" if live else "dim"),
            Text(f"◐ {stopping}" if stopping else "0", "yellow" if stopping else "dim"),
            number(tokens, style),
            cell((record.get("model") or {}).get("model") or "", style),
            cell(record.get("description") or record.get("name") or "", style),
        ]

    def find_filter(self, key: str) -> str | None:
        return key

    def get_version(self, key: str) -> object:
        return self._read_at

    async def read_pane(self, key: str, form: Form, width: int) -> tuple[str, Text]:
        kind, record = self._records[key]
        text = Text(clean_line(record.get("name") or key), "bold")
        text.append(f"\n{clean_line(record.get('description') or 'no description')}\n", "none")
        model = record.get("model") or {}
        facts = {
            "mode": record.get("mode"),
            "model": f"{model.get('model')} ({model.get('provider')})" if model else None,
            "tools": ", ".join(each.get("name", "?") for each in record.get("tools") or []),
            "members": ", ".join(
                str(member.get("agent_id") or member.get("team_id") or member.get("name"))
                for member in record.get("members") or []
            ),
            "steps": ", ".join(str(each.get("name")) for each in record.get("steps") or []),
            "database": record.get("db_id"),
        }
        for label, value in facts.items():
            if value:
                text.append(f"\n{label:10}", "dim").append(clean_line(value), "none")
        return f"{kind} {clean_line(record[KINDS[kind].id_field])}", text


@dataclass(slots=True)
class WorkersView(View):
    """The processes that execute runs, for administrators."""

    operations: Operations
    name: str = "workers"
    empty: str = "no process executes runs now"
    columns: Sequence[ListColumn] = (
        ListColumn("WORKER", most=20),
        ListColumn("STATE", most=16),
        ListColumn("LIVE", is_right=True),
        ListColumn("HOST", most=24),
        ListColumn("PROCESS", is_right=True),
        ListColumn("UPTIME", is_right=True),
        ListColumn("HEARTBEAT", most=40),
    )
    sorts: Sequence[str] = ("oldest",)
    _workers: dict[str, Record] = field(default_factory=dict)
    _is_refused: bool = False

    async def refresh(self) -> None:
        """Read the workers. A refusal is final, so that the audit log has one entry of it."""
        if self._is_refused:
            return
        try:
            document = await self.operations.get_deployment()
        except (Forbidden, Unsupported) as failure:
            self._is_refused = True
            self.empty = f"{failure.detail}: the admin scope reads workers"
            return
        self._workers = {worker["worker_id"]: dict(worker) for worker in document.value["workers"]}

    def list_rows(self, words: str, sort: str) -> list[TableRow]:
        rows = []
        for key, worker in self._workers.items():
            if words and not all(word in f"{key} {worker['host']}" for word in words.split()):
                continue
            cells = [
                cell(key[:13]),
                Text(*_WORKER_STATES[worker["state"]]),
                number(worker["live_runs"]),
                cell(worker["host"]),
                Text(str(worker["pid"])),
                Text(format_age(worker["started_at"])),
                cell(worker["reason"] or f"{format_age(worker['heartbeat_at'])} ago"),
            ]
            rows.append(TableRow(key, cells))
        return rows

    def get_version(self, key: str) -> object:
        return self._workers.get(key)

    async def read_pane(self, key: str, form: Form, width: int) -> tuple[str, Text]:
        worker = self._workers[key]
        text = Text(f"process {worker['pid']} on {clean_line(worker['host'])}", "bold")
        if worker["reason"] is None:
            count = worker["live_runs"]
            text.append(f"\nalive; {count or 'no'} live {'run' if count == 1 else 'runs'}", "none")
        else:
            text.append(f"\ndead: {worker['reason']}", "red")
            text.append("\nanother process ends its runs; agentctl runs doctor shows them", "none")
        return f"worker {clean_line(key)}", text


def _has_words(record: Record, words: str) -> bool:
    texts = " ".join(str(each) for each in record.values() if isinstance(each, str)).lower()
    return all(word.rpartition(":")[2] in texts for word in words.lower().split())
