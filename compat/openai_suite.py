"""Programs that speak OpenAI's API, unchanged, on the default configuration of this server.

python -m compat.openai_suite [PROGRAM...]    run them, and store the results
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.kit.deployment import ADMIN, Deployment, create_deployment
from tests.kit.model import start_endpoint
from tests.kit.process import base_environment, serve_config
from tests.server.openai_recordings import SCOPES, build_config

PACKAGES = Path(__file__).parents[1] / ".peers" / "openai"
"""The folder of the environments that `make compat` creates."""

SCRIPTS = Path(__file__).with_name("openai_programs")
RESULTS = Path(__file__).with_name("openai_results.json")

SECONDS = 540
"""Maximum duration of a program."""


class Program(NamedTuple):
    """A program of the table in docs/openai.md.

    Attributes:
        title: its name and version in the table.
        scripts: its scripts in the folder of scripts.
        environment: the folder of its environment; empty for a script without packages.
        needs: a further file that it needs, below the folder of the environments.
    """

    title: str
    scripts: tuple[str, ...]
    environment: str = ""
    needs: str = ""

    @property
    def is_installed(self) -> bool:
        """True if its packages are there."""
        if self.needs:
            return (PACKAGES / self.needs).exists()
        if self.scripts[0].endswith(".mjs"):
            return shutil.which("node") is not None and (self._node / "node_modules").exists()
        return not self.environment or self._python.exists()

    @property
    def _python(self) -> Path:
        return PACKAGES / self.environment / "bin" / "python"

    @property
    def _node(self) -> Path:
        return PACKAGES / (self.environment or "node")

    def find_prefix(self, script: str) -> str:
        """Return the beginning of the names of the operations of a script in the results."""
        if len(self.scripts) == 1:
            return ""
        section = script.partition("with_")[2].partition(".")[0].rpartition("_")[2]
        return f"{section}: "

    def build_command(self, script: str) -> list[str]:
        """Return the command line of a script."""
        path = str(SCRIPTS / script)
        if script.endswith(".mjs"):
            return ["node", path, str(self._node)]
        return [str(self._python) if self.environment else sys.executable, path]


PROGRAMS = {
    "openai-python": Program(
        "openai 3.3 (Python)",
        ("with_openai_chat.py", "with_openai_tools.py", "with_openai_responses.py"),
        "openai",
    ),
    "openai-node": Program("openai 6.49 (Node)", ("with_openai.mjs",)),
    "vercel-ai": Program(
        "Vercel AI SDK 6: responses, chat and openai-compatible", ("with_vercel_ai.mjs",)
    ),
    "llm": Program("llm 0.36", ("with_llm.py",), "llm"),
    "langchain": Program("LangChain ChatOpenAI 1.7", ("with_langchain.py",), "langchain"),
    "pydantic-ai": Program(
        "pydantic-ai 2.38, chat and responses", ("with_pydantic_ai.py",), "pydantic-ai"
    ),
    "litellm": Program("litellm 1.83", ("with_litellm.py",), "litellm"),
    "instructor": Program("instructor 1.17", ("with_instructor.py",), "instructor"),
    "openai-agents": Program("openai-agents 0.24", ("with_openai_agents.py",), "openai-agents"),
    "aider": Program("aider 0.86.2, the program", ("with_aider.py",), "aider"),
    "codex": Program(
        "OpenAI Codex 0.171, the program", ("with_codex.py",), needs="node/node_modules/.bin/codex"
    ),
    "smolagents": Program("smolagents 1.26", ("with_smolagents.py",), "smolagents"),
    "llama-index": Program("LlamaIndex 0.14, OpenAILike", ("with_llama_index.py",), "llama-index"),
    "haystack": Program("Haystack 3.4", ("with_haystack.py",), "haystack"),
    "strands": Program("Strands Agents 1.62", ("with_strands.py",), "strands"),
    "autogen": Program("AutoGen 0.7", ("with_autogen.py",), "autogen"),
    "semantic-kernel": Program(
        "Semantic Kernel 1.45", ("with_semantic_kernel.py",), "semantic-kernel"
    ),
    "agno": Program("agno 3.1, OpenAILike", ("with_agno.py",), "agno"),
    "magentic": Program("magentic 0.41", ("with_magentic.py",), "magentic"),
    "aisuite": Program("aisuite 0.2", ("with_aisuite.py",), "aisuite"),
    "any-llm": Program("any-llm 1.40", ("with_any_llm.py",), "any-llm"),
    "adk": Program("Google ADK 2.13, LiteLlm", ("with_adk.py",), "adk"),
    "crewai": Program("crewAI 1.15", ("with_crewai.py",), "crewai"),
    "griptape": Program("Griptape 1.13", ("with_griptape.py",), "griptape"),
    "shell-gpt": Program("sgpt 1.5, the program", ("with_shell_gpt.py",), "shell-gpt"),
    "gptme": Program("gptme 0.35, the program", ("with_gptme.py",), "gptme"),
    "dspy": Program("DSPy 3.4", ("with_dspy.py",), "dspy"),
    "agent-framework": Program(
        "Microsoft Agent Framework 1.17", ("with_agent_framework.py",), "agent-framework"
    ),
    "mirascope": Program("Mirascope 2.8", ("with_mirascope.py",), "mirascope"),
    "ag2": Program("AG2 1.2", ("with_ag2.py",), "ag2"),
    "langchain-js": Program(
        "LangChain.js ChatOpenAI 1.5", ("with_langchain_js.mjs",), "node-libraries"
    ),
    "llamaindex-js": Program("LlamaIndex.TS 0.12", ("with_llamaindex_js.mjs",), "node-libraries"),
    "mastra": Program("Mastra 0.24", ("with_mastra.mjs",), "node-libraries"),
    "token-js": Program("Token.js 0.7", ("with_token_js.mjs",), "node-libraries"),
    "genkit": Program("Genkit 1.42", ("with_genkit.mjs",), "node-libraries"),
    "openai-agents-js": Program(
        "openai-agents 0.20 (Node)", ("with_openai_agents_js.mjs",), "node-agents"
    ),
    "voltagent": Program("VoltAgent 2.10", ("with_voltagent.mjs",), "node-voltagent"),
    "qwen-code": Program(
        "Qwen Code 0.15, the program",
        ("with_qwen_code.py",),
        needs="node-programs/node_modules/.bin/qwen",
    ),
    "pi": Program(
        "pi 0.73, the program", ("with_pi.py",), needs="node-programs/node_modules/.bin/pi"
    ),
    "continue": Program(
        "Continue 1.5, the program cn",
        ("with_continue.py",),
        needs="node-programs/node_modules/.bin/cn",
    ),
    "open-webui": Program("Open WebUI, requests as in its source", ("with_open_webui.py",)),
}


class Outcome(NamedTuple):
    """The result of an operation.

    Attributes:
        outcome: `right`, `due`, `refused` or `wrong`.
        text: the error.
    """

    outcome: str
    text: str = ""


class Host(NamedTuple):
    """A server with its keys."""

    url: str
    deployment: Deployment

    def run(self, name: str, *operations: str) -> dict[str, Outcome]:
        """Run a program; return the result of each operation.

        Args:
            operations: the names of some, as in the results; without any, all of the program.
        """
        program = PROGRAMS[name]
        found: dict[str, Outcome] = {}
        for script in program.scripts:
            prefix = program.find_prefix(script)
            chosen = [each.removeprefix(prefix) for each in operations if each.startswith(prefix)]
            if operations and not chosen:
                continue
            ended = subprocess.run(
                [*program.build_command(script), *chosen],
                env=base_environment() | self.build_environment(),
                capture_output=True,
                text=True,
                timeout=SECONDS,
            )
            assert ended.returncode == 0, ended.stderr
            for line in ended.stdout.splitlines():
                if line.startswith('{"operation"'):
                    row = json.loads(line)
                    text = row.get("text", "")
                    found[prefix + row["operation"]] = Outcome(row["outcome"], text)
        assert found, f"{name} has no result of {operations or 'any operation'}"
        return found

    def build_environment(self) -> Mapping[str, str]:
        """Return the variables that the programs read: the address and the keys."""
        home = str(self.deployment.folder)
        key = self.deployment.token("ada", *SCOPES)
        return {
            "HOME": home,
            "PROGRAMS": str(PACKAGES),
            "OPENAI_BASE_URL": f"{self.url}/v1",
            "OPENAI_API_KEY": key,
            "ADMIN_KEY": self.deployment.token("root", ADMIN),
            "PYTHONWARNINGS": "ignore",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "OPENAI_COMPATIBLE_API_KEY": key,
            "OTEL_SDK_DISABLED": "true",
        }


@contextlib.contextmanager
def serve(folder: Path, model_url: str, extra: str = "") -> Iterator[Host]:
    """Serve the default configuration with `[openai]` enabled and agents on the stub endpoint.

    Args:
        extra: lines of the table `[openai]`.
    """
    deployment = create_deployment(folder, model_url, extra=build_config(model_url, extra))
    with serve_config(deployment.path) as server:
        yield Host(server.url, deployment)


def read_results() -> dict[str, dict[str, str]]:
    """Return the stored results: the outcome of each operation of each program."""
    found: dict[str, dict[str, str]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return found


def _main(names: list[str]) -> None:
    stored = read_results()
    endpoint = start_endpoint()
    try:
        folder = Path(tempfile.mkdtemp(prefix="openai-suite-"))
        with serve(folder, endpoint.base_url) as host:
            for name in names or PROGRAMS:
                found = host.run(name)
                for operation, outcome in found.items():
                    if outcome.outcome in ("refused", "wrong"):
                        print(f"{name}: {operation}: {outcome.outcome}: {outcome.text}")
                counts = dict.fromkeys(("right", "due", "refused", "wrong"), 0)
                for outcome in found.values():
                    counts[outcome.outcome] += 1
                print(f"{name}: {len(found)} {counts}", flush=True)
                stored[name] = {key: outcome.outcome for key, outcome in found.items()}
    finally:
        endpoint.stop()
    RESULTS.write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    _main(sys.argv[1:])
