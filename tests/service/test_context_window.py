"""Sessions that outgrow the context window of their model: each message is answered."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentctl.interface.requests import RunRequest
from agentctl.records.kinds import ComponentKind
from tests.deployment import Deploy, Deployment
from tests.endpoint import ModelEndpoint
from tests.loops import wait_until
from tests.service.callers import open_service, user

LONG = os.environ.get("AGENTCTL_TEST_LONG") == "1"
SESSIONS = 10_000 if LONG else 7

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
}

CONFIG = f"""
[[models]]
id = "tokens"
provider = "openai"
model = "tokens:{WINDOW}"
base_url = "{{url}}"
context_tokens = {WINDOW}

[[models]]
id = "counted-otherwise"
provider = "openai"
model = "tokens:{WINDOW}"
base_url = "{{url}}"
context_tokens = {WINDOW}

[[models]]
id = "window-unknown"
provider = "openai"
model = "tokens:{WINDOW + 1}"
base_url = "{{url}}"

[[teams]]
id = "leader"
model = "tokens"
members = ["known"]
tools = ["fetching:fetch"]
history_runs = 20

[[workflows]]
id = "steps"
steps = [{{{{ name = "one", agent = "known" }}}}]
"""

KINDS: tuple[tuple[ComponentKind, str], ...] = (
    *(("agent", f"fit_{name}") for name in AGENTS), ("team", "leader"), ("workflow", "steps"),
)  # fmt: skip


@pytest.fixture(scope="module")
def deployment(deploy: Deploy) -> Deployment:
    agents = (
        AGENT.format(id=f"fit_{name}", model=model, more=more)
        for name, (model, more) in AGENTS.items()
    )
    config = CONFIG.format(url=deploy.url).replace('"known"', '"fit_known"')
    return deploy(config + "".join(agents), files={"fetching.py": TOOLS})


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
    named = f"{session.number}-{len(session.runs)} work {chance.choice((0, 0, 1, 3, 12))}"
    asked = f"{named} {chance.choice((9, 400, 3_000, 30_000))} "
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
                run = (await operations.create_run("agent", "fit_unknown", request)).value
                assert run["status"] == "COMPLETED", (number, turn, run["error"])
                listed = (await operations.get_run_model_calls(run["run_id"])).value
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
            run = (await operations.create_run("agent", "fit_known", request)).value
        answer = run["messages"][-1]
        # The stub counts four bytes for a token: nothing has to be left out.
        assert answer["sent_bytes"] > WINDOW * 0.6 * 3
        assert "compacted" not in answer
        await operations.create_run("agent", "fit_other", request)
        last = model_endpoint.requests()[-1]
        assert "y" * 100 not in str(last["messages"])


@pytest.mark.slow
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
            for _ in range(chance.randrange(2, 7)):
                text, fits = build_message(chance, session)
                for message in (text,) if fits else (text, f"hi {len(session.runs)}"):
                    request = RunRequest(message, session_id=f"fit-{seed}-{number}")
                    document = await operations.create_run(session.kind, session.component, request)
                    run = dict(document.value)
                    session.runs.append(run)
                    error = run["error"] or {}
                    expected = None if fits or message != text else "CONTEXT_EXCEEDED"
                    assert error.get("code") == expected, (seed, session, error)
            check_requests(session, model_endpoint.requests(), seed)


async def test_turns_of_a_summary_fit_into_the_window(
    deployment: Deployment, model_endpoint: ModelEndpoint
) -> None:
    model_endpoint.forget()
    async with open_service(deployment) as service:
        operations = user(service)
        for text in ("x" * 40_000, "y" * 40_000, "hi"):
            request = RunRequest(text, session_id="fit-summary")
            await operations.create_run("agent", "fit_summed", request)

        async def is_summarized() -> bool:
            session = await operations.get_session_by_id("fit-summary")
            return bool(session.value["session_summary"])

        await wait_until(is_summarized)
    assert [body for body in model_endpoint.requests() if "refused" in body] == []


def check_requests(session: Session, requests: list[dict[str, Any]], seed: int) -> None:
    """Compare the log of the endpoint with the records of a session."""
    if session.component != "fit_unknown":
        refused = [body for body in requests if "refused" in body]
        large = [run for run in session.runs if run["status"] == "ERROR"]
        assert len(refused) <= len(large), (seed, session.number)
    if session.kind == "workflow" or session.component == "fit_summed":
        return
    for run in session.runs:
        if run["status"] != "COMPLETED":
            continue
        sent = [body for body in requests if asks(body, run["input"]) and "refused" not in body]
        shown = [each for each in sent[-1]["messages"] if each["role"] != "system"]
        compare(session, run, shown, seed)


def asks(body: dict[str, Any], text: str) -> bool:
    users = [each["content"] for each in body["messages"] if each["role"] == "user"]
    return bool(users) and users[-1] == text


def compare(session: Session, run: dict[str, Any], shown: list[dict[str, Any]], seed: int) -> None:
    """Compare the last request of a run with the stored messages and with what it left out."""
    before, omitted, cut, rest = [*session.list_before(run)], set(), 0, list(shown)
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
    stated["failed_run"] = sum(
        each["count"] for each in (recorded[-1]["omissions"] if recorded else ())
        if each["kind"] == "failed_run"
    )  # fmt: skip
    assert found == stated, (seed, session.number)


def is_shown(sent: dict[str, Any], stored: dict[str, Any], index: int) -> bool:
    """Return True if a message of a request is a stored one, whole or as a line."""
    if sent["role"] != stored["role"]:
        return False
    if sent["role"] == "tool":
        text, whole = sent["content"], stored["content"]
        line = re.search(r"\[(?:(\d+) characters of r|R)esult (\d+) .* it has (\d+) ch", text)
        if line is not None and text != whole:
            head, number, size = int(line[1] or 0), int(line[2]), int(line[3])
            return (number, size) == (index, len(whole)) and text.startswith(whole[:head])
        return bool(sent["tool_call_id"] == stored["tool_call_id"] and text == whole)
    ids = [[call["id"] for call in each.get("tool_calls") or ()] for each in (sent, stored)]
    return (sent["content"] or "") == stored["content"] and ids[0] == ids[1]
