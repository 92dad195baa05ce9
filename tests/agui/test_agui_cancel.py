"""Pages of AG-UI and of the AI SDK that leave: the run ends, as the model endpoint sees it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.agui.pages import CODE, CONFIG, SCOPES, answer, interrupts_of
from tests.agui.protocol import parse_stream
from tests.ai_sdk.protocol import apply, calls_of
from tests.ai_sdk.protocol import parse_stream as parse_chunks
from tests.kit.conditions import PATIENCE, wait_for
from tests.kit.deployment import ADMIN, Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.threaded_server import serve_in_thread

_NUMBERS = itertools.count()


class Leaver:
    """A page that leaves while its run works. Its requests go to each server in turn.

    Attributes:
        face: `agui` or `ai`.
    """

    def __init__(
        self, deployment: Deployment, urls: list[str], endpoint: ModelEndpoint, face: str = "agui"
    ) -> None:
        self._deployment = deployment
        self._urls = urls
        self._next_urls = itertools.cycle(urls)
        self._endpoint = endpoint
        self.face = face

    def of(self, face: str) -> Leaver:
        return Leaver(self._deployment, self._urls, self._endpoint, face)

    def build(self, thread_id: str, text: str) -> dict[str, Any]:
        """Return a request with a message."""
        if self.face == "ai":
            parts = [{"type": "text", "text": text}]
            return {"id": thread_id, "messages": [{"id": "1", "role": "user", "parts": parts}]}
        messages = [{"id": "1", "role": "user", "content": text}]
        return {**self._name(thread_id), "messages": messages}

    def approve(self, thread_id: str, text: str) -> dict[str, Any]:
        """Return a request that goes on with the paused run of a stream."""
        if self.face == "ai":
            message = apply(parse_chunks(text))
            for call in calls_of(message):
                call["state"] = "approval-responded"
                call["approval"]["approved"] = True
            return {"id": thread_id, "messages": [message]}
        (interrupt,) = interrupts_of(parse_stream(text.splitlines()))
        resume = [answer(interrupt, {"approved": True})]
        return {**self._name(thread_id), "messages": [], "resume": resume}

    @staticmethod
    def _name(thread_id: str) -> dict[str, Any]:
        return {"threadId": thread_id, "runId": f"run-{next(_NUMBERS)}", "protocolVersion": "1.0"}

    @contextlib.contextmanager
    def open(
        self, component: str, body: dict[str, Any], **headers: str
    ) -> Iterator[httpx2.Response]:
        token = self._deployment.token("ada", *SCOPES)
        fields = {"Authorization": f"Bearer {token}", **headers}
        path = f"{next(self._next_urls)}/{self.face}/{component}"
        # A connection of its own, which closes when the page leaves.
        with (
            httpx2.Client(timeout=PATIENCE) as client,
            client.stream("POST", path, json=body, headers=fields) as it,
        ):
            assert it.status_code == 200, it.read()
            yield it

    def leave(self, component: str, body: dict[str, Any], **headers: str) -> str:
        """Leave a stream when its run waits for the model; return the id of the run."""
        with self.open(component, body, **headers) as response:
            lines = response.iter_lines()  # kept: the response is closed with it
            assert next(lines)
            self._endpoint.wait_for_open(1)
        return str(response.headers["x-run-id"])

    def read(self, component: str, body: dict[str, Any]) -> str:
        with self.open(component, body) as response:
            return response.read().decode()

    def run(self, run_id: str) -> Any:
        headers = self._deployment.bearer("root", ADMIN)
        return httpx2.get(f"{next(self._next_urls)}/runs/{run_id}", headers=headers).json()

    def cancel(self, run_id: str, component: str) -> None:
        headers = self._deployment.bearer("root", ADMIN)
        path = f"{next(self._next_urls)}/{component}/runs/{run_id}/cancel"
        assert httpx2.post(path, headers=headers).status_code == 200

    def check_kept(self, run_id: str, component: str) -> None:
        """Check that a run still works, and cancel it."""
        assert self.run(run_id)["status"] == "RUNNING"
        self._endpoint.wait_for_open(1)
        self.cancel(run_id, component)
        self._endpoint.wait_for_open(0)
        wait_for(lambda: self.run(run_id)["status"] == "CANCELLED")
        # The leave of the page was no earlier cancel.
        assert "disconnected" not in str(self.run(run_id)["cancel_reason"])

    def check_stopped(self, run_id: str) -> None:
        """Check that no model works for a run, which was cancelled."""
        self._endpoint.wait_for_open(0)
        ended = wait_for(lambda: self.run(run_id)["status"] == "CANCELLED")
        assert ended
        assert "disconnected" in self.run(run_id)["cancel_reason"]


@pytest.fixture(params=[1, 2], ids=["one server", "two servers"], scope="module")
def served(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    model_endpoint: ModelEndpoint,
) -> Iterator[Leaver]:
    folder: Path = tmp_path_factory.mktemp("agui-cancel")
    (folder / "agui_agents.py").write_text(CODE)
    url = model_endpoint.base_url
    faces = "[ai_sdk]\nenabled = true\n"
    deployment = create_deployment(folder, url, extra=faces + CONFIG.format(url=url))
    with contextlib.ExitStack() as stack:
        hosts = [stack.enter_context(serve_in_thread(deployment)) for _ in range(request.param)]
        yield Leaver(deployment, [host.url for host in hosts], model_endpoint)


@pytest.fixture(params=["agui", "ai"])
def leaver(served: Leaver, request: pytest.FixtureRequest) -> Leaver:
    return served.of(request.param)


def test_page_that_leaves_ends_its_run(leaver: Leaver) -> None:
    for number in range(3):
        body = leaver.build(f"{leaver.face}-new-{number}", "hello")
        leaver.check_stopped(leaver.leave("agents/hang", body))


def test_page_that_leaves_ends_a_run_that_it_went_on_with(leaver: Leaver) -> None:
    for number in range(3):
        thread_id = f"{leaver.face}-old-{number}"
        paused = leaver.read("workflows/duty", leaver.build(thread_id, '{"a": 1, "b": 2}'))
        body = leaver.approve(thread_id, paused)
        leaver.check_stopped(leaver.leave("workflows/duty", body))


def test_run_with_a_key_goes_on_without_its_page(leaver: Leaver) -> None:
    name = f"{leaver.face}-kept"
    key = {"Idempotency-Key": name}
    started_id = leaver.leave("agents/hang", leaver.build(name, "hello"), **key)
    leaver.check_kept(started_id, "agents/hang")

    # Also one that the page went on with.
    paused = leaver.read("workflows/duty", leaver.build(f"{name}-on", '{"a": 1, "b": 2}'))
    body = leaver.approve(f"{name}-on", paused)
    continued_id = leaver.leave("workflows/duty", body, **{"Idempotency-Key": f"{name}-on"})
    leaver.check_kept(continued_id, "workflows/duty")
