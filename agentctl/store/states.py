"""The states of runs, approvals, approved calls, steps and messages, as data: who changes what.

A statement that changes a state is built by `change`: it names its transitions, and has their
`where` in its condition. So the number of changed rows decides which of several writers succeeds.
`docs/reference/states.md` and the checks of `doctor --runs` are made from the same data.

A member is a run with a parent. A leg is the work between a claim and the next pause or end; each
has an `attempt`, which its writes name, so that late writes of an earlier leg change nothing.

A decision, and a cancel, pause or claim of a member, locks rows from the top: session (if the run
is queued), root, parent, run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

from agentctl.records.runs import FINAL_STATUSES
from agentctl.store.database import Sql

Actor = Literal["owner", "any worker", "sweep", "caller"]
"""The process that makes a transition.

`owner` is the worker in the row of the root run, `sweep` the process with the lease of the sweep or
another process that finds a worker dead, `caller` the server that executes a request.
"""


class State(NamedTuple):
    """A state of a machine: the stored value, and the columns that are set and that are NULL."""

    name: str

    value: str | None
    """The value of the column of the machine. Two states may have the same value."""

    meaning: str
    """The meaning of the state in words, for people."""

    present: tuple[str, ...] = ()
    """The columns that are set."""

    absent: tuple[str, ...] = ()
    """The columns that are NULL."""

    more: str = ""
    """A further condition in SQL; "" without one."""

    @property
    def sql(self) -> str:
        """The condition that a row with the value of the state has its columns."""
        conditions = [f"{name} IS NOT NULL" for name in self.present]
        conditions += [f"{name} IS NULL" for name in self.absent]
        if self.more:
            conditions.append(self.more)
        return " AND ".join(conditions) or "1 = 1"


class Transition(NamedTuple):
    """A change of a state."""

    name: str

    before: tuple[str, ...]
    """Names of the states that it leaves; empty: the row is new."""

    after: tuple[str, ...]
    """Names of the states that it reaches; empty: the row is deleted."""

    actors: tuple[Actor, ...]

    condition: str
    """The condition in words, for people."""

    where: str = ""
    """The condition of its statements in SQL; "" for the condition that `before` implies."""

    new_attempt: bool = False
    """True if it begins or ends a leg with a new attempt."""


class Machine(NamedTuple):
    """The states of a column of a table, and their transitions."""

    name: str
    table: str
    column: str

    columns: tuple[str, ...]
    """The columns that only statements with a transition may set."""

    states: tuple[State, ...]
    transitions: tuple[Transition, ...]

    def values(self, names: Iterable[str]) -> tuple[str | None, ...]:
        """Return the stored values of some states, each once, in the order of the machine."""
        chosen_names = set(names)
        return tuple(
            dict.fromkeys(state.value for state in self.states if state.name in chosen_names)
        )

    def find(self, name: str) -> Transition:
        """Return the transition with a name."""
        return next(transition for transition in self.transitions if transition.name == name)

    def where(self, *names: str) -> str:
        """Return the condition of the statements of some transitions."""
        transitions = [self.find(name) for name in names]
        if len(transitions) == 1 and transitions[0].where:
            return transitions[0].where
        return _compare(
            self.column,
            self.values(name for transition in transitions for name in transition.before),
        )


def _compare(column: str, values: Sequence[str | None]) -> str:
    literals = [f"'{value}'" for value in values if value is not None]
    text = ""
    if len(literals) == 1:
        text = f"{column} = {literals[0]}"
    elif literals:
        text = f"{column} IN ({', '.join(literals)})"

    if None not in values:
        return text
    if not text:
        return f"{column} IS NULL"
    return f"({column} IS NULL OR {text})"


_PENDING = "status = 'PENDING'"
_NOT_REQUESTED = "cancel_requested_at IS NULL"
_FINAL_STATES = ("completed", "error", "cancelled")

IS_NEXT_LEG = f"{_PENDING} AND owner IS NULL AND coalesce(queue_turn, attempt - 1) > 0"
"""The condition that any server may claim a run. A partial index has the same condition."""

RUN = Machine(
    "run",
    "runs",
    "status",
    ("status", "owner", "attempt", "queue_turn", "cancel_requested_at", "finished_at"),
    (
        State(
            "queued", "PENDING", "waits in the queue of its session", ("queue_turn", "queued_at"),
            ("owner", "started_at", "finished_at", "cancel_requested_at", "parent_run_id"),
        ),
        State(
            "accepted", "PENDING", "a background run that its worker is about to begin",
            ("owner",), ("finished_at", "cancel_requested_at", "queue_turn"), "attempt = 1",
        ),
        State(
            "ready", "PENDING", "waits for a worker that claims its next leg", (),
            ("owner", "finished_at", "cancel_requested_at", "queue_turn", "parent_run_id"),
            "attempt > 1",
        ),
        State(
            "running", "RUNNING", "its owner executes a leg", ("owner", "started_at"),
            ("finished_at", "queue_turn"),
        ),
        State(
            "paused", "PAUSED", "waits for decisions, of people or of its members", (),
            ("owner", "finished_at", "cancel_requested_at", "queue_turn"),
        ),
        State("completed", "COMPLETED", "has a result", ("finished_at",)),
        State("error", "ERROR", "failed", ("finished_at",)),
        State("cancelled", "CANCELLED", "was cancelled", ("finished_at", "cancel_requested_at")),
    ),
    (
        Transition("start", (), ("running",), ("caller", "owner"), "a root run, or a member"),
        Transition("accept", (), ("accepted",), ("caller",), "a background run"),
        Transition("enqueue", (), ("queued",), ("caller",), "no slot is free, or it has to wait"),
        Transition("import", (), _FINAL_STATES, ("caller",), "it ended in another system"),
        Transition(
            "give turn", ("queued",), ("queued",), ("caller", "owner", "sweep"),
            "it is the first of its queue, and the earlier runs have ended or begun",
            f"{_PENDING} AND queue_turn <= 0",
        ),
        Transition(
            "begin", ("accepted",), ("running",), ("owner",),
            "the attempt matches, and no cancel is requested", f"{_PENDING} AND {_NOT_REQUESTED}",
        ),
        Transition(
            "claim", ("queued", "ready"), ("running",), ("any worker",),
            "it is a root run, and has its turn", f"{IS_NEXT_LEG} AND {_NOT_REQUESTED}",
        ),
        Transition(
            "hold", ("queued", "ready"), ("paused",), ("any worker",),
            "it is a root run, has its turn, and a person has to decide whether it goes on with"
            " another version of its component", f"{IS_NEXT_LEG} AND {_NOT_REQUESTED}",
        ),
        Transition(
            "claim member", ("paused",), ("running",), ("owner",),
            "its root run executes there, no cancel of the two is requested, and none of its"
            " approvals is pending",
            f"status = 'PAUSED' AND {_NOT_REQUESTED}", new_attempt=True,
        ),
        Transition(
            "pause", ("running",), ("paused", "ready"), ("owner",),
            "the attempt matches, and no cancel is requested; `ready`, with a new attempt, if"
            " everything that its tree requested is decided",
            f"status = 'RUNNING' AND {_NOT_REQUESTED}", new_attempt=True,
        ),
        Transition(
            "release", ("paused",), ("ready",), ("caller", "sweep"),
            "it is a root run, and no approval of its tree is pending", new_attempt=True,
        ),
        Transition(
            "return", ("accepted", "running"), ("ready", "paused"), ("owner", "sweep"),
            "it has a checkpoint and can go on, and its worker stops or is dead; a member, and a"
            " root run with a call in doubt, is `paused`", new_attempt=True,
        ),
        Transition(
            "request cancel", ("queued", "accepted", "ready", "running", "paused"),
            ("running", "cancelled"), ("caller", "owner", "sweep"),
            "no cancel is requested; its owner ends it if it executes it, and otherwise the same"
            " transaction does",
        ),
        Transition(
            "end", ("accepted", "running"), _FINAL_STATES, ("owner",),
            "the attempt matches; `cancelled` only after a request",
        ),
        Transition(
            "end lost", ("accepted", "running"), ("error", "cancelled"), ("sweep",),
            "its worker is dead, and it cannot be returned", new_attempt=True,
        ),
        Transition(
            "end waiting", ("queued", "accepted", "ready", "paused"), ("error", "cancelled"),
            ("caller", "owner", "sweep"),
            "nothing executes it, and it is cancelled, its parent ends, or it waited too long",
        ),
        Transition("delete", _FINAL_STATES, (), ("caller", "sweep"), "its session is deleted"),
    ),
)  # fmt: skip

_DECIDED = ("approved", "rejected", "answered")

APPROVAL = Machine(
    "approval",
    "approvals",
    "status",
    ("status", "decided_at"),
    (
        State("pending", "pending", "waits for a decision", (), ("decided_at",)),
        State("approved", "approved", "the call may be made", ("decided_at",)),
        State("rejected", "rejected", "the call is not made", ("decided_at",)),
        State("answered", "answered", "has the answer or the result", ("decided_at",)),
        State("expired", "expired", "no one decided in time", ("decided_at",)),
        State("cancelled", "cancelled", "its run ended", ("decided_at",)),
    ),
    (
        Transition("ask", (), ("pending",), ("owner", "sweep"), "its run pauses"),
        Transition(
            "decide", ("pending",), _DECIDED, ("caller",),
            "the hash matches, it has not expired, and the row of the root run is locked",
        ),
        Transition(
            "expire", ("pending",), ("expired",), ("sweep",),
            "its time has ended, and the row of the root run is locked",
        ),
        Transition(
            "close", ("pending",), ("cancelled",), ("caller", "owner", "sweep"), "its run ends",
        ),
        Transition(
            "delete", (*_DECIDED, "expired", "cancelled"), (), ("sweep",),
            "it is older than the retention, its run has ended, and the outcome is known",
        ),
    ),
)  # fmt: skip

CALL = Machine(
    "approved call",
    "approvals",
    "execution",
    ("execution", "executing_at"),
    (
        State("none", None, "did not begin"),
        State("executing", "executing", "has begun", ("executing_at",)),
        State("done", "done", "has a result"),
        State("failed", "failed", "failed"),
        State("unknown", "unknown", "its process died: no one knows whether it was made"),
    ),
    (
        Transition(
            "begin", ("none",), ("executing",), ("owner",),
            "it is approved, its run executes the attempt, and no cancel is requested of it or of"
            " its root run", "status = 'approved' AND execution IS NULL",
        ),
        Transition("end", ("executing",), ("done", "failed"), ("owner",), "the call returns"),
        Transition(
            "report", ("none",), ("done", "failed"), ("caller",),
            "a person or the caller made it, and reports the end as a decision",
            "status = 'pending'",
        ),
        Transition(
            "settle", ("unknown",), ("none", "done", "failed"), ("caller",),
            "a person reports what happened; `none` lets it be made again",
        ),
        Transition(
            "forget", ("executing",), ("none",), ("owner", "sweep"),
            "its worker is dead, and it may be made again with its id; or its owner did not know"
            " that its begin was committed, and stops before the call",
        ),
        Transition(
            "doubt", ("executing",), ("unknown",), ("caller", "owner", "sweep"),
            "its worker is dead or its run ends",
        ),
        Transition(
            "doubt restored", ("none", "executing"), ("unknown",), ("caller",),
            "it is approved, and the database was restored to a time before its end",
        ),
    ),
)  # fmt: skip

_STEP_ENDS = ("done", "failed", "waiting")

STEP = Machine(
    "step",
    "run_steps",
    "state",
    ("state",),
    (
        State("started", "started", "has begun"),
        State("waiting", "waiting", "waits for decisions in its middle"),
        State("done", "done", "has a result"),
        State("failed", "failed", "failed"),
        State("unknown", "unknown", "its process died: no one knows whether it was made"),
        State("again", "again", "a person lets it be made again"),
    ),
    (
        Transition(
            "keep", (), ("started", *_STEP_ENDS), ("owner",),
            "its run executes the attempt, and no cancel is requested; a step that has begun before"
            " begins again",
        ),
        Transition(
            "end", ("started", *_STEP_ENDS, "again"), _STEP_ENDS, ("owner",),
            "its run executes the attempt", "state <> 'unknown'",
        ),
        Transition(
            "doubt", ("started",), ("unknown",), ("owner", "sweep"),
            "its worker is dead, and it must not be repeated",
        ),
        Transition(
            "settle", ("unknown",), ("done", "failed", "again"), ("caller",),
            "a person reports what happened",
        ),
        Transition(
            "doubt restored", ("again",), ("unknown",), ("caller",),
            "the database was restored to a time before its end",
        ),
        Transition(
            "delete", ("started", *_STEP_ENDS, "unknown", "again"), (),
            ("caller", "owner", "sweep"), "its run ends",
        ),
    ),
)  # fmt: skip

MESSAGE = Machine(
    "message",
    "run_messages",
    "status",
    ("status", "settled_at"),
    (
        State("waiting", "waiting", "waits for a model call of its run", (), ("settled_at",)),
        State("delivered", "delivered", "is part of its run", ("settled_at",)),
        State("next run", "next_run", "became a run of the session", ("settled_at",)),
        State("refused", "refused", "no run got it", ("settled_at",)),
    ),
    (
        Transition(
            "send", (), ("waiting", "next run"), ("caller",),
            "its run is open; `next run` if it has ended, or takes no messages while it works",
        ),
        Transition(
            "deliver", ("waiting", "delivered"), ("delivered",), ("owner",),
            "its run executes the attempt, and no cancel is requested; from `delivered` if the leg"
            " that got it was lost with the model call",
        ),
        Transition(
            "take back", ("delivered",), ("waiting",), ("owner",),
            "its run ends, and the model call was not made",
        ),
        Transition("follow", ("waiting",), ("next run",), ("owner", "sweep"), "its run ends"),
        Transition(
            "refuse", ("waiting",), ("refused",), ("caller", "owner", "sweep"),
            "its run ends; it is cancelled, the queue is full, or the sender wants it so",
        ),
    ),
)  # fmt: skip

MACHINES = (RUN, APPROVAL, CALL, STEP, MESSAGE)

CHANGES: dict[str, list[tuple[Machine, Transition]]] = {}
"""The transitions of each statement, by its text."""


def change(machine: Machine, *names: str) -> Callable[[str], Sql]:
    """Return a function that builds a statement of some transitions from its text.

    `{where}` in the text is their condition. A statement of two machines is built by two functions.

        _GIVE_TURN = change(RUN, "give turn")(
            "UPDATE runs SET queue_turn = :at WHERE run_id = :run_id AND {where} RETURNING run_id"
        )
    """

    def build(sql: str) -> Sql:
        text = sql.replace("{where}", machine.where(*names))
        transitions = CHANGES.setdefault(text, CHANGES.pop(sql, []))
        transitions += [(machine, machine.find(name)) for name in names]
        return Sql(text)

    return build


IS_LIVE = _compare("status", ("PENDING", "RUNNING"))
"""The condition that a run executes or will. Partial indexes have the same condition."""

IS_OPEN = RUN.where("end", "end waiting")
"""The condition that a run has no final status."""

IS_FOUND_OPEN = (
    f"runs.run_id IN (SELECT run_id FROM runs WHERE {IS_LIVE}"
    " UNION ALL SELECT run_id FROM runs WHERE status = 'PAUSED')"
)
"""`IS_OPEN` for statements that search for such runs: each part has a partial index."""

IS_FINAL = _compare("status", FINAL_STATUSES)

IS_AT_WORK = f"{IS_FINAL} AND stopped_at IS NULL"
"""The condition that a run has ended and its work has not.

A partial index has the same condition.
"""

# The bound of the time is true for every run: it lets SQLite choose the index.
IS_WAITING = f"{IS_NEXT_LEG} AND coalesce(queue_turn, created_at) >= 0 AND {_NOT_REQUESTED}"
"""Condition of the runs that any worker may continue."""

HAS_CANCEL_REQUEST = f"{IS_LIVE} AND cancel_requested_at IS NOT NULL"
"""Condition of the runs that their worker has to stop."""
