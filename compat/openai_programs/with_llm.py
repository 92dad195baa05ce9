"""The program llm, with models in its `extra-openai-models.yaml`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from operations import KEY, URL, due, expect, operation, report

MODELS = ("echo", "history", "weather", "http-500", "gone")
FOLDER = Path(tempfile.mkdtemp(prefix="llm-"))
ADA = '{"name": "Ada", "age": 36}'
TOOLS = "def get_weather(city: str) -> str:\n    return f'Sunny in {city}'\n"

(FOLDER / "keys.json").write_text(json.dumps({"agentctl": KEY}))
(FOLDER / "extra-openai-models.yaml").write_text(
    "".join(
        f'- model_id: {name}\n  model_name: {name}\n  api_base: "{URL}"\n'
        "  api_key_name: agentctl\n  supports_schema: true\n  supports_tools: true\n"
        for name in MODELS
    )
)


def llm(*words: str, stdin: str | None = None, fails: bool = False) -> str:
    """Return the output of a command; of one that fails, the text of its error."""
    ended = subprocess.run(
        [sys.executable, "-m", "llm", *words],
        env=os.environ | {"LLM_USER_PATH": str(FOLDER), "OPENAI_API_KEY": "", "HOME": str(FOLDER)},
        input=stdin,
        stdin=None if stdin is not None else subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
    )
    if (ended.returncode != 0) is not fails:
        raise RuntimeError(ended.stderr[-400:] or ended.stdout[-400:])
    return (ended.stderr if fails else ended.stdout).strip()


def read_users(output: str) -> list[str]:
    return [text for role, text in json.loads(output) if role == "user"]


@operation
def prompt() -> None:
    expect(llm("-m", "echo", "hello") == "hello")


@operation
def prompt_without_stream() -> None:
    expect(llm("-m", "echo", "--no-stream", "hello") == "hello")


@operation
def prompt_of_stdin() -> None:
    expect("from a pipe" in llm("-m", "echo", stdin="from a pipe"))


@operation
def system_prompt() -> None:
    expect(read_users(llm("-m", "history", "-s", "Be brief.", "hello")) == ["Be brief.", "hello"])


@operation
def continued_conversation() -> None:
    llm("-m", "history", "one")
    expect(read_users(llm("-m", "history", "-c", "two")) == ["one", "two"])


@operation
def usage() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "llm", "-m", "echo", "-u", "hello"],
        env=os.environ | {"LLM_USER_PATH": str(FOLDER)},
        capture_output=True,
        text=True,
        timeout=50,
    )
    expect("input" in ended.stderr and "output" in ended.stderr, ended.stderr)


@operation
def template() -> None:
    llm("-s", "Be brief.", "--save", "brief")
    expect(read_users(llm("-m", "history", "-t", "brief", "hello")) == ["Be brief.", "hello"])


@operation
def schema() -> None:
    expect(json.loads(llm("-m", "echo", "--schema", "name, age int", ADA)) == json.loads(ADA))


@operation
def option_of_the_model() -> None:
    expect(llm("-m", "echo", "-o", "temperature", "0.2", "hello") == "hello")


@operation
def functions_as_tools() -> None:
    asked = 'What is the weather? {"city": "Paris"}'
    expect(llm("-m", "weather", "--functions", TOOLS, asked) == "Sunny in Paris")


@operation
def functions_as_tools_without_stream() -> None:
    asked = 'What is the weather? {"city": "Paris"}'
    output = llm("-m", "weather", "--no-stream", "--functions", TOOLS, asked)
    expect(output == "Sunny in Paris", output)


@due
def unknown_model() -> None:
    expect("model does not exist" in llm("-m", "gone", "hello", fails=True))


if __name__ == "__main__":
    report()
