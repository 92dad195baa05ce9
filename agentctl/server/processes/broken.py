"""`serve --skip-broken`: leave out the components whose code cannot be loaded (development)."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from agentctl.config.settings import Settings
from agentctl.config.tables import settings_from_text, settings_to_text
from agentctl.errors import InvalidConfiguration

if TYPE_CHECKING:
    from agentctl.runtime.component import Component


def leave_out_broken(settings: Settings) -> Settings:
    """Return the settings without the components that the server could not start with.

    They are in `left_out`. Teams and workflows that need one of them are left out as well. Another
    process loads the code and ends, so that a restart with `--reload` loads the code again.

    Raises:
        InvalidConfiguration: the code ended the process that loads it.
    """
    loading = subprocess.run(
        [sys.executable, "-m", __name__],
        input=settings_to_text(settings).encode(),
        stdout=subprocess.PIPE,
        check=False,
    )
    if loading.returncode != 0:
        raise InvalidConfiguration(
            "The code of an agent or tool ended the process that loads it",
            hint="find it with: agentctl config check",
        )

    left_out: dict[str, str] = json.loads(loading.stdout.splitlines()[-1])
    return replace(
        settings,
        agents=tuple(agent for agent in settings.agents if f"agent {agent.id}" not in left_out),
        teams=tuple(team for team in settings.teams if f"team {team.id}" not in left_out),
        workflows=tuple(
            workflow for workflow in settings.workflows if f"workflow {workflow.id}" not in left_out
        ),
        left_out=left_out,
    )


def find_broken(settings: Settings) -> dict[str, str]:
    """Load the code of all components.

    Returns:
        The problems by the keys of the components, such as `agent support`.
    """
    from agentctl.runtime.components.catalog import Catalog
    from agentctl.runtime.components.execute import prepare_component

    catalog = Catalog.from_settings(settings)
    broken: dict[str, str] = {}
    for component in catalog.list_workers():
        try:
            prepare_component(catalog, component)
        except InvalidConfiguration as error:
            broken[component.key] = error.detail

    needed_components: dict[str, Collection[Component]] = {}
    for team in catalog.components("team").values():
        needed_components[team.key] = catalog.members(team).values()
    for workflow in catalog.components("workflow").values():
        needed_components[workflow.key] = dict(catalog.steps(workflow)).values()

    # Again and again: what needs a component that was just left out is left out next.
    while True:
        newly_broken: dict[str, str] = {}
        for key, components in needed_components.items():
            for component in components:
                if key not in broken and component.key in broken:
                    newly_broken[key] = f"it needs the {component.label}, which is left out"
        if not newly_broken:
            return broken
        broken |= newly_broken


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
