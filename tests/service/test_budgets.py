"""Budgets: what runs may use in a period, over one server and over several ones."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from agentctl import errors
from agentctl.admin.doctor.runs import check_budgets
from agentctl.auth.principal import Principal
from agentctl.config import load_settings
from agentctl.config.budgets import Budget
from agentctl.interface.requests import RunFilter, RunRequest
from agentctl.runs.gate import budgets
from agentctl.runs.gate.budgets import find_period
from agentctl.service.service import Service, ServiceOperations
from agentctl.store.repositories import quotas
from tests.kit import clock
from tests.kit.clock import pass_time
from tests.kit.command import run_command, stay_in_hour
from tests.kit.conditions import wait_for, wait_until
from tests.kit.deployment import SQLITE_DATABASES, Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.postgres import postgres_schemas
from tests.kit.service import ALL, admin, open_service
from tests.kit.threaded_server import serve_in_thread

LONG = os.environ.get("AGENTCTL_TEST_LONG") == "1"
RUNS, USERS, AT_ONCE = (10_000, 20, 24) if LONG else (36, 2, 6)

CALL = '{"a": 1, "b": 2}'
"""The message of a run of the agent `tool-add`, which calls its model twice."""

CODE = """
import asyncio
from pathlib import Path

import agentctl


@agentctl.tool(idempotent=True)
async def wait_for_file(name: str) -> str:
    folder = Path(__file__).parent
    (folder / "begun").touch()
    while not (folder / name).exists():
        await asyncio.sleep(0.05)
    return "found"


async def spend(message, context):
    while not Path(message).exists():
        await asyncio.sleep(0.02)
        context.usage(input_tokens=100)
    return "done"


async def spend_at_once(message, context):
    for _ in range(50):
        context.usage(input_tokens=100)
    await asyncio.sleep(200)
    return "done"


async def spend_once(message, context):
    context.usage(input_tokens=300)
    await asyncio.sleep(30)
    return "done"
"""


@pytest.fixture(autouse=True)
def one_day() -> Iterator[None]:
    """Let no day begin in a test: the period of a budget ends at midnight UTC."""
    with stay_in_hour():
        yield


def deploy(folder: Path, endpoint: ModelEndpoint, extra: str, **options: Any) -> Deployment:
    (folder / "spending.py").write_text(CODE)
    agents = '[[agents]]\nid = "spender"\nobject = "spending:spend"\n'
    agents += '[[agents]]\nid = "once"\nobject = "spending:spend_once"\n'
    agents += '[[agents]]\nid = "burst"\nobject = "spending:spend_at_once"\n'
    return create_deployment(folder, endpoint.base_url, extra=f"{agents}\n{extra}", **options)


def budget(**values: object) -> str:
    lines = [
        f"{name} = {str(value).lower() if isinstance(value, bool) else repr(value)}"
        for name, value in values.items()
    ]
    return "\n".join(["[[budgets]]", 'id = "b"', *lines, ""]).replace("'", '"')


def user(service: Service, subject: str = "me") -> ServiceOperations:
    return service.operations_for(Principal(subject=subject, scopes=ALL | {"usage:read"}))


async def run_agent(
    operations: ServiceOperations, agent: str = "echo", message: str = "hello", **more: Any
) -> dict[str, Any]:
    return dict((await operations.runs.create("agent", agent, RunRequest(message, **more))).value)


async def list_budgets(operations: ServiceOperations, **more: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in (await operations.usage.list_budgets(**more)).value]


async def test_used_budget_refuses_runs_of_one_user(
    tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    deployment = deploy(tmp_path, model_endpoint, budget(per="user", tokens=1))
    async with open_service(deployment) as service:
        run = await run_agent(user(service, "ann"))
        assert run["status"] == "COMPLETED"
        with pytest.raises(errors.BudgetExceeded) as refusal:
            await run_agent(user(service, "ann"))
        period = find_period(service.settings.budgets[0])
        assert "1 tokens a day of each user" in refusal.value.detail
        seconds = int(refusal.value.headers()["Retry-After"])
        assert 0 < seconds <= (period.before - period.since) / 1_000_000
        for other in ("ben", "Ann"):
            assert (await run_agent(user(service, other)))["status"] == "COMPLETED"
        (row,) = await list_budgets(user(service, "ann"))
        assert (row["user_id"], row["used"], row["state"]) == (
            "ann",
            run["total_tokens"],
            "exceeded",
        )
        rows = await list_budgets(admin(service))
        assert {each["user_id"] for each in rows} == {"ann", "ben", "Ann"}
        assert await list_budgets(user(service, "ann"), user_id="ben") == []


async def test_repeated_request_is_not_refused(
    tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    deployment = deploy(tmp_path, model_endpoint, budget(per="server", tokens=1))
    async with open_service(deployment) as service:
        ann = user(service, "ann")
        first = await run_agent(ann, idempotency_key="k", session_id="s")
        again = await run_agent(ann, idempotency_key="k", session_id="s")
        assert again["run_id"] == first["run_id"]
        assert await list_budgets(ann) == []
        (row,) = await list_budgets(admin(service))
        assert row["state"] == "exceeded"


async def test_live_run_is_stopped_before_its_next_call(
    tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    stop = budget(per="agent", component="tool-add", tokens=1, on_exceed="stop")
    async with open_service(deploy(tmp_path, model_endpoint, stop)) as service:
        run = await run_agent(user(service), "tool-add", CALL)
        assert run["error"]["code"] == "BUDGET_EXCEEDED"
        assert [span["kind"] for span in run["spans"]].count("model") == 1
        assert len(run["tools"]) == 1


async def test_code_that_reports_tokens_is_stopped(
    tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    stop = budget(per="server", tokens=250, on_exceed="stop")
    async with open_service(deploy(tmp_path, model_endpoint, stop)) as service:
        run = await run_agent(user(service), "spender")
        assert run["error"]["code"] == "BUDGET_EXCEEDED"
        assert run["total_tokens"] >= 250


async def test_one_report_of_code_is_enough_to_stop_it(
    tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    stop = budget(per="server", tokens=250, on_exceed="stop")
    async with open_service(deploy(tmp_path, model_endpoint, stop)) as service:
        run = await run_agent(user(service), "once")
        assert run["error"]["code"] == "BUDGET_EXCEEDED"


async def test_usage_of_live_runs_counts_on_other_servers(
    tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    deployment = deploy(tmp_path, model_endpoint, budget(per="server", tokens=300))
    async with open_service(deployment) as first, open_service(deployment) as second:
        spending = asyncio.create_task(run_agent(user(first), "spender", str(tmp_path / "go")))

        async def is_used_up() -> bool:
            (row,) = await list_budgets(admin(second))
            return bool(row["live"] >= 300)

        await wait_until(is_used_up)
        with pytest.raises(errors.BudgetExceeded):
            await run_agent(user(second))
        (tmp_path / "go").touch()
        run = await spending
        assert run["status"] == "COMPLETED"
        (row,) = await list_budgets(admin(second))
        assert (row["live"], row["used"]) == (0, run["total_tokens"])


async def test_cost_needs_a_known_price(tmp_path: Path, model_endpoint: ModelEndpoint) -> None:
    deployment = deploy(tmp_path, model_endpoint, budget(per="server", cost=1.0))
    async with open_service(deployment) as service:
        with pytest.raises(errors.BudgetExceeded) as refusal:
            await run_agent(user(service))
        assert "the price of the model echo is not known" in refusal.value.detail
        assert "Retry-After" not in refusal.value.headers()
    allowed = budget(per="server", cost=1.0, unknown="allow")
    folder = tmp_path / "allowed"
    folder.mkdir()
    async with open_service(deploy(folder, model_endpoint, allowed)) as service:
        run = await run_agent(user(service))
        (row,) = await list_budgets(admin(service))
        assert (row["used"], row["unpriced_tokens"]) == (0, run["total_tokens"])


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"per": "user"}, "exactly one of them"),
        ({"per": "user", "tokens": 1, "cost": 1.0}, "exactly one of them"),
        ({"per": "server", "tokens": 1, "component": "echo"}, "must be empty"),
        ({"per": "agent", "tokens": 1, "component": "none"}, "none"),
    ],
)
def test_wrong_budgets_are_reported(tmp_path: Path, values: dict[str, Any], problem: str) -> None:
    (tmp_path / "agentctl.toml").write_text(
        '[[databases]]\nid = "main"\nurl = "sqlite:///main.db"\n'
        '[[models]]\nid = "echo"\nprovider = "demo"\nmodel = "echo"\n'
        f'[[agents]]\nid = "echo"\nmodel = "echo"\n{budget(**values)}'
    )
    with pytest.raises(errors.InvalidConfiguration, match="budgets") as refusal:
        load_settings(tmp_path / "agentctl.toml", {})
    assert problem in f"{refusal.value.detail} {refusal.value.cause}"


@contextlib.asynccontextmanager
async def servers(deployment: Deployment) -> AsyncIterator[list[Service]]:
    async with contextlib.AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(open_service(deployment))]
        opened += [await stack.enter_async_context(open_service(deployment)) for _ in range(2)]
        yield opened


@pytest.fixture
def databases(request: pytest.FixtureRequest) -> Iterator[Mapping[str, str]]:
    if not LONG:
        yield SQLITE_DATABASES
        return
    with postgres_schemas(request.getfixturevalue("postgres_url")) as schemas:
        yield schemas


async def execute_random_runs(opened: list[Service]) -> list[dict[str, Any] | None]:
    """Execute runs of all users, each on some service, a few at a time.

    A run that is refused since its budget is used up is None.
    """
    chance = random.Random(7)
    slots = asyncio.Semaphore(AT_ONCE)

    async def execute(
        service: Service, user_id: str, agent: str, message: str
    ) -> dict[str, Any] | None:
        async with slots:
            try:
                return await run_agent(user(service, user_id), agent, message)
            except errors.BudgetExceeded:
                return None

    work = []
    for number in range(RUNS):
        words = "word " * chance.randrange(1, 20)
        agent, message = chance.choice([("tool-add", CALL), ("echo", words)])
        work.append(execute(chance.choice(opened), f"user-{number % USERS}", agent, message))
    return await asyncio.gather(*work)


@contextlib.asynccontextmanager
async def adding_ended_runs(service: Service) -> AsyncIterator[None]:
    """Add ended runs to the sums within the block, as the server that sweeps does."""

    async def add_all() -> None:
        while True:
            await service.hosting.sums.add_ended_runs()
            await asyncio.sleep(0.2)

    adding = asyncio.create_task(add_all())
    try:
        yield
    finally:
        adding.cancel()


def find_largest_call(runs: list[dict[str, Any]]) -> int:
    """Return the tokens of the model call that used the most."""
    calls = [span for run in runs for span in run["spans"] if span["kind"] == "model"]
    return max((call["input_tokens"] or 0) + (call["output_tokens"] or 0) for call in calls)


async def test_no_overshoot_above_one_call_per_live_run(
    tmp_path: Path, model_endpoint: ModelEndpoint, databases: Mapping[str, str]
) -> None:
    limit = 10 * RUNS // USERS
    extra = budget(per="user", tokens=limit, on_exceed="stop")
    deployment = deploy(tmp_path, model_endpoint, extra, databases=databases)
    async with servers(deployment) as opened:
        async with adding_ended_runs(opened[0]):
            results = await execute_random_runs(opened)
        rows = await list_budgets(admin(opened[0]))

    runs = [run for run in results if run is not None]
    refused = len(results) - len(runs)
    used = Counter[str]()
    for run in runs:
        used[run["user_id"]] += run["metrics"]["total_tokens"]
    largest = find_largest_call(runs)
    print(f"{RUNS} runs, {refused} refused, limit {limit}, largest call {largest}, used {used}")

    assert {row["user_id"]: row["used"] for row in rows} == used
    assert all(row["live"] == 0 for row in rows)
    assert refused > 0
    assert max(used.values()) >= limit
    assert all(tokens < limit + AT_ONCE * largest for tokens in used.values()), (limit, largest)


def test_command_lists_budgets(tmp_path: Path, model_endpoint: ModelEndpoint) -> None:
    deployment = deploy(tmp_path, model_endpoint, budget(per="server", cost=12.5, unknown="allow"))

    async def start_run() -> None:
        async with open_service(deployment) as service:
            await run_agent(user(service))

    clock.run(start_run())
    environment = {"PATH": "", "USER": "boss"}
    listed = run_command(
        "usage", "--budgets", "-o", "tsv", environment=environment, folder=deployment.folder
    )
    heading, row = (line.split("\t") for line in listed.lines)
    values = dict(zip(heading, row, strict=True))
    assert (values["budget_id"], values["unit"], values["state"]) == ("b", "dollars", "open")
    assert int(values["unpriced_tokens"]) > 0


def test_doctor_names_models_without_a_price(tmp_path: Path, model_endpoint: ModelEndpoint) -> None:
    settings = deploy(tmp_path, model_endpoint, budget(per="server", cost=1.0)).settings
    findings = asyncio.run(check_budgets(settings))
    assert {finding.verdict for finding in findings} == {"wrong"}
    assert any("the model echo, whose price is not known" in each.what for each in findings)


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The tokens and the cost of each report of a live run."""
    made: list[tuple[int, int]] = []
    report = quotas.report

    def keep(run_id: str, tokens: int, cost: int, *counters: Any) -> Any:
        made.append((tokens, cost))
        return report(run_id, tokens, cost, *counters)

    monkeypatch.setattr(quotas, "report", keep)
    return made


async def test_reports_of_code_share_their_checks(
    tmp_path: Path, model_endpoint: ModelEndpoint, reports: list[tuple[int, int]]
) -> None:
    extra = budget(per="server", tokens=1_000_000, on_exceed="stop")
    async with open_service(deploy(tmp_path, model_endpoint, extra)) as service:
        running = asyncio.create_task(run_agent(user(service), "burst"))
        await wait_until(lambda: reports and reports[-1] == (5_000, 0))
        await pass_time(200)
        assert (await running)["status"] == "COMPLETED"
    assert len(reports) <= 2
    assert reports[-1][0] == 5_000


async def test_budget_of_each_agent_counts_its_runs_only(
    tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    deployment = deploy(tmp_path, model_endpoint, budget(per="agent", tokens=1))
    async with open_service(deployment) as service:
        await run_agent(user(service))
        with pytest.raises(errors.BudgetExceeded):
            await run_agent(user(service))
        assert (await run_agent(user(service), "history"))["status"] == "COMPLETED"


async def test_queued_run_is_checked_when_it_begins(
    tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    lined = '[[agents]]\nid = "lined"\nmodel = "tool-wait"\ntools = ["world_tools:wait"]\n'
    lined += 'on_busy = "enqueue"\n'
    deployment = deploy(tmp_path, model_endpoint, lined + budget(per="server", tokens=1))
    async with open_service(deployment) as service:
        run = partial(run_agent, user(service), "lined", '{"seconds": 200}', session_id="s")
        running = asyncio.gather(run(), run())

        async def has_both() -> bool:
            page = (await user(service).runs.list(RunFilter())).value
            return bool(page["meta"]["total_count"] == 2)

        await wait_until(has_both)
        await pass_time(200)
        first, second = await running
        assert sorted([first["status"], second["status"]]) == ["COMPLETED", "ERROR"]
        failed = first if first["status"] == "ERROR" else second
        assert failed["error"]["code"] == "BUDGET_EXCEEDED"
        assert failed["total_tokens"] in (None, 0)


WAITING = """
[[agents]]
id = "asks"
model = "tool-add"
tools = ["world_tools:add"]
approve = { add = "user" }

[[models]]
id = "waits"
provider = "openai"
model = "tool:wait_for_file"
base_url = "URL"

[[agents]]
id = "waits"
durable = true
model = "waits"
tools = ["spending:wait_for_file"]
"""


ADDING = {"message": CALL, "stream": False}
"""A request to the agent `asks`, whose run pauses."""


def start_lasting_run(ann: httpx2.Client, folder: Path) -> str:
    """Start a run that waits for the file `go`, and return its id once its call has begun."""
    lasting = {"message": '{"name": "go"}', "background": True, "stream": False}
    run_id = ann.post("/agents/waits/runs", json=lasting).json()["run_id"]
    wait_for((folder / "begun").exists)
    return str(run_id)


def approve(ann: httpx2.Client, paused: dict[str, Any]) -> dict[str, Any]:
    """Approve the only call of a paused run of `asks`, and return its record when it has ended."""
    (asked,) = paused["approvals"]
    ruling = {name: asked[name] for name in ("approval_id", "arguments_hash")}
    body = {"decisions": [{**ruling, "decision": "approve"}], "stream": False}
    return dict(ann.post(f"/agents/asks/runs/{paused['run_id']}/continue", json=body).json())


def test_runs_that_wait_count_and_go_on_when_the_budget_is_used_up(
    tmp_path: Path, process_endpoint: ModelEndpoint
) -> None:
    process_endpoint.forget()
    waiting = WAITING.replace("URL", process_endpoint.base_url)
    extra = waiting + budget(per="user", tokens=1, period="month")
    deployment = deploy(tmp_path, process_endpoint, extra)
    scopes = (*ALL, "usage:read")

    with (
        serve_in_thread(deployment) as server,
        deployment.client(server.url, "ann", *scopes) as ann,
    ):
        lasting_id = start_lasting_run(ann, tmp_path)
        paused = ann.post("/agents/asks/runs", json=ADDING).json()
        assert paused["status"] == "PAUSED"
        assert ann.get("/budgets").json()[0]["live"] == paused["total_tokens"] > 0
        for _ in range(3):
            refused = ann.post("/agents/asks/runs", json=ADDING)
            assert (refused.status_code, refused.json()["error_code"]) == (429, "BUDGET_EXCEEDED")
        assert len(process_endpoint.requests("tool:add")) == 1
        server.kill()

    (tmp_path / "go").touch()
    with (
        serve_in_thread(deployment) as server,
        deployment.client(server.url, "ann", *scopes) as ann,
    ):
        wait_for(lambda: ann.get(f"/runs/{lasting_id}").json()["finished_at"])
        ended = ann.get(f"/runs/{lasting_id}").json()
        assert (ended["status"], ended["content"]) == ("COMPLETED", "found"), ended["error"]
        run = approve(ann, paused)
        assert (run["status"], run["content"]) == ("COMPLETED", "3"), run["error"]
        (row,) = ann.get("/budgets").json()
        assert (row["live"], row["used"]) == (0, ended["total_tokens"] + run["total_tokens"])


async def test_live_run_reports_its_exact_cost(
    tmp_path: Path, model_endpoint: ModelEndpoint, reports: list[tuple[int, int]]
) -> None:
    priced = '[[models]]\nid = "priced"\nprovider = "openai"\nmodel = "tool:add"\n'
    priced += f'base_url = "{model_endpoint.base_url}"\nprice = {{ input = 2.0, output = 2.0 }}\n'
    priced += '[[agents]]\nid = "priced"\nmodel = "priced"\ntools = ["world_tools:add"]\n'
    extra = priced + budget(per="agent", component="priced", cost=1.0, on_exceed="stop")
    async with open_service(deploy(tmp_path, model_endpoint, extra)) as service:
        run = await run_agent(user(service), "priced", CALL)
        assert run["status"] == "COMPLETED", run["error"]
        # Two dollars for a million tokens are 2,000 nanodollars for each.
        ((tokens, cost),) = reports
        assert 0 < tokens < run["total_tokens"]
        assert cost == 2_000 * tokens


async def test_reports_of_ended_runs_are_deleted_in_time(
    tmp_path: Path,
    model_endpoint: ModelEndpoint,
    monkeypatch: pytest.MonkeyPatch,
    reports: list[tuple[int, int]],
) -> None:
    deletions: list[int] = []
    forget = quotas.forget_ended

    def keep() -> Any:
        deletions.append(len(reports))
        return forget()

    monkeypatch.setattr(budgets, "FORGET_REPORTS", 3)
    monkeypatch.setattr(quotas, "forget_ended", keep)
    extra = budget(per="server", tokens=1_000_000, on_exceed="stop")
    async with open_service(deploy(tmp_path, model_endpoint, extra)) as service:
        for _ in range(7):
            await run_agent(user(service), "tool-add", CALL)
    assert (len(reports), deletions) == (7, [3, 6])


async def test_checks_leave_no_read_behind(tmp_path: Path, model_endpoint: ModelEndpoint) -> None:
    deployment = deploy(tmp_path, model_endpoint, budget(per="user", tokens=1_000_000))
    async with open_service(deployment) as service:
        names = ("ann", "ben", "ann", "ann")
        await asyncio.gather(*(run_agent(user(service, name)) for name in names))
        assert service.hosting.gate.budgets._reads == {}


@pytest.mark.parametrize(
    ("period", "at", "begin", "end"),
    [
        ("day", "2026-03-04T23:59:59", "2026-03-04", "2026-03-05"),
        ("day", "2026-12-31T00:00:00", "2026-12-31", "2027-01-01"),
        ("month", "2026-01-31T12:00:00", "2026-01-01", "2026-02-01"),
        ("month", "2028-02-29T12:00:00", "2028-02-01", "2028-03-01"),
        ("month", "2026-12-01T00:00:00", "2026-12-01", "2027-01-01"),
    ],
)
def test_periods_begin_at_midnight_utc(
    monkeypatch: pytest.MonkeyPatch, period: Any, at: str, begin: str, end: str
) -> None:
    def microseconds(text: str) -> int:
        return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000_000

    monkeypatch.setattr(budgets, "now", lambda: microseconds(at))
    found = find_period(Budget("b", per="server", period=period, tokens=1))
    assert found == (microseconds(begin), microseconds(end))
