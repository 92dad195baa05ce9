"""Checks of models and tools: API keys and imports."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

from agentctl.admin.doctor.finding import Finding, from_failure, note, ok, wrong
from agentctl.config.databases import is_loopback_host
from agentctl.config.mcp_servers import is_per_user, parse_mcp_reference
from agentctl.config.mcp_table import McpServer
from agentctl.config.providers import list_used_models, require_extra, requires_key
from agentctl.config.settings import Agent, Settings, Team
from agentctl.errors import InvalidConfiguration


def check_models(settings: Settings) -> Iterator[Finding]:
    """Check that every model in use has its library, and its API key in the environment."""
    for model in list_used_models(settings):
        check, variable = f"model {model.id}", model.api_key_env
        try:
            require_extra(model)
        except InvalidConfiguration as failure:
            yield from_failure(check, failure)
        if not variable and requires_key(model):
            yield wrong(check, "it has no API key", f"api_key_env = ... in [[models]] {model.id}")
        elif variable and not os.environ.get(variable):
            text = f"the variable {variable} with its API key is not set here"
            yield wrong(check, text, f"export {variable}=... in the environment of the server")
        else:
            yield ok(check, f"{variable} is set" if variable else "it needs no API key")
        parts = urlsplit(model.base_url)
        if parts.scheme == "http" and not is_loopback_host(parts.hostname or ""):
            text = f"requests to {parts.hostname} are not encrypted"
            yield note(check, text, f'base_url = "https://..." in [[models]] {model.id}')


def check_objects(settings: Settings) -> Iterator[Finding]:
    """Check that the object of every agent in code can be imported and used.

    The output of the modules goes to stderr.
    """
    from agentctl.runtime.runners.loading import load_runner

    folder = None if settings.path is None else settings.path.parent
    count = 0
    with contextlib.redirect_stdout(sys.stderr):
        for agent in settings.agents:
            if not agent.object:
                continue
            try:
                load_runner(f"agent {agent.id}", agent.object, folder)
                count += 1
            except InvalidConfiguration as failure:
                yield from_failure("agents", failure)
    if count:
        label = "1 agent in code" if count == 1 else f"{count} agents in code"
        yield ok("agents", f"{label} can be used")


def check_tools(settings: Settings) -> Iterator[Finding]:
    """Check that every tool and output can be imported and used, as at the start of a server.

    The output of the modules goes to stderr.
    """
    from agentctl.runtime.models.structured_output import load_output_model
    from agentctl.runtime.tools.functions import load_tools

    folder = None if settings.path is None else settings.path.parent
    owners: list[tuple[str, Agent | Team]] = [
        *((f"agent {agent.id}", agent) for agent in settings.agents),
        *((f"team {team.id}", team) for team in settings.teams),
    ]
    count = 0
    with contextlib.redirect_stdout(sys.stderr):
        for owner, component in owners:
            try:
                functions = tuple(tool for tool in component.tools if not parse_mcp_reference(tool))
                count += len(load_tools(owner, functions, folder))
                if isinstance(component, Agent) and component.output:
                    load_output_model(owner, component.output, folder)
            except InvalidConfiguration as failure:
                yield from_failure("tools", failure)
    if count:
        yield ok("tools", "1 tool can be used" if count == 1 else f"{count} tools can be used")


async def check_mcp_server(settings: Settings, server: McpServer) -> list[Finding]:
    """Connect to an MCP server, and compare its tools with those that agents name."""
    from agentctl.runtime.mcp.definitions import build_public_name
    from agentctl.runtime.mcp.servers import probe_server

    check = f"mcp server {server.id}"
    findings = []
    host = urlsplit(server.url).hostname or ""
    if server.url.startswith("http:") and server.headers and not is_loopback_host(host):
        text = f"headers are sent to {host} without encryption"
        remedy = f'url = "https://..." in [[mcp_servers]] {server.id}'
        findings.append(note(check, text, remedy))
    if is_per_user(server):
        text = "not checked: its headers have data of the user"
        remedy = f"agentctl mcp check {server.id} --user-id ..."
        return [*findings, note(check, text, remedy)]
    report = await probe_server(settings, server, None, {})
    if report["state"] != "connected":
        detail = f" ({report['detail']})" if report["detail"] else ""
        text = f"it is not available: {report['reason']}{detail}"
        remedy = f"correct its entry, then: agentctl mcp check {server.id}"
        return [*findings, wrong(check, text, remedy)]
    findings += [note(check, problem) for problem in report["problems"]]
    listed = {tool["name"] for tool in report["tools"]}
    components: list[Agent | Team] = [*settings.agents, *settings.teams]
    for component in components:
        for reference in component.tools:
            parsed = parse_mcp_reference(reference)
            if parsed is None or parsed.server != server.id or not parsed.tool:
                continue
            if build_public_name(server.id, parsed.tool) not in listed:
                text = f"{component.id} names its tool {parsed.tool}, which it does not have"
                findings.append(wrong(check, text, f"agentctl mcp tools {server.id}"))
    label = "1 tool" if len(listed) == 1 else f"{len(listed)} tools"
    return [*findings, ok(check, f"it is connected and has {label} ({report['server']})")]
