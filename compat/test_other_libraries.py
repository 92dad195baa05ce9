"""The wrappers of docs/other-libraries.md, each with its library, on a server of this project.

`make compat` creates an environment for each library, in which the server runs.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from agentctl.interface.requests import CancelRequest, RunRequest
from tests.conformance.server import ConformanceServer, run_component, stream_component
from tests.kit.conditions import wait_for_run, wait_until
from tests.kit.deployment import create_deployment
from tests.kit.documents import ROOT, page
from tests.kit.model import ModelEndpoint, vendor_endpoint
from tests.kit.process import base_environment, serve_config
from tests.pauses.waiting import WaitingDeployment

__all__ = ["vendor_endpoint"]


LINES = 20
"""Maximum length of a wrapper."""

MODEL = re.compile(r'"(?:gpt|gemini|claude)-[\w.-]+"')
"""The name of the model in a wrapper."""


class Library(NamedTuple):
    """A library, and what its models need to know.

    Attributes:
        title: the heading of its wrapper.
        tool: the name of its tool for the model.
        variables: the address of the endpoint and the key.
        is_vendor: True for the endpoint with the interfaces of other vendors.
        has_threads: True if it calls its model in a thread, which a cancel cannot end.
    """

    title: str
    tool: str
    variables: dict[str, str]
    is_vendor: bool = False
    has_threads: bool = False


OPENAI = {"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "x"}

LIBRARIES = {
    "crewai": Library("crewAI", "list_orders", OPENAI, has_threads=True),
    "smolagents": Library("smolagents", "list_orders", OPENAI, has_threads=True),
    "llama-index": Library(
        "LlamaIndex", "list_orders", {"OPENAI_API_BASE": "{url}/v1", "OPENAI_API_KEY": "x"}
    ),
    "haystack": Library("Haystack", "list_orders", OPENAI),
    "claude-agent-sdk": Library(
        "Claude Agent SDK",
        "mcp__own__list_orders",
        {"ANTHROPIC_BASE_URL": "{url}", "ANTHROPIC_API_KEY": "x"},
        is_vendor=True,
    ),
}


def read_wrapper(name: str) -> str:
    """Return the code of a library on the page."""
    return read_block(f"## {LIBRARIES[name].title}")


def read_block(heading: str) -> str:
    """Return the first code below a heading of the page."""
    text = page("docs/other-libraries.md").text
    found = re.search(rf"^{heading}\n[^`]*```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("name", LIBRARIES)
def test_wrapper_is_short(name: str) -> None:
    (wrapper,) = (
        node
        for node in ast.parse(read_wrapper(name)).body
        if isinstance(node, ast.AsyncFunctionDef) and node.name == "support"
    )
    assert wrapper.end_lineno is not None
    assert wrapper.end_lineno - wrapper.lineno + 1 <= LINES


def find_python(name: str) -> Path:
    """Return the interpreter of a library; skip without it."""
    python = ROOT / ".peers" / f"other-{name}" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"needs the environment of {name}: make compat")
    return python


class Served(NamedTuple):
    """A server with the wrapper of a library, and the endpoint of its models."""

    name: str
    server: ConformanceServer
    endpoint: ModelEndpoint


@contextmanager
def serve(name: str, folder: Path, endpoint: ModelEndpoint) -> Iterator[Served]:
    """Run a server in the environment of a library; each model is an agent."""
    python = find_python(name)
    library = LIBRARIES[name]
    code = read_wrapper(name)
    # An agent of smolagents answers by calls only.
    echo = "plan" if name == "smolagents" else "echo"
    tool = "plan" if name == "smolagents" else f"tool:{library.tool}"
    tables = []
    for agent, model in {"echo": echo, "tool": tool, "hang": "hang"}.items():
        changed, number = MODEL.subn(f'"{model}"', code)
        assert number == 1
        (folder / f"wrapped_{agent}.py").write_text(changed)
        tables.append(f'[[agents]]\nid = "other-{agent}"\nobject = "wrapped_{agent}:support"')
    deployment = create_deployment(folder, endpoint.base_url, extra="\n\n".join(tables))
    (folder / "home").mkdir()
    given = {key: value.format(url=endpoint.root_url) for key, value in library.variables.items()}
    environment = {**base_environment(), **given, "HOME": str(folder / "home")}
    program = (str(python), "-m", "agentctl")
    with serve_config(deployment.path, environment=environment, program=program) as process:
        yield Served(name, ConformanceServer(process.url, deployment), endpoint)


@pytest.fixture(scope="module", params=LIBRARIES)
def served(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    model_endpoint: ModelEndpoint,
    vendor_endpoint: ModelEndpoint,
) -> Iterator[Served]:
    """A server with each library in turn."""
    name: str = request.param
    endpoint = vendor_endpoint if LIBRARIES[name].is_vendor else model_endpoint
    with serve(name, tmp_path_factory.mktemp(name), endpoint) as running:
        yield running


def build_message(served: Served, text: str, *calls: str) -> str:
    """Return a message for which the model makes calls without arguments and answers with a text.

    The models of the endpoints answer with the message itself; that of smolagents follows a plan.
    """
    if served.name != "smolagents":
        return "{}" if calls else text
    planned = [(name, {}) for name in calls] + [("final_answer", {"answer": text})]
    return json.dumps(
        [
            {
                "tool_calls": [
                    {
                        "id": f"call_{number}",
                        "type": "function",
                        "function": {"name": name, "arguments": json.dumps(arguments)},
                    }
                ]
            }
            for number, (name, arguments) in enumerate(planned)
        ]
    )


async def test_text_and_tokens_are_those_of_the_library(served: Served) -> None:
    message = build_message(served, "hello big world")
    async with served.server.connect() as operations:
        events = await stream_component(operations, "other-echo", message)
        run = (await operations.runs.get(events[0]["run_id"])).value
    assert run["status"] == "COMPLETED", run
    # The last text of a request of Claude Agent SDK is its own.
    is_claude = served.name == "claude-agent-sdk"
    expected = "powered by the model echo" if is_claude else "hello big world"
    assert expected in run["content"]
    assert "hello big world" in json.dumps(served.endpoint.requests()[-1])
    pieces = [event["content"] for event in events if event["event"] == "RunContent"]
    assert "".join(pieces) == run["content"]
    assert run["metrics"]["output_tokens"] > 0
    assert run["stopped_at"] is not None


async def test_tool_calls_are_recorded(served: Served) -> None:
    tool = LIBRARIES[served.name].tool
    message = build_message(served, "order 7", tool)
    async with served.server.connect() as operations:
        run = await run_component(operations, "agent", "other-tool", message)
    assert run["status"] == "COMPLETED", run
    (call,) = run["tools"] or []
    assert (call["tool_name"], call["tool_call_error"]) == (tool, False)
    assert "order 7" in json.dumps(call["result"])
    assert "order 7" in run["content"]


async def test_next_run_gets_the_history(served: Served) -> None:
    session = "other-history"
    async with served.server.connect() as operations:
        for text in ("a green apple", "a red pear"):
            message = build_message(served, text)
            run = await run_component(
                operations, "agent", "other-echo", message, session_id=session
            )
            assert run["status"] == "COMPLETED", run
    sent = json.dumps(served.endpoint.requests()[-1])
    assert "a green apple" in sent
    assert "a red pear" in sent


async def test_cancel_ends_the_run(served: Served) -> None:
    open_before = served.endpoint.open_calls()
    async with served.server.connect() as operations:
        request = RunRequest("hello", background=True)
        run = (await operations.runs.create("agent", "other-hang", request)).value
        await wait_until(lambda: served.endpoint.open_calls() > open_before)
        cancel = CancelRequest(run["session_id"], wait=5.0)
        await operations.runs.cancel("agent", "other-hang", run["run_id"], cancel)
        ended = await wait_for_run(operations, run["run_id"])
    assert ended["status"] == "CANCELLED"
    if LIBRARIES[served.name].has_threads:
        assert (ended["stopped_at"], served.endpoint.open_calls()) == (None, open_before + 1)
    else:
        await wait_until(lambda: served.endpoint.open_calls() == open_before)


CODE = """Thought: I look.
<code>
print("order " + "7")
final_answer("done")
</code>"""


@pytest.mark.parametrize("code", [CODE, CODE.replace("print(", "absent(")])
def test_code_of_an_agent_of_smolagents_is_a_tool_call(
    tmp_path: Path, model_endpoint: ModelEndpoint, code: str
) -> None:
    program = read_wrapper("smolagents").replace("ToolCallingAgent", "CodeAgent")
    program = MODEL.sub('"echo"', program).replace("verbosity_level=0", "max_steps=1")
    deployment = create_asking(tmp_path, model_endpoint, "smolagents", program)
    with deployment.serve() as server:
        run = server.start("asking", code)
    assert run["status"] == "COMPLETED", run["error"]
    (call,) = run["tools"]
    has_failed = "absent" in code
    assert (call["tool_name"], call["tool_call_error"]) == ("python_interpreter", has_failed)
    assert ("absent" if has_failed else "order 7") in call["result"]
    assert ("absent(" if has_failed else "print(") in call["tool_args"]["input"]


def create_asking(folder: Path, endpoint: ModelEndpoint, name: str, code: str) -> WaitingDeployment:
    """Create a deployment with the agent `asking` of a code, for the environment of a library."""
    code = code.replace("async def support(", "async def ask(")
    (folder / "asking.py").write_text(code)
    table = '[[agents]]\nid = "asking"\nobject = "asking:ask"'
    inner = create_deployment(folder, endpoint.base_url, extra=table)
    (folder / "home").mkdir()
    given = LIBRARIES[name].variables
    variables = {key: value.format(url=endpoint.root_url) for key, value in given.items()}
    variables["HOME"] = str(folder / "home")
    return WaitingDeployment(inner, endpoint.base_url, str(find_python(name)), variables)


class Question(NamedTuple):
    """The agent of a library that asks a person.

    Attributes:
        model: the behaviour of the endpoint.
        asked: the beginning of the question.
        calls: names and results of its tools.
        answer: a part of the answer of the agent.
        requests: number of calls of its model.
    """

    model: str
    asked: str
    calls: list[tuple[str, str]]
    answer: str
    requests: int


QUESTIONS = {
    "crewai": Question("echo", "Refund it?", [], "paid: ", 1),
    "llama-index": Question(
        "tool:list_orders", "May I look?", [("list_orders", "order 7")], "order 7", 2
    ),
    "claude-agent-sdk": Question(
        "tool:mcp__own__list_orders",
        "May I call mcp__own__list_orders with {}?",
        [("mcp__own__list_orders", '[{"type":"text","text":"order 7"}]')],
        "order 7",
        2,
    ),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_question_survives_a_kill(
    tmp_path: Path, model_endpoint: ModelEndpoint, vendor_endpoint: ModelEndpoint, name: str
) -> None:
    library = LIBRARIES[name]
    expected = QUESTIONS[name]
    endpoint = vendor_endpoint if library.is_vendor else model_endpoint
    endpoint.forget()
    code = read_block(f"### A person in {library.title}")
    code, number = MODEL.subn(f'"{expected.model}"', code)
    assert number == 1
    deployment = create_asking(tmp_path, endpoint, name, code)
    with deployment.serve("first.log") as server:
        run = server.start("asking", "order 7" if expected.model == "echo" else "{}")
        assert run["status"] == "PAUSED", run["error"]
        (asked,) = server.list_approvals(run)
        assert asked["question"].startswith(expected.asked)
        server.kill()
    with deployment.serve("second.log") as server:
        server.decide(run, "answer", answer="yes")
        run = server.wait_for_end(run)
    assert run["status"] == "COMPLETED", run["error"]
    assert [(each["tool_name"], each["result"]) for each in run["tools"] or ()] == expected.calls
    assert run["content"].startswith(expected.answer)
    assert "order 7" in run["content"]
    assert len(endpoint.requests(expected.model)) == expected.requests
