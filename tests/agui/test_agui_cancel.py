"""Pages that leave: the run ends, in every number of workers, as the model endpoint sees it."""

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
from tests.conditions import wait_for
from tests.deployment import ADMIN, Deployment, create_deployment
from tests.endpoint import ModelEndpoint
from tests.server.threaded_server import serve_in_thread
from tests.server.worker_server import serve_with_two_workers

pytestmark = pytest.mark.slow

SECONDS = 60.0

_NUMBERS = itertools.count()


class Leaver:
    """A page that leaves while its run works."""

    def __init__(self, deployment: Deployment, url: str, endpoint: ModelEndpoint) -> None:
        self._deployment, self._url, self._endpoint = deployment, url, endpoint

    def build(self, thread_id: str, **fields: Any) -> dict[str, Any]:
        run_id = f"run-{next(_NUMBERS)}"
        return {"threadId": thread_id, "runId": run_id, "protocolVersion": "1.0", **fields}

    @contextlib.contextmanager
    def open(
        self, component: str, body: dict[str, Any], **headers: str
    ) -> Iterator[httpx2.Response]:
        token = self._deployment.token("ada", *SCOPES)
        fields = {"Authorization": f"Bearer {token}", **headers}
        # A new connection, so that any worker may respond.
        with (
            httpx2.Client(timeout=SECONDS) as client,
            client.stream("POST", f"{self._url}/agui/{component}", json=body, headers=fields) as it,
        ):
            assert it.status_code == 200, it.read()
            yield it

    def leave(self, component: str, body: dict[str, Any], **headers: str) -> str:
        """Leave a stream when its run waits for the model; return the id of the run."""
        with self.open(component, body, **headers) as response:
            lines = response.iter_lines()  # kept: the response is closed with it
            assert "RUN_STARTED" in next(lines)
            self._endpoint.wait_for_open(1, SECONDS)
        return str(response.headers["x-run-id"])

    def read(self, component: str, body: dict[str, Any]) -> list[Any]:
        with self.open(component, body) as response:
            return parse_stream(response.iter_lines())

    def run(self, run_id: str) -> Any:
        headers = self._deployment.bearer("root", ADMIN)
        return httpx2.get(f"{self._url}/runs/{run_id}", headers=headers).json()

    def cancel(self, run_id: str) -> None:
        headers = self._deployment.bearer("root", ADMIN)
        path = f"{self._url}/agents/hang/runs/{run_id}/cancel"
        assert httpx2.post(path, headers=headers).status_code == 200

    def check_stopped(self, run_id: str) -> None:
        """Check that no model works for a run, which was cancelled."""
        self._endpoint.wait_for_open(0, SECONDS)
        ended = wait_for(lambda: self.run(run_id)["status"] == "CANCELLED", SECONDS)
        assert ended
        assert "disconnected" in self.run(run_id)["cancel_reason"]


@pytest.fixture(params=[1, 2], ids=["one worker", "two workers"], scope="module")
def leaver(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    model_endpoint: ModelEndpoint,
) -> Iterator[Leaver]:
    folder: Path = tmp_path_factory.mktemp("agui-cancel")
    (folder / "agui_agents.py").write_text(CODE)
    url = model_endpoint.base_url
    deployment = create_deployment(folder, url, extra=CONFIG.format(url=url))
    if request.param == 1:
        with serve_in_thread(deployment) as host:
            yield Leaver(deployment, host.url, model_endpoint)
        return
    with serve_with_two_workers(deployment) as server:
        yield Leaver(deployment, server.served.url, model_endpoint)


def test_page_that_leaves_ends_its_run(leaver: Leaver) -> None:
    message = {"id": "1", "role": "user", "content": "hello"}
    for number in range(3):
        body = leaver.build(f"new-{number}", messages=[message])
        leaver.check_stopped(leaver.leave("agents/hang", body))


def test_page_that_leaves_ends_a_run_that_it_went_on_with(leaver: Leaver) -> None:
    message = {"id": "1", "role": "user", "content": '{"a": 1, "b": 2}'}
    for number in range(3):
        thread_id = f"old-{number}"
        paused = leaver.read("workflows/duty", leaver.build(thread_id, messages=[message]))
        (interrupt,) = interrupts_of(paused)
        resume = [answer(interrupt, {"approved": True})]
        body = leaver.build(thread_id, messages=[], resume=resume)
        leaver.check_stopped(leaver.leave("workflows/duty", body))


def test_run_with_a_key_goes_on_without_its_page(
    leaver: Leaver, model_endpoint: ModelEndpoint
) -> None:
    message = {"id": "1", "role": "user", "content": "hello"}
    body = leaver.build("kept", messages=[message])
    run_id = leaver.leave("agents/hang", body, **{"Idempotency-Key": "kept"})
    assert leaver.run(run_id)["status"] == "RUNNING"
    model_endpoint.wait_for_open(1, SECONDS)
    leaver.cancel(run_id)
    model_endpoint.wait_for_open(0, SECONDS)
