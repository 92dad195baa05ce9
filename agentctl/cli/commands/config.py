"""`agentctl config`: show and validate the configuration."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from agentctl.cli.help import CommandApp
from agentctl.cli.options import Config
from agentctl.cli.parameters import flag
from agentctl.cli.show.output import CommandOutput, write_line, write_value
from agentctl.cli.show.table import Column
from agentctl.cli.show.terminal import note
from agentctl.extensions import load_extensions
from agentctl.records.text import format_count

app = CommandApp(
    help="Show and validate the configuration.", epilog="Example: agentctl config show --sources"
)


@app.command("show", epilog="Example: agentctl config show --sources -o json")
def show_config(
    out: CommandOutput,
    sources: bool = flag("--sources", "Show the source of every value"),
    config: Config = None,
) -> None:
    """Show every effective value; secrets are masked."""
    from agentctl.config import effective_settings, load_settings

    settings = load_settings(config)
    tables = effective_settings(settings)
    if out.format == "json":
        write_value({**tables, "sources": settings.sources} if sources else tables)
        return
    rows = [
        {"key": key, "value": value, "source": settings.sources.get(key)}
        for key, value in _flatten(tables)
    ]
    columns = [Column("key"), Column("value", look="whole")]
    columns += [Column("source", look="whole")] if sources else []
    out.show_list(rows, columns, "key")


@app.command("check", epilog="Example: agentctl config check --config agentctl.toml")
def check_config(config: Config = None) -> None:
    """Validate the configuration, its keys, its models, and the code of tools and agents.

    Runs the checks of a server start without starting one.
    """
    from agentctl.auth.verifier import Verifier
    from agentctl.config import load_settings, require_verification_key
    from agentctl.config.outgoing import check_proxies
    from agentctl.config.providers import list_used_models, require_extra, requires_key
    from agentctl.runtime.components.catalog import Catalog
    from agentctl.runtime.mcp.servers import require_mcp_package

    settings = load_settings(config)
    require_verification_key(settings)
    if settings.mcp_servers:
        require_mcp_package(settings)
    for extension in load_extensions():
        extension.require_packages(settings)
    Verifier(settings)
    check_proxies(settings)

    with contextlib.redirect_stdout(sys.stderr):
        catalog = Catalog.from_settings(settings)
        catalog.load_code()

    for agent in catalog.components("agent").values():
        schema = catalog.find_input_schema(agent)
        if schema is not None and schema.is_required:
            note(f"agent {agent.id}: its runs need the object input ({schema.describe()})")

    for model in list_used_models(settings):
        require_extra(model)
        variable = model.api_key_env
        if variable and not os.environ.get(variable):
            note(f"model {model.id}: the variable {variable} with its API key is not set here")
        elif not variable and requires_key(model):
            note(f"model {model.id}: it has no API key; set api_key_env in its entry")

    counts = [
        format_count(len(settings.agents), "agent"),
        format_count(len(settings.teams), "team"),
        format_count(len(settings.workflows), "workflow"),
    ]
    note(f"{settings.path} is valid: {', '.join(counts)}")


@app.command("schema", epilog="Example: agentctl config schema > agentctl.schema.json")
def show_schema() -> None:
    """Print the JSON Schema of the configuration, for editors.

    An editor with a language server for TOML, such as Even Better TOML or Taplo, completes and
    checks the keys of a file whose first line is `#:schema PATH`. `agentctl init` writes the schema
    and this line.
    """
    from agentctl.config.json_schema import build_json_schema

    write_value(build_json_schema())


@app.command("path", epilog="Example: $EDITOR $(agentctl config path)")
def config_path(config: Config = None) -> None:
    """Print the path of the configuration file."""
    from agentctl.config import find_config_file

    write_line(str(find_config_file(config)))


def _flatten(tables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, table in tables.items():
        if isinstance(table, dict):
            yield from ((f"{name}.{key}", value) for key, value in table.items())
        else:
            for entry in table:
                yield from ((f"{name}.{entry['id']}.{key}", entry[key]) for key in entry)
