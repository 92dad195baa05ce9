"""`configuration.md`: the keys, from the settings classes and the comments of the sample."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from pages.markdown import code, made_from, table

__all__ = ["page"]

_INTRODUCTION = f"""# Configuration keys

{made_from("agentctl/config/settings.py and agentctl/config/sample.toml")}

The file is TOML. It is searched in this order: `--config FILE`, the variable `AGENTCTL_CONFIG`,
`agentctl.toml` in the current folder, `agentctl.toml` in the user's configuration directory. It is
read at start; key files and the JWKS are watched. Relative paths are relative to the file.

Keys of a single table, such as `[server]`, can be set by environment variables, which override the
file. A list is written as in TOML: `AGENTCTL_SERVER__CORS_ORIGINS='["https://app.example.org"]'`. A
variable of this form that names no key is rejected, and so is every key that is unknown, has a
wrong type, refers to nothing, or has no effect.

The first sections have the keys that most deployments set. All others are under
[Advanced](#advanced): their defaults fit most deployments.
"""

_COMMON = {
    "server": ("name", "url", "host", "port", "workers", "cors_origins"),
    "authorization": (
        "enabled", "provider", "verification_key_files", "jwks_url", "audience", "issuer",
        "roles_claim", "roles",
    ),
    "signing": ("key_file",),
    "runs": ("timeout_seconds",),
    "rate_limits": ("requests_per_minute",),
    "search": ("enabled",),
    "retention": ("idle_days",),
    "log": ("format", "level"),
    "metrics": ("listen",),
    "agui": ("enabled",),
    "ai_sdk": ("enabled",),
    "openai": ("enabled",),
    "mcp_endpoint": ("enabled",),
    "console": ("oidc_issuer", "oidc_client_id"),
    "databases": ("id", "url", "password_env"),
    "models": ("id", "provider", "model", "base_url", "api_key_env", "settings", "fallbacks"),
    "mcp_servers": ("id", "command", "args", "url", "headers"),
    "agents": (
        "id", "model", "object", "name", "description", "instructions", "tools", "approve",
        "memory",
    ),
    "teams": ("id", "model", "members", "name", "mode", "instructions"),
    "workflows": ("id", "steps"),
    "budgets": ("id", "per", "period", "tokens", "cost"),
    "webhooks": ("id", "url", "events", "secret_env"),
}  # fmt: skip
"""The keys that most deployments set, by table; all others are under "Advanced"."""

_ADVANCED = """Keys that few deployments set, because their defaults fit the others. A table that
also has keys above is continued here.
"""

_MEANINGS = {
    "authorization.verification_key_files": "files with verification keys",
    "databases.id": "id in the other tables, and `db_id` in the HTTP API",
    "databases.url": "location; a missing SQLite file is created by `serve`, `runs start` and "
    "`db migrate`",
    "databases.pool_size": "PostgreSQL: maximum number of connections of each process",
    "databases.wait_seconds": "PostgreSQL: wait for a free or new connection; then 503",
    "databases.statement_seconds": "PostgreSQL: time of one statement; then 503",
    "databases.password_env": "PostgreSQL: the variable that contains the password",
    "databases.search_path": "PostgreSQL: the schema; empty: the default of the user",
    "databases.tls": "PostgreSQL: as `sslmode` of its client programs",
    "databases.tls_ca_file": 'PostgreSQL: trusted certificates, with "verify-ca", "verify-full"',
    "databases.listen_url": "PostgreSQL: the server itself, for notifications, if `url` names a "
    "connection pooler",
    "models.id": "id in the other tables",
    "models.provider": '[provider](../models.md#providers); "openai": any OpenAI-compatible '
    'endpoint; "demo": built in and offline',
    "models.base_url": 'empty: that of the provider; or another endpoint: "http://127.0.0.1:8000/v1"',
    "models.model": 'name of the model at the provider; with "demo": "echo", "slow" or "leader"',
    "models.settings": "[settings of the model](#settings-of-a-model)",
    "mcp_servers.id": "id in `tools`; begins the names of its tools for models",
    "mcp_servers.command": "a program with stdio: a name on PATH, or a path",
    "mcp_servers.args": "arguments of the program",
    "mcp_servers.env": 'variables of the program; `"${env:NAME}"` is one of agentctl',
    "mcp_servers.url": "or the URL of a server with streamable HTTP",
    "mcp_servers.headers": 'headers of requests; `"${env:NAME}"`, `"${user_id}"` and '
    '`"${claims:NAME}"` are replaced',
    "agents.id": "id in paths, commands and the other tables",
    "agents.model": "model of the agent",
    "agents.settings": "[settings of the model](#settings-of-a-model) that override those of its "
    "entry",
    "agents.summary": "[summaries](#summary-of-an-agent-or-a-team) of the sessions of the agent",
    "agents.memory": "[memory](#memory-of-an-agent-or-a-team) of the agent",
    "agents.tools": "tools of the model: "
    "[Python functions](../quickstart.md#your-own-configuration)",
    "agents.external_tools": "JSON files with `name`, `description` and `parameters` of tools that "
    "the caller of a run executes ([approvals](../approvals.md#tools-that-the-caller-executes))",
    "agents.approve": "calls that wait for a person, by names and patterns of tools; "
    '"other": not the user of the run ([approvals](../approvals.md#require-an-approval))',
    "agents.description": "description for people, and for the leader of a team",
    "agents.instructions": "the system message",
    "teams.id": "id in paths, commands and the other tables; never that of an agent",
    "teams.model": "model of the leader",
    "teams.name": "empty: the id",
    "teams.description": "description for people, and for the leader of another team",
    "teams.instructions": "beginning of the leader's system message",
    "teams.settings": "[settings](#settings-of-a-model) of the leader's model",
    "teams.summary": "[summaries](#summary-of-an-agent-or-a-team) of the sessions of the team",
    "teams.memory": "[memory](#memory-of-an-agent-or-a-team) of the leader",
    "teams.history_runs": "number of earlier runs of the session that the leader receives",
    "teams.repeat_calls": "as for an agent, for the calls of the leader; each member has its own",
    "teams.repeat_calls_by_tool": "as for an agent, for the tools of the leader",
    "teams.model_calls": "maximum model calls of the leader in a run; each member has its own",
    "teams.tool_result_tokens": "as for an agent, for the tools of the leader",
    "agents.breaker": "[breaker](#breaker): halts the agent after failed runs",
    "models.breaker": "[breaker](#breaker): halts the model after failed calls",
    "teams.breaker": "[breaker](#breaker): halts the team after failed runs",
    "workflows.breaker": "[breaker](#breaker): halts the workflow after failed runs",
    "teams.tools": "tools of the leader, in addition to the one for delegation",
    "teams.external_tools": "as for an agent, for the leader",
    "teams.approve": "as for an agent, for the tools of the leader",
    "teams.database": "empty: the first one",
    "teams.on_busy": '"enqueue", "steer", "reject": one run at a time in a session'
    " ([queue](../queue.md))",
    "workflows.id": "id in paths and commands",
    "workflows.name": "empty: the id",
    "workflows.description": "description for people",
    "workflows.steps": "steps, in order; each receives the output of the previous one",
    "workflows.database": "empty: the first one",
    "workflows.on_busy": '"enqueue", "reject": one run at a time in a session; "steer" is the same'
    ' as "enqueue"',
    "budgets.id": "id in commands and errors ([budgets](../budgets.md))",
    "budgets.per": "each user, each agent, team and workflow, or the server",
    "budgets.component": "only runs of this agent, team or workflow; empty: all",
    "budgets.period": "day or month, in UTC",
    "budgets.tokens": "the limit in tokens; or `cost`, exactly one of the two",
    "budgets.cost": "the limit in US dollars",
    "budgets.on_exceed": '"refuse": no further run starts; "stop": live runs end as well; "ask": a'
    " person is asked to continue",
    "budgets.warn_at": "a part of the limit, below 1, or an amount, from which on the budget warns",
    "budgets.unknown": 'for a cost: "refuse" or "allow" models without a known price',
    "webhooks.id": "id in commands and records",
    "webhooks.url": "address of the receiver, https; its path may be a secret and is shown nowhere",
    "webhooks.events": "events that the endpoint gets ([webhooks](../webhooks.md#events))",
    "webhooks.secret_env": 'variable with the secret: "whsec_" and base64 of 24 to 64 bytes',
    "webhooks.key_file": "private key for signatures with ed25519, in place of a secret",
    "webhooks.previous_secret_env": "variable with the earlier secret while it is replaced",
    "webhooks.agents": "agents, teams and workflows whose runs are reported; empty: all",
    "webhooks.content": "the body has the answer of the run, cut below 20 KB",
    "webhooks.allow_private": "allow http, and private, loopback and link-local addresses",
    "steps.name": "name in events; unique in the workflow",
    "memory.mode": '"tool": the model has tools that remember, recall, update and forget; '
    '"after_run": facts are extracted after each run',
    "memory.model": "model that extracts facts; empty: that of the component",
    "summary.every_runs": "number of runs after which a session is summarized again; 0: never",
    "summary.model": "model that summarizes; empty: that of the component",
    "breaker.failures": "number of failures after which a halt is written; 0: never",
    "breaker.within_seconds": "time within which they have to happen",
    "settings.temperature": "randomness of the answer",
    "settings.max_tokens": "maximum number of tokens of an answer, including its thinking",
    "settings.top_p": "share of the probability from which tokens are chosen",
    "settings.stop": "texts at which the model stops",
    "settings.seed": "makes answers repeatable as far as the provider can",
    "settings.reasoning_effort": "amount of thinking before the answer",
    "settings.timeout_seconds": "maximum time without data from the provider; 300 by default",
    "settings.extra_body": "members to add to each request, for OpenAI-compatible endpoints",
    "steps.agent": "the agent of the step",
    "steps.team": "or the team of the step; exactly one of the two",
}
"""Meanings of keys that have no comment in the sample, or a shorter one."""

_SETTINGS = """The table `settings` of a model, an agent or a team, such as
`settings = { temperature = 0.2, max_tokens = 2_000 }`. A key that is not set is not sent, so that
the default of the provider applies. [Models](../models.md#settings) has the providers that know
each key."""

_MEMORY = """The table `memory` of an agent or a team, such as `memory = { mode = "tool" }`
([Memory](../memory.md))."""

_SUMMARY = """The table `summary` of an agent or a team, such as `summary = { every_runs = 1 }`
([Memory](../memory.md#summaries))."""

_BREAKER = """The table `breaker` of a model, an agent, a team or a workflow, such as
`breaker = { failures = 5, within_seconds = 600 }` ([Halts](../halts.md#breakers))."""

_ALSO = {
    "authorization.verification_keys": "`JWT_VERIFICATION_KEY` adds one",
    "authorization.jwks_file": "`JWT_JWKS_FILE` adds one",
}
_KEY = re.compile(r"(?:# )?(?P<key>[a-z_]+) = .*?(?:\s#\s(?P<comment>.*))?")
_TABLE = re.compile(r"(?:# )?\[\[?(?P<name>[a-z_.]+)\]\]?(?:\s+#\s(?P<comment>.*))?")
_CONTINUED = re.compile(r"\s+#\s(?P<comment>.*)")


def page() -> str:
    """Build `configuration.md`."""
    from agentctl.config.settings import Breaker, Memory, ModelSettings, Step, Summary
    from agentctl.config.tables import ENTRY_TABLES, list_sections

    comments = _comments()
    tables = {**list_sections(), **ENTRY_TABLES}
    _check_common_keys(tables)
    lines = [_INTRODUCTION]
    for name in tables:
        if name in _COMMON:
            lines += [f"## {_heading(name)}", "", *_paragraph(comments.get(name, ""))]
            lines += [*_table(name, tables[name], comments, _COMMON[name]), ""]
    lines += ["## A step of a workflow", ""]
    lines += [*_table("steps", Step, comments), ""]
    lines += ["## Settings of a model", "", _SETTINGS, ""]
    lines += [*_table("settings", ModelSettings, comments), ""]
    lines += ["## Memory of an agent or a team", "", _MEMORY, ""]
    lines += [*_table("memory", Memory, comments), ""]

    lines += ["## Advanced", "", _ADVANCED]
    for name, cls in tables.items():
        common_keys = _COMMON.get(name, ())
        keys = [field.name for field in dataclasses.fields(cls) if field.name not in common_keys]
        if not keys:
            continue
        if common_keys:
            lines += [f"### More of {_heading(name)}", ""]
        else:
            lines += [f"### {_heading(name)}", "", *_paragraph(comments.get(name, ""))]
        lines += [*_table(name, cls, comments, keys), ""]
    lines += ["### Summary of an agent or a team", "", _SUMMARY, ""]
    lines += [*_table("summary", Summary, comments), ""]
    lines += ["### Breaker", "", _BREAKER, ""]
    lines += _table("breaker", Breaker, comments)
    return "\n".join(lines) + "\n"


def _check_common_keys(tables: Mapping[str, type]) -> None:
    """Exit if `_COMMON` names a key that does not exist."""
    for name, keys in _COMMON.items():
        fields = {field.name for field in dataclasses.fields(tables[name])}
        unknown_keys = [key for key in keys if key not in fields]
        if unknown_keys:
            raise SystemExit(f"docs: [{name}] has no {', '.join(unknown_keys)}")


def _heading(name: str) -> str:
    from agentctl.config.tables import ENTRY_TABLES

    return f"[[{name}]]" if name in ENTRY_TABLES else f"[{name}]"


def _paragraph(comment: str) -> list[str]:
    return [f"{comment[:1].upper()}{comment[1:]}.", ""] if comment else []


def _table(
    name: str, cls: Any, comments: dict[str, str], keys: Sequence[str] | None = None
) -> list[str]:
    """Return a table of keys; those of a section with the variables that set them.

    Args:
        keys: the keys of the table; None for all of the class.
    """
    from agentctl.config.given_tables import variable_name
    from agentctl.config.tables import list_sections

    has_variables = name in list_sections()
    annotations = get_type_hints(cls, include_extras=True)
    schema = TypeAdapter(cls).json_schema()
    rows = []
    for field in dataclasses.fields(cls):
        key = field.name
        if keys is not None and key not in keys:
            continue
        full = f"{name}.{key}"
        default = "not set" if name == "settings" else _default(field)
        allowed = _allowed(full, annotations[key], schema)
        row = [code(key), allowed, default, _meaning(full, comments)]
        if has_variables:
            also = _ALSO.get(full)
            row.append(code(variable_name(full)) + (f", {also}" if also else ""))
        rows.append(row)
    heads = ("key", "allowed", "default", "meaning", *(["variable"] if has_variables else []))
    return table(heads, rows)


def _allowed(key: str, annotation: Any, schema: Any) -> str:
    from agentctl.config.types import Reference, find_mark
    from agentctl.records.schema_words import describe_values, find_part

    if key == "databases.url":
        return '"sqlite:///" and the path of a file, or a "postgresql://" url without a password'
    part = find_part(schema, [key.rpartition(".")[2]])
    refers = find_mark(annotation, Reference)
    if refers is not None:
        tables = " or ".join(f"`[[{table}]]`" for table in refers.tables)
        is_list = part["type"] == "array"
        return f"a list of ids of {tables}" if is_list else f"the id of an entry of {tables}"
    if key == "workflows.steps":
        return "a list of steps"
    if "properties" in part:
        return "a table"
    words = describe_values(part, schema.get("$defs", {}))
    return re.sub(r"\d{5,}", lambda match: f"{int(match[0]):_}", words)


def _default(field: dataclasses.Field[Any]) -> str:
    value = field.default
    if field.default_factory is not dataclasses.MISSING:
        return code("{}")
    if value is dataclasses.MISSING:
        return "required"
    if dataclasses.is_dataclass(value):
        return code("{}")
    if value is None:
        return code('""')
    if isinstance(value, bool):
        return code("true" if value else "false")
    if isinstance(value, tuple):
        return code(str(list(value)).replace("'", '"'))
    if isinstance(value, str | Path):
        return code(f'"{value}"')
    return code(f"{value:_}" if value > 9_999 else str(value))


def _meaning(key: str, comments: dict[str, str]) -> str:
    meaning = _MEANINGS.get(key) or comments.get(key)
    if not meaning:
        raise SystemExit(f"docs: {key} has neither a comment in sample.toml nor a meaning here")
    return meaning


def _comments() -> dict[str, str]:
    """Return the comments of the sample by key (`server.port`) and by table (`runs`)."""
    from agentctl.config.load import SAMPLE_CONFIG

    found: dict[str, str] = {}
    table = ""
    last = ""
    for line in SAMPLE_CONFIG.splitlines():
        if match := _TABLE.fullmatch(line):
            table = last = match["name"]
        elif match := _KEY.fullmatch(line):
            last = f"{table}.{match['key']}"
        elif not (match := _CONTINUED.fullmatch(line)):
            last = ""
            continue
        comment = match["comment"]
        if comment and last and not comment.startswith("not the default"):
            joined = f"{found[last]} {comment}" if match.re is _CONTINUED else comment
            found.setdefault(last, joined)
            if match.re is _CONTINUED:
                found[last] = joined
    return found
