"""Real clients of AgentOS, each in a separate process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from compat.servers import PEERS, find_python
from tests.kit.process import base_environment

__all__ = ["INSTALLED", "REFUSED", "check_operations"]

INSTALLED = "3.1.10"
"""The release of agno in the environment of the tests."""

REFUSED = {
    "refused_cancel_of_an_unknown_run": "404",
    "refused_summary_of_a_session": "422",
    "refused_continue_of_a_run": "409",
    "refused_changed_arguments": "409",
    "refused_second_continue": "409",
    "refused_image": "422",
    "refused_knowledge_filters": "422",
    "refused_memory_stats": "404",
    "absent_optimize_memories": "404",
    "absent_migrate_database": "404",
    "absent_eval_runs": "404",
    "absent_knowledge": "404",
    "absent_traces": "404",
    "absent_metrics": "404",
}
"""Operations that this server refuses, with the status (docs/agentos.md)."""

LIMIT_SECONDS = 240.0


def check_operations(
    release: str, folder: Path, url: str, token: str | None, *parts: str
) -> dict[str, str | None]:
    """Execute the operations of a release's client; return the failure of each, or None.

    Args:
        release: a release of agno; without `PEERS` only `INSTALLED`.
        folder: an existing folder for a file.
        parts: see `compat.agentos_client`.
    """
    assert PEERS or release == INSTALLED
    work = folder / f"work-{release}.json"
    work.write_text(json.dumps({"url": url, "token": token, "parts": parts}))
    python = find_python(release) if PEERS else sys.executable
    program = Path(__file__).with_name("agentos_client.py")
    done = subprocess.run(
        [str(python), str(program), str(work)],
        env=base_environment() | {"NO_PROXY": "*"},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    found: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return found
