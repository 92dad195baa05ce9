"""The tables of the configuration file, their classes, and writers for them.

Settings become a text for worker processes, which contains secrets: it is for a process of the
server, never for a file. `effective_settings` masks secrets.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentctl.config import (
    approvals,
    budgets,
    files,
    mcp_table,
    quotas,
    retention,
    search,
    settings,
    telemetry,
    webhooks,
)
from agentctl.config.settings import Settings
from agentctl.extensions import insert_after, load_extensions
from agentctl.records.text import MASK

SECTIONS: dict[str, type] = {
    "server": settings.Server,
    "authorization": settings.Authorization,
    "signing": settings.Signing,
    "runs": settings.Runs,
    "limits": settings.Limits,
    "approvals": approvals.Approvals,
    "quotas": quotas.Quotas,
    "rate_limits": budgets.RateLimits,
    "search": search.Search,
    "files": files.Files,
    "audit": settings.Audit,
    "retention": retention.Retention,
    "log": telemetry.Log,
    "metrics": telemetry.Metrics,
    "tracing": telemetry.Tracing,
    "console": settings.Console,
}
"""The tables `[name]` of the core, in the order of a file."""

ENTRY_TABLES: dict[str, type] = {
    "databases": settings.Database,
    "models": settings.Model,
    "mcp_servers": mcp_table.McpServer,
    "agents": settings.Agent,
    "teams": settings.Team,
    "workflows": settings.Workflow,
    "budgets": budgets.Budget,
    "webhooks": webhooks.Webhook,
}
"""The lists of tables `[[name]]`, whose entries have ids."""

FORMER_KEYS: Mapping[str, object] = {
    "agents.memory.context_tokens": 500,
    "agents.summary.in_context": True,
    "approvals.pending": 10000,
    "authorization.jwks_refresh_seconds": 600,
    "authorization.jwks_stale_seconds": 86400,
    "authorization.leeway_seconds": 10,
    "authorization.token_prefix": "agentctl",
    "databases.layout": "agentctl",
    "limits.body_seconds": 30,
    "limits.concurrent_members": 256,
    "limits.header_bytes": 16384,
    "limits.header_count": 100,
    "limits.header_seconds": 10,
    "limits.members_per_run": 16,
    "limits.response_bytes": 268435456,
    "limits.token_bytes": 8192,
    "mcp_servers.connect_seconds": 30,
    "mcp_servers.max_sessions": 100,
    "models.retry_seconds": 30,
    "openai.session_header": "X-OpenWebUI-Chat-Id",
    "teams.memory.context_tokens": 500,
    "teams.summary.in_context": True,
    "webhooks.timeout_seconds": 15,
}
"""The values of former keys that are constants now, by table and key.

A file that gives such a key this value, as `init` of an earlier version did, is read as before;
another value is refused.
"""

FORMER_PROBLEM = "is a constant now, with the value {}"

FORMER_HINTS = {
    # Without the key a server would create its tables in a PostgreSQL database of AgentOS.
    "databases.layout": "remove this entry of [[databases]]; docs/agentos.md has a program that"
    " writes the sessions of AgentOS for: agentctl sessions import"
}
"""Hints about former keys for which it is not enough to remove the key."""


@functools.cache
def list_sections() -> dict[str, type]:
    """Return the tables `[name]` of the core and of extensions, by name, in the order of a file."""
    added_tables = [table for extension in load_extensions() for table in extension.list_tables()]
    return insert_after(
        SECTIONS, ((table.after, table.name, table.settings) for table in added_tables)
    )


def section_keys() -> list[str]:
    """Return every key that the environment can set: `server.id`, `server.name`, …"""
    return [
        f"{name}.{field.name}"
        for name, table in list_sections().items()
        for field in dataclasses.fields(table)
    ]


def settings_to_text(settings: Settings) -> str:
    """Return the settings, including `sources`, as one line of ASCII."""
    import pickle

    return base64.b64encode(pickle.dumps(settings)).decode("ascii")


def settings_from_text(text: str) -> Settings:
    """Return the settings of a text from `settings_to_text`, with equal values.

    The text must come from a process of this server: unpickling another text could execute code.
    """
    import pickle

    loaded: Settings = pickle.loads(base64.b64decode(text))
    return loaded


def effective_settings(settings: Settings) -> dict[str, Any]:
    """Return the values in effect, table by table, in the shape of the file.

    Returns:
        `{"server": {"port": 7777, …}, …, "agents": [{"id": …}, …], …}`; paths are text, and a path
        that is not set is `""`. Verification keys are masked, because one may be a secret.
    """
    tables: dict[str, Any] = {}
    for name, table in list_sections().items():
        # `Settings` has no attribute for a table of an extension.
        values = getattr(settings, name, None) or settings.get_table(table)
        tables[name] = _plain_table(values)
    for name in ENTRY_TABLES:
        tables[name] = [_plain_table(entry) for entry in getattr(settings, name)]
    return tables


def _plain_table(table: Any) -> dict[str, Any]:
    plain = dict[str, Any]()
    for field in dataclasses.fields(table):
        value = getattr(table, field.name)
        if not field.repr:
            # Secrets: their number is no secret.
            value = (MASK,) * len(value)
        plain[field.name] = _plain_value(value)
    return plain


def _plain_value(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return [_plain_value(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain_value(item) for name, item in value.items()}
    if dataclasses.is_dataclass(value):
        return {key: item for key, item in _plain_table(value).items() if item not in ("", [])}
    return value
