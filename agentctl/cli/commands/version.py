"""`agentctl version`: the version of this program and of a server."""

from __future__ import annotations

import platform
from typing import Any

from agentctl import __version__
from agentctl.cli.options import ContextName, Timeout, Url
from agentctl.cli.show.output import CommandOutput
from agentctl.cli.show.table import plain_columns
from agentctl.cli.target import TargetOptions, open_target, resolve_server

EXAMPLE = "agentctl version --url http://127.0.0.1:7777 -o json"


async def show_version(
    out: CommandOutput, url: Url = None, context: ContextName = None, timeout: Timeout = None
) -> None:
    """Show the versions of agentctl and, with --url or a context, of the server."""
    options = TargetOptions(url=url, context=context, timeout=timeout)
    record: dict[str, Any] = {
        "version": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "server_url": None,
        "server_version": None,
        "interface_version": None,
    }

    selected, _ = resolve_server(options)
    if selected is not None:
        async with open_target(options) as target:
            info = (await target.operations.system.get_info()).value
        record["server_url"] = selected
        record["server_version"] = info.get("version")
        record["interface_version"] = info.get("interface_version")
    out.show_record(record, plain_columns(*record), "version")
