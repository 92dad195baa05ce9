"""`serve --skip-broken`: leave out the components whose code cannot be loaded (development)."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import replace

from agentctl.config.settings import Settings
from agentctl.config.tables import settings_from_text, settings_to_text
from agentctl.errors import InvalidConfiguration


def leave_out_broken(settings: Settings) -> Settings:
    """Return the settings without the components that the server could not start with.

    They are in `left_out`. Teams and workflows that need one of them are left out as well. A
    process that ends loads the code, so that a restart with `--reload` loads it again.

    Raises:
        InvalidConfiguration: the code ended that process.
    """
    ended = subprocess.run(
        [sys.executable, "-m", __name__],
        input=settings_to_text(settings).encode(),
        stdout=subprocess.PIPE,
        check=False,
    )
    if ended.returncode != 0:
        raise InvalidConfiguration(
            "The code of an agent or tool ended the process that loads it",
            hint="find it with: agentctl config check",
        )
    left_out: dict[str, str] = json.loads(ended.stdout.splitlines()[-1])
    return replace(
        settings,
        agents=tuple(each for each in settings.agents if f"agent {each.id}" not in left_out),
        teams=tuple(each for each in settings.teams if f"team {each.id}" not in left_out),
        workflows=tuple(
            each for each in settings.workflows if f"workflow {each.id}" not in left_out
        ),
        left_out=left_out,
    )


def find_broken(settings: Settings) -> dict[str, str]:
    """Load the code of all components; return the problems by the labels of the components."""
    from agentctl.runtime.components.catalog import Catalog
    from agentctl.runtime.components.execute import prepare_component

    catalog = Catalog.from_settings(settings)
    broken: dict[str, str] = {}
    for component in catalog.list_workers():
        try:
            prepare_component(catalog, component)
        except InvalidConfiguration as error:
            broken[component.key] = error.detail
    needed = {
        team.key: catalog.members(team).values() for team in catalog.components("team").values()
    }
    for workflow in catalog.components("workflow").values():
        needed[workflow.key] = dict(catalog.steps(workflow)).values()
    while found := {
        key: f"it needs the {each.label}, which is left out"
        for key, components in needed.items()
        if key not in broken
        for each in components
        if each.key in broken
    }:
        broken |= found
    return broken


def main() -> None:
    """Write the problems of the settings on stdin as the last line of stdout."""
    settings = settings_from_text(sys.stdin.read())
    with contextlib.redirect_stdout(sys.stderr):
        broken = find_broken(settings)
    print(f"\n{json.dumps(broken)}", flush=True)
    # Threads that the code has started must not keep the process.
    os._exit(0)


if __name__ == "__main__":
    main()
