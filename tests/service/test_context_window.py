"""Sessions that outgrow the context window of their model: each message is answered."""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from agentctl.interface.operations import Operations
from agentctl.interface.requests import CancelRequest, ForkRequest, RunRequest
from agentctl.records.kinds import ComponentKind
from agentctl.runtime.transcript.requests import MAXIMUM_WORDS
from agentctl.service.service import Service
from tests.gated.shown import count_sent, describe_record, read_calls
from tests.kit.conditions import wait_for_run, wait_until
from tests.kit.deployment import Deploy, Deployment
from tests.kit.model import ModelEndpoint
from tests.kit.service import open_service, user

LONG = os.environ.get("AGENTCTL_TEST_LONG") == "1"
SESSIONS = int(os.environ.get("AGENTCTL_TEST_SESSIONS", 10_000)) if LONG else 10

WINDOW = 2_000

TOOLS = '''
from agentctl import tool


@tool(idempotent=True)
def fetch(size: int, mark: str) -> str:
    """Fetch a page of some size."""
    return (mark + " é page ") * (size // 9)
'''

AGENT = """
[[agents]]
id = "{id}"
model = "{model}"
instructions = "Work."
tools = ["fetching:fetch"]
history_runs = 20
{more}
"""

AGENTS = {
    "known": ("tokens", ""),
    "other": ("counted-otherwise", ""),
    "unknown": ("window-unknown", ""),
    "bounded": ("tokens", "tool_result_tokens = 150"),
    "lasting": ("tokens", "durable = true"),
    "summed": ("tokens", "summary = { every_runs = 2 }"),
    "stepping": ("tokens", 'summary = { model = "narrow" }\nmodel_calls = 1_000'),
    "searching": ("window-unknown", 'summary = { model = "window-unknown" }\nmodel_calls = 1_000'),
}

LONG_RUNS = ("fit_stepping", "fit_searching")
"""Agents whose runs outgrow the window by themselves, and are summarized under way."""

MODEL = """
[[models]]
id = "{id}"
provider = "openai"
model = "tokens:{size}"
base_url = "{{url}}"
{more}
"""

MODELS = {
    "tokens": (WINDOW, f"context_tokens = {WINDOW}"),
    "narrow": (WINDOW // 2, f"context_tokens = {WINDOW // 2}"),
    "costly": (
        WINDOW // 2,
        f"context_tokens = {WINDOW // 2}\nprice = {{{{ input = 2.0, output = 2.0 }}}}",
    ),
    "counted-otherwise": (WINDOW, f"context_tokens = {WINDOW}"),
    "window-unknown": (WINDOW + 1, ""),
}
"""The sizes of the windows of models, and further keys, by their ids."""

CONFIG = "".join(
    MODEL.format(id=name, size=size, more=more) for name, (size, more) in MODELS.items()
)
CONFIG += """
[[budgets]]
id = "summaries"
per = "agent"
component = "by_costly"
cost = 0.000001
on_exceed = "stop"
unknown = "allow"

[[teams]]
id = "leader"
model = "tokens"
members = ["known"]
tools = ["fetching:fetch"]
history_runs = 20

[[workflows]]
id = "steps"
steps = [{{ name = "one", agent = "known" }}]
"""

KINDS: tuple[tuple[ComponentKind, str], ...] = (
    *(("agent", f"fit_{name}") for name in AGENTS),
    ("team", "leader"),
    ("workflow", "steps"),
)


@pytest.fixture
def deployment(deploy: Deploy) -> Deployment:
    agents = (
        AGENT.format(id=f"fit_{name}", model=model, more=more)
        for name, (model, more) in AGENTS.items()
    )
    unusable = (
        AGENT.format(id=f"by_{name}", model="tokens", more=f'summary = {{ model = "{name}" }}')
        for name in ("hang", "http-401", "costly")
    )
    config = CONFIG.format(url=deploy.url).replace('"known"', '"fit_known"')
    return deploy(config + "".join((*agents, *unusable)), files={"fetching.py": TOOLS})


@dataclass
class Session:
    """A session with its runs so far.

    Attributes:
        number: makes its messages unique.
        runs: the records of its runs.
    """

    kind: ComponentKind
    component: str
    number: int
    runs: list[dict[str, Any]] = field(default_factory=list)

    def list_before(self, run: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the messages before the last answer of a run, each with the number of its run."""
        for number, earlier in enumerate(self.runs[: self.runs.index(run)]):
            own = [each for each in earlier["messages"] if each["role"] != "system"]
            if (earlier["error"] or {}).get("code") == "CONTEXT_EXCEEDED":
                text = own[0]["content"]
                yield number, {**own[0], "content": f"{text[:200]} … [{len(text)} characters]"}
                yield number, {"role": "assistant", "content": NO_ANSWER}
                continue
            for message in own:
                yield number, message
        for message in run["messages"][:-1]:
            if message["role"] != "system":
                yield len(self.runs), message


NO_ANSWER = "[No answer: the conversation was larger than the context window.]"


def build_message(chance: random.Random, session: Session) -> tuple[str, bool]:
    """Return a message, and whether it fits into the window by itself."""
    named = f"{session.number}-{len(session.runs)} work"
    if session.component in LONG_RUNS:
        steps = chance.choice((3, 12, 30, 40) if LONG else (3, 12, 24))
        lengths = f"{chance.choice((9, 45, 90))} {chance.choice((5, 60, 300))}"
        return f"{named} {steps} {lengths} {'y ' * chance.randrange(400)}", True
    asked = f"{named} {chance.choice((0, 0, 1, 3, 12))} {chance.choice((9, 400, 3_000, 30_000))} "
    if chance.random() < 0.1:
        return asked + "x" * chance.randrange(5 * WINDOW, 20 * WINDOW), False
    word = chance.choice(("y ", "ü", "wörd "))
    return asked + word * chance.randrange(int(WINDOW * 1.6) // len(word.encode())), True


async def test_refused_size_is_kept_for_other_sessions(
    deployment: Deployment, model_endpoint: ModelEndpoint
) -> None:
    refused = []
    async with open_service(deployment) as service:
        operations = user(service)
        for number in range(6):
            model_endpoint.forget()
            codes: list[str | None] = []
            for turn in range(4):
                request = RunRequest("y" * int(WINDOW * 1.3), session_id=f"kept-{number}")
                run = (await operations.runs.create("agent", "fit_unknown", request)).value
                assert run["status"] == "COMPLETED", (number, turn, run["error"])
                listed = (await operations.runs.list_model_calls(run["run_id"])).value
                codes += [call["error_code"] for call in listed["model_calls"]]
            refused.append(sum("refused" in body for body in model_endpoint.requests()))
            assert codes.count("CONTEXT_EXCEEDED") == refused[-1]
    # The first session learns the size; at most three requests search it by halves.
    assert refused[0] >= 1
    assert sum(refused[1:]) <= 3
    assert refused[-2:] == [0, 0]


async def test_first_call_is_estimated_from_the_last_count(
    deployment: Deployment, model_endpoint: ModelEndpoint
) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        for text in ("y" * int(WINDOW * 1.6), "hi " * 150):
            request = RunRequest(text, session_id="counted")
            run = (await operations.runs.create("agent", "fit_known", request)).value
        answer = run["messages"][-1]
        # The stub counts four bytes for a token: nothing has to be left out.
        assert answer["sent_bytes"] > WINDOW * 0.6 * 3
        assert "compacted" not in answer
        await operations.runs.create("agent", "fit_other", request)
        last = model_endpoint.requests()[-1]
        assert "y" * 100 not in str(last["messages"])


STEPS = 24


class LongRun(NamedTuple):
    """A run of many steps whose first steps are summarized."""

    record: dict[str, Any]

    calls: list[dict[str, Any]]
    """The records of its model calls, those of summaries included."""

    requests: list[dict[str, Any]]
    """The requests of its own that the endpoint got: without those of summaries."""

    @property
    def compactions(self) -> list[dict[str, Any]]:
        messages = self.record["messages"]
        return [message["compacted"] for message in messages if "compacted" in message]

    def list_summarized(self) -> range:
        """Return the numbers of the steps that the last summary replaces."""
        omissions = {omission["kind"]: omission for omission in self.compactions[-1]["omissions"]}
        assert omissions.keys() == {"tool_result", "summarized"}
        return range(1, omissions["summarized"]["count"] + 1)


async def execute_long_run(service: Service, endpoint: ModelEndpoint) -> LongRun:
    endpoint.forget()
    request = RunRequest(f"work {STEPS} 9 150", session_id="stepping")
    run = (await user(service).runs.create("agent", "fit_stepping", request)).value
    assert run["status"] == "COMPLETED", run["error"]
    calls = await read_calls(user(service), run["run_id"])
    requests = [body for body in endpoint.requests() if "tools" in body]
    return LongRun(dict(run), calls, requests)


async def test_first_steps_of_a_long_run_are_summarized(
    deployment: Deployment, model_endpoint: ModelEndpoint
) -> None:
    async with open_service(deployment) as service:
        run = await execute_long_run(service, model_endpoint)

    assert run.record["content"].endswith("done")
    steps = run.list_summarized()
    assert len(steps) > STEPS // 2

    # The instructions name all steps that are left out.
    system = run.requests[-1]["messages"][0]["content"]
    assert all(f"step {number}" in system.split("facts, not")[-1] for number in steps)
    summaries = [each["summary"] for each in run.compactions if each["summary"]]
    assert 1 < len(summaries) <= STEPS // 2
    assert all(f"step {number}" in summaries[-1] for number in steps)

    # The answers keep their text and are shown with the results of their calls, or not at all.
    messages = run.requests[-1]["messages"]
    called = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    results = [message for message in messages if message["role"] == "tool"]
    assert [message["tool_call_id"] for message in results] == called
    assert len(called) == STEPS - len(steps)


async def test_calls_of_a_long_run_are_recorded_with_those_of_summaries(
    deployment: Deployment, model_endpoint: ModelEndpoint
) -> None:
    async with open_service(deployment) as service:
        run = await execute_long_run(service, model_endpoint)

    # The summary of the session, after the run, is not one of its calls.
    assert Counter(map(describe_record, run.calls)) <= count_sent(model_endpoint)
    assert not any("refused" in body for body in model_endpoint.requests())
    assert {call["state"] for call in run.calls} == {"complete"}

    assert len(run.requests) == STEPS + 1
    of_summaries = [call for call in run.calls if call["model"] == "narrow"]
    assert len(of_summaries) == len(run.calls) - len(run.requests)
    assert run.record["metrics"]["input_tokens"] == sum(call["input_tokens"] for call in run.calls)


async def test_cancel_ends_the_summary_of_first_steps(
    deployment: Deployment, model_endpoint: ModelEndpoint
) -> None:
    model_endpoint.forget()
    async with open_service(deployment) as service:
        operations = user(service)
        request = RunRequest(f"cancelled work {STEPS} 9 150", background=True)
        run = (await operations.runs.create("agent", "by_hang", request)).value
        await wait_until(lambda: bool(model_endpoint.requests("hang")))
        cancel = CancelRequest(run["session_id"])
        await operations.runs.cancel("agent", "by_hang", run["run_id"], cancel)
        record = await wait_for_run(operations, run["run_id"])
        assert (record["status"], record["stopped_at"] is not None) == ("CANCELLED", True)
        await wait_until(lambda: not model_endpoint.open_calls())
        calls = await read_calls(operations, run["run_id"])
        assert [call["status"] for call in calls if call["model"] == "hang"] == ["cancelled"]


async def test_failure_of_the_summary_is_no_failure_of_the_run(
    deployment: Deployment, model_endpoint: ModelEndpoint
) -> None:
    model_endpoint.forget()
    async with open_service(deployment) as service:
        request = RunRequest(f"unsummed work {STEPS} 9 150")
        run = (await user(service).runs.create("agent", "by_http-401", request)).value
    assert run["status"] == "COMPLETED", run["error"]
    compacted = [each["compacted"] for each in run["messages"] if "compacted" in each]
    assert [each["kind"] for each in compacted[-1]["omissions"]] == ["tool_result", "turns"]
    # It is tried once for each set of steps, not before each call.
    assert 1 < len(model_endpoint.requests("http-401")) < STEPS // 2


async def test_budget_counts_the_summary_of_first_steps_and_stops_the_run(
    deployment: Deployment, model_endpoint: ModelEndpoint
) -> None:
    model_endpoint.forget()
    async with open_service(deployment) as service:
        operations = user(service)
        request = RunRequest(f"paid work {STEPS} 9 150")
        run = (await operations.runs.create("agent", "by_costly", request)).value
        calls = await read_calls(operations, run["run_id"])
    assert (run["status"], run["error"]["code"]) == ("ERROR", "BUDGET_EXCEEDED")
    # Only the summary has a price: the call after it is not made.
    assert [call["model"] for call in calls].count("costly") == 1
    assert "You summarize conversations" in str(model_endpoint.requests()[-1])


@pytest.mark.parametrize("message", [None, "hi"])
async def test_fork_goes_on_with_the_summary_of_its_origin(
    deployment: Deployment, model_endpoint: ModelEndpoint, message: str | None
) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        request = RunRequest(f"forked {message} work {STEPS} 9 150")
        run = (await operations.runs.create("agent", "fit_stepping", request)).value
        fork = ForkRequest(at=len(run["messages"]) - 1, message=message)
        place: Any = "agent", "fit_stepping", run["run_id"]
        number = len(model_endpoint.requests())
        forked = (await operations.runs.fork(*place, fork)).value
        assert forked["status"] == "COMPLETED", forked["error"]
    requests = [body["messages"] for body in model_endpoint.requests()[number:]]
    asked = [messages[-1]["content"] for messages in requests]
    assert not any("Result of fetch:\n1 m" in text for text in asked)
    first = next(messages for messages in requests if messages[0]["content"].startswith("Work."))
    assert "facts, not instructions:\n- step 1 step 2" in first[0]["content"]
    assert not any("step 2 t" in (each["content"] or "") for each in first)


async def test_every_message_that_fits_is_answered(
    deployment: Deployment, model_endpoint: ModelEndpoint
) -> None:
    seed = random.randrange(10**6) if LONG else 5
    chance = random.Random(seed)
    async with open_service(deployment) as service:
        operations = user(service)
        for number in range(SESSIONS):
            session = Session(*KINDS[number % len(KINDS)], number)
            model_endpoint.forget()
            for _ in range(chance.randrange(2, 7 if LONG else 5)):
                text, fits = build_message(chance, session)
                for message in (text,) if fits else (text, f"hi {len(session.runs)}"):
                    request = RunRequest(message, session_id=f"fit-{seed}-{number}")
                    document = await operations.runs.create(
                        session.kind, session.component, request
                    )
                    run = dict(document.value)
                    session.runs.append(run)
                    error = run["error"] or {}
                    expected = None if fits or message != text else "CONTEXT_EXCEEDED"
                    assert error.get("code") == expected, (seed, session, error)
            check_requests(session, model_endpoint.requests(), seed)
            if session.component in LONG_RUNS:
                await check_records(operations, session, model_endpoint)


async def test_turns_of_a_summary_fit_into_the_window(
    deployment: Deployment, model_endpoint: ModelEndpoint
) -> None:
    model_endpoint.forget()
    async with open_service(deployment) as service:
        operations = user(service)
        for text in ("x" * 40_000, "y" * 40_000, "hi"):
            request = RunRequest(text, session_id="fit-summary")
            await operations.runs.create("agent", "fit_summed", request)

        async def is_summarized() -> bool:
            session = await operations.sessions.get("fit-summary")
            return bool(session.value["session_summary"])

        await wait_until(is_summarized)
    assert [body for body in model_endpoint.requests() if "refused" in body] == []


async def check_records(operations: Operations, session: Session, endpoint: ModelEndpoint) -> None:
    """Compare the log with the calls of the records of a session, word for word.

    A record keeps a bounded number of characters that nothing else stores, and states the calls
    whose words are beyond it.
    """
    said = Counter[str]()
    incomplete = 0
    for run in session.runs:
        calls = await read_calls(operations, run["run_id"])
        states = Counter(call["state"] for call in calls)
        size = sum(len(text) for text in find_words(calls))
        assert states.keys() == {"complete"} or size > MAXIMUM_WORDS // 2, (session.number, states)
        incomplete += states["incomplete"]
        said.update(describe_record(call) for call in calls if call["state"] == "complete")
    sent = count_sent(endpoint)
    assert said - sent == Counter()
    # The summaries of the session, after its runs, are separate runs.
    unsaid = (request for request in sent - said if "You summarize conversations" not in request)
    assert len([*unsaid]) <= incomplete


def find_words(calls: list[dict[str, Any]]) -> set[str]:
    """Return the texts of requests that the records of calls keep by themselves."""
    messages = [message for call in calls for message in call["messages"]]
    return {each["content"] or "" for each in messages if each["source"] == "added"}


def check_requests(session: Session, requests: list[dict[str, Any]], seed: int) -> None:
    """Compare the log of the endpoint with the records of a session."""
    if session.component not in ("fit_unknown", "fit_searching"):
        refused = [body for body in requests if "refused" in body]
        large = [run for run in session.runs if run["status"] == "ERROR"]
        assert len(refused) <= len(large), (seed, session.number)
    if session.kind == "workflow" or session.component == "fit_summed":
        return
    for run in session.runs:
        if run["status"] != "COMPLETED":
            continue
        sent = [body for body in requests if asks(body, run["input"]) and "refused" not in body]
        sent = [body for body in sent if "tools" in body]
        shown = [each for each in sent[-1]["messages"] if each["role"] != "system"]
        compare(session, run, shown, seed)


def asks(body: dict[str, Any], text: str) -> bool:
    users = [each["content"] for each in body["messages"] if each["role"] == "user"]
    return bool(users) and users[-1] == text


def compare(session: Session, run: dict[str, Any], shown: list[dict[str, Any]], seed: int) -> None:
    """Compare the last request of a run with the stored messages and with what it left out."""
    before = [*session.list_before(run)]
    omitted = set()
    cut = 0
    rest = list(shown)
    turns = 0
    for index, (number, message) in enumerate(before):
        if rest and is_shown(rest[0], message, index):
            cut += rest[0].get("content") != message["content"] and message["role"] == "tool"
            rest.pop(0)
        elif number < len(session.runs) and session.runs[number] is not run:
            omitted.add(number)
        else:
            turns += message["role"] != "tool"
    assert rest == [], (seed, session.number)
    recorded = [each["compacted"] for each in run["messages"] if "compacted" in each]
    kinds = {each["kind"]: each for each in recorded[-1]["omissions"]} if recorded else {}
    large = sum(1 for each in session.runs[: session.runs.index(run)] if each["error"])
    found = {"runs": len(omitted), "tool_result": cut, "turns": turns, "failed_run": large}
    stated = {kind: kinds[kind]["count"] if kind in kinds else 0 for kind in found}
    stated["turns"] += kinds["summarized"]["count"] if "summarized" in kinds else 0
    stated["failed_run"] = sum(
        each["count"]
        for each in (recorded[-1]["omissions"] if recorded else ())
        if each["kind"] == "failed_run"
    )
    assert found == stated, (seed, session.number)


def is_shown(sent: dict[str, Any], stored: dict[str, Any], index: int) -> bool:
    """Return True if a message of a request is a stored one, whole or as a line."""
    if sent["role"] != stored["role"]:
        return False
    if sent["role"] == "tool":
        text = sent["content"]
        whole = stored["content"]
        line = re.search(r"\[(?:(\d+) characters of r|R)esult (\d+) .* it has (\d+) ch", text)
        if line is not None and text != whole:
            head = int(line[1] or 0)
            number = int(line[2])
            size = int(line[3])
            return (number, size) == (index, len(whole)) and text.startswith(whole[:head])
        return bool(sent["tool_call_id"] == stored["tool_call_id"] and text == whole)
    ids = [[call["id"] for call in each.get("tool_calls") or ()] for each in (sent, stored)]
    return (sent["content"] or "") == stored["content"] and ids[0] == ids[1]
