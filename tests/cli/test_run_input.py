"""`runs start --input`, and the object in the output of commands, locally and on a server."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Agentctl
from tests.kit.command import Result
from tests.kit.deployment import ADMIN, Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.tables import every_row
from tests.kit.threaded_server import serve_in_thread

MODULE = Path(__file__).parent.parent / "server" / "input_code.py"
TABLES = "\n".join(
    f'[[agents]]\nid = "{name}"\nobject = "input_code:{name}"'
    for name in ("take_order", "take_message", "take_any")
)
ORDER = '{"number": "A-1", "pieces": 3}'

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def deployment(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Deployment:
    folder = tmp_path_factory.mktemp("input")
    shutil.copy(MODULE, folder / "input_code.py")
    return create_deployment(folder, model_endpoint.base_url, extra=TABLES)


@pytest.fixture(scope="module")
def url(deployment: Deployment) -> Iterator[str]:
    with serve_in_thread(deployment) as server:
        yield server.url


@pytest.fixture(params=["local", "remote"])
def run(
    request: pytest.FixtureRequest, deployment: Deployment, url: str, agentctl: Agentctl
) -> Run:
    """Run a command on the database or over HTTP."""
    remote = request.param == "remote"
    target = ("--url", url) if remote else ("--config", str(deployment.path))
    variables = {"AGENTCTL_TOKEN": deployment.token("ann", ADMIN)} if remote else {}
    return lambda *args, **options: agentctl(*args, *target, env=variables, **options)


def start(agent: str, *options: str) -> tuple[str, ...]:
    return ("runs", "start", "--agent", agent, *options)


def test_option_takes_text_file_and_stdin(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "order.json"
    file.write_text(f"{ORDER}\n")
    ways = [((ORDER,), ""), ((f"@{file}",), ""), (("-",), ORDER)]
    for option, typed in ways:
        ended = run(*start("take_order", "--input", *option), input=typed)
        assert (ended.code, ended.stdout) == (
            0,
            "Order Order(number='A-1', pieces=3) " + ORDER + "\n",
        ), ended.stderr
    both = run(*start("take_message", "--input", ORDER, "-m", "-", "--no-stream"), input="hello")
    assert both.stdout == f"str hello {ORDER}\n"


@every_row(
    "options, typed, text",
    [
        ((), "", "no message given"),
        (("--input", "[1]"), "", "--input must be a JSON object"),
        (("--input", "hello"), "", "--input must be a JSON object"),
        (("--input", '{"a": 1, "a": 2}'), "", "--input must be a JSON object"),
        (("--input", "@absent.json"), "", "the file absent.json cannot be read"),
        (("--input", "-"), "", "--input must be a JSON object"),
        (("--input", "-", "--message", "-"), "{}", "only one of --message and --input"),
        (("--input", "{}"), "", '"number" is a required property'),
        (("--input", '{"number": 1}'), "", "input.number does not match its schema"),
        (("--message", "hello"), "", "input is required: the agent take_order takes an object"),
    ],
)
def test_bad_input_is_one_line(run: Run, options: tuple[str, ...], typed: str, text: str) -> None:
    ended = run(*start("take_order", *options), input=typed)
    assert (ended.code, ended.stdout) == (2, "")
    assert text in ended.stderr
    assert "Traceback" not in ended.stderr


def test_agents_with_a_model_refuse_an_object(run: Run) -> None:
    ended = run(*start("echo", "--input", "{}"))
    assert ended.code == 2
    assert "input is for agents in code: the agent echo takes a message" in ended.stderr


def test_commands_show_the_object(run: Run) -> None:
    done = run(*start("take_message", "--input", ORDER, "-m", "hello", "--no-stream", "-o", "json"))
    record = json.loads(done.stdout)
    assert (record["input"], record["input_object"]) == ("hello", json.loads(ORDER))
    shown = run("runs", "get", record["run_id"], "-o", "tsv").lines
    row = dict(zip(shown[0].split("\t"), shown[1].split("\t"), strict=True))
    assert json.loads(row["input_object"]) == json.loads(ORDER)
    for view in (("-o", "markdown"), ("--full",)):
        text = run("sessions", "get", record["session_id"], *view).stdout
        assert 'input: {"number":"A-1","pieces":3}' in text, text
    alone = json.loads(
        run(*start("take_message", "--input", ORDER, "--no-stream", "-o", "json")).stdout
    )
    text = run("sessions", "get", alone["session_id"], "-o", "markdown").stdout
    assert '> {"number":"A-1","pieces":3}' in text
    assert "input: " not in text


def test_agents_get_shows_the_schema(run: Run) -> None:
    (record,) = [json.loads(run("agents", "get", "take_order", "-o", "json").stdout)]
    assert record["input_schema"]["required"] == ["number"]
    assert '"required":["number"]' in run("agents", "get", "take_order", "-o", "wide").stdout


def test_config_check_names_the_fields(deployment: Deployment, agentctl: Agentctl) -> None:
    ended = agentctl("config", "check", "--config", str(deployment.path))
    assert ended.code == 0
    assert (
        "agent take_order: its runs need the object input (number, pieces (optional))"
        in ended.stderr
    )
    assert "agent take_any: its runs need the object input (any fields)" in ended.stderr


def write_agent(folder: Path, source: str) -> Path:
    """Write a project with one agent, `act`."""
    (folder / "typed_code.py").write_text(source)
    config = folder / "agentctl.toml"
    config.write_text(
        '[authorization]\nenabled = false\n[[databases]]\nid = "main"\nurl = "sqlite:///a.db"\n'
        '[[agents]]\nid = "act"\nobject = "typed_code:act"\n'
    )
    return config


def test_module_that_prints_does_not_change_the_output(tmp_path: Path, agentctl: Agentctl) -> None:
    source = "print('noise')\nasync def act(given: dict) -> str:\n    return ''\n"
    config = write_agent(tmp_path, source)
    shown = agentctl("agents", "get", "act", "-o", "json", "--config", str(config))
    assert json.loads(shown.stdout)["input_schema"]["type"] == "object"
    assert "noise" in shown.stderr


def test_agent_that_prints_does_not_change_the_output(tmp_path: Path, agentctl: Agentctl) -> None:
    source = "print('import')\nasync def act(given):\n    print('noise')\n    return 'done'\n"
    config = write_agent(tmp_path, source)
    start = ("runs", "start", "--agent", "act", "--message", "x", "--config", str(config))
    shown = agentctl(*start, "-o", "json")
    assert json.loads(shown.stdout)["content"] == "done"
    assert shown.stderr.count("import") == shown.stderr.count("noise") == 1
    assert agentctl(*start).stdout == "done\n"


@pytest.mark.parametrize(
    ("annotation", "problem"),
    [
        ("RootModel[list[int]]", "its input RootModel[list[int]] is no object"),
        ("Unusable", "its input Unusable has no JSON Schema"),
        pytest.param(
            "Holder",
            "hint: import TypedDict from typing_extensions",
            marks=pytest.mark.skipif(
                sys.version_info >= (3, 12), reason="before Python 3.12: none, pydantic takes both"
            ),
        ),
    ],
)
def test_type_without_a_schema_is_a_configuration_error(
    tmp_path: Path, agentctl: Agentctl, annotation: str, problem: str
) -> None:
    config = write_agent(
        tmp_path,
        "from dataclasses import dataclass\nfrom pydantic import RootModel\n"
        "class Thing: ...\n@dataclass\nclass Unusable:\n    thing: Thing\n"
        "from typing import TypedDict\nclass Typed(TypedDict): ...\n"
        "@dataclass\nclass Holder:\n    typed: Typed\n"
        f"async def act(given: {annotation}) -> str:\n    return ''\n",
    )
    ended = agentctl("config", "check", "--config", str(config))
    assert ended.code == 2
    assert problem in ended.stderr
    assert "Traceback" not in ended.stderr


def test_export_and_import_keep_the_object(
    deployment: Deployment, agentctl: Agentctl, tmp_path: Path
) -> None:
    config = ("--config", str(deployment.path))
    done = agentctl(*start("take_any", "--input", ORDER, "--no-stream", "-o", "json"), *config)
    record = json.loads(done.stdout)
    file = tmp_path / "export.json"
    session = record["session_id"]
    exported = agentctl("sessions", "export", session, "--to-file", str(file), *config)
    assert exported.code == 0, exported.stderr
    assert agentctl("sessions", "delete", session, "--yes", *config).code == 0
    assert agentctl("sessions", "import", str(file), *config).code == 0
    again = json.loads(agentctl("runs", "get", record["run_id"], "-o", "json", *config).stdout)
    assert again["input_object"] == json.loads(ORDER)
