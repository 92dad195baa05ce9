"""CPU time of commands on a server, compared with a bare Python and with its HTTP client.

    python -m bench.remote_commands [PYTHON]

prints the median of 15 starts of each, user and system time together, and its ratios to the first
two. PYTHON is that of an environment with `pip install .` alone; by default the one that runs this.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median

from bench.commands import command_environment, measure_cpu_seconds
from bench.measure import run_rounds
from tests.cli.demo import serving

ROUNDS = 15


def main() -> None:
    """Serve a demo, and print a line for each command."""
    python = sys.argv[1] if len(sys.argv) > 1 else sys.executable
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder) / "demo") as demo:
        demo.run("s1", "hello")
        environ = command_environment(Path(folder)) | {"AGENTCTL_TOKEN": demo.token}
        commands: dict[str, tuple[str, ...]] = {
            "python -c pass": ("-c", "pass"),
            "python -c 'import httpx2'": ("-c", "import httpx2"),
            "agentctl --help": ("-m", "agentctl", "--help"),
            "agentctl runs list": ("-m", "agentctl", "runs", "list", "--url", demo.url),
            "agentctl sessions list": ("-m", "agentctl", "sessions", "list", "--url", demo.url),
        }
        starts = {
            name: lambda words=words: measure_cpu_seconds([python, *words], Path(folder), environ)
            for name, words in commands.items()
        }
        taken = {name: median(times[1:]) for name, times in run_rounds(starts, ROUNDS + 1).items()}
    bare, client, *_ = taken.values()
    for name, seconds in taken.items():
        print(f"{name:26} {seconds * 1_000:4.0f} ms {seconds / bare:5.1f} {seconds / client:5.1f}")


if __name__ == "__main__":
    main()
