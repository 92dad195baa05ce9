"""The tables of the configuration file, their classes, and a reader and writers for them.

Keys of single tables are also read from environment variables: `AGENTCTL_SECTION__KEY` and the two
`JWT_*` variables. Variables without `__` are ignored: container platforms generate names such as
AGENTCTL_PORT for a service of that name. The rules are in docs/contract.md "Configuration".

Settings become JSON text for worker processes, which contains secrets: it is for a process of the
server, never for a file. `settings_from_text` checks nothing, because the text comes from checked
settings. `effective_settings` masks secrets.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from agentctl.config import mcp_table, observability, settings, upkeep, webhooks
from agentctl.config.places import KeyPath, Place
from agentctl.config.settings import Settings
from agentctl.config.types import Secret, convert_value, parse_variable
from agentctl.extensions import insert_after, load_extensions
from agentctl.records.text import MASK, quote_text, suggest_name
from agentctl.records.value_types import ValueType, field_types

PREFIX = "AGENTCTL_"
TEST_PREFIX = "AGENTCTL_TEST_"
ADDING_VARIABLES = {"JWT_VERIFICATION_KEY": "verification_keys", "JWT_JWKS_FILE": "jwks_file"}
"""Variables that add an element to a key of `[authorization]`."""

SECTIONS: dict[str, type] = {
    "server": settings.Server,
    "authorization": settings.Authorization,
    "signing": settings.Signing,
    "runs": settings.Runs,
    "limits": settings.Limits,
    "approvals": upkeep.Approvals,
    "quotas": upkeep.Quotas,
    "rate_limits": upkeep.RateLimits,
    "search": upkeep.Search,
    "files": upkeep.Files,
    "audit": settings.Audit,
    "retention": upkeep.Retention,
    "log": observability.Log,
    "metrics": observability.Metrics,
    "tracing": observability.Tracing,
    "console": settings.Console,
}
ENTRY_TABLES: dict[str, type] = {
    "databases": settings.Database,
    "models": settings.Model,
    "mcp_servers": mcp_table.McpServer,
    "agents": settings.Agent,
    "teams": settings.Team,
    "workflows": settings.Workflow,
    "budgets": upkeep.Budget,
    "webhooks": webhooks.Webhook,
}

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
"""The values of former keys that are constants now, by table and key. A file that gives such a key
this value, as `init` of an earlier version did, is read as before; another value is refused."""

FORMER_PROBLEM = "is a constant now, with the value {}"

FORMER_HINTS = {
    # Without the key a server would create its tables in a PostgreSQL database of AgentOS.
    "databases.layout": "remove this entry of [[databases]]; docs/agentos.md has a program that"
    " writes the sessions of AgentOS for: agentctl sessions import"
}
"""Hints about former keys for which it is not enough to remove the key."""


@functools.cache
def list_sections() -> dict[str, type]:
    """Return the tables `[name]`: those of the core, and those of extensions."""
    added = [table for extension in load_extensions() for table in extension.list_tables()]
    return insert_after(SECTIONS, ((table.after, table.name, table.settings) for table in added))


def section_keys() -> list[str]:
    """Return every key that the environment can set: `server.id`, `server.name`, …"""
    sections = list_sections().items()
    return [f"{name}.{key}" for name, table in sections for key in field_types(table)]


class Variable(NamedTuple):
    """An environment variable that sets a key."""

    name: str
    text: str


def variable_name(key: str) -> str:
    """Return the variable of a key: AGENTCTL_SERVER__PORT for `server.port`."""
    return PREFIX + key.upper().replace(".", "__")


def find_variables(environ: Mapping[str, str], keys: Iterable[str]) -> dict[str, Variable]:
    """Return the variables that set one of `keys`, by key such as `server.port`.

    Raises:
        InvalidConfiguration: a variable of this form belongs to no key.
    """
    known = {variable_name(key): key for key in keys}
    former = {variable_name(key): value for key, value in FORMER_KEYS.items()}
    variables: dict[str, Variable] = {}
    for name in sorted(environ):
        if name in known:
            variables[known[name]] = Variable(name, environ[name])
        elif name in former:
            if environ[name] != str(former[name]):
                problem = FORMER_PROBLEM.format(former[name])
                Place("", variable=name).refuse(problem, hint="unset it")
        elif name.startswith(PREFIX) and "__" in name and not name.startswith(TEST_PREFIX):
            near = _suggest_variable(name, list(known))
            guess = f"; did you mean {near}?" if near else ""
            Place("", variable=name).refuse(
                f"this version has no such key{guess}",
                hint=f"unset it; only keys of single tables have variables, such as "
                f"{variable_name('server.port')}; lists of tables are set in the file",
            )
    return variables


def _suggest_variable(name: str, known: list[str]) -> str | None:
    section, _, key = name.partition("__")
    keys = [other.partition("__")[2] for other in known if other.startswith(f"{section}__")]
    if not keys:
        return suggest_name(name, known)
    near = suggest_name(key, keys)
    return near and f"{section}__{near}"


@dataclasses.dataclass(slots=True)
class TableReader:
    """A reader of tables that records the source of each key.

    Attributes:
        base: the folder of relative paths.
        lines: the line numbers of the keys in the file.
        variables: the environment variables that set keys, by key.
        places: the place of each key that was read.
    """

    file: str
    base: Path
    lines: Mapping[KeyPath, int]
    variables: Mapping[str, Variable] = dataclasses.field(default_factory=dict)
    places: dict[str, Place] = dataclasses.field(default_factory=dict)

    def check_names(self, document: Mapping[str, object]) -> None:
        self._refuse_unknown(document, {**list_sections(), **ENTRY_TABLES}, (), "")
        former = {
            key: path
            for path, value in _list_values(document)
            if (key := _former_key(path)) in FORMER_KEYS and value != FORMER_KEYS[key]
        }
        for key, path in former.items():  # all of them at once, with the place of the first one
            keys = f"the key{'s' if len(former) > 1 else ''}: {', '.join(former)}"
            problem = FORMER_PROBLEM.format(FORMER_KEYS[key])
            self._place(path, key).refuse(problem, hint=FORMER_HINTS.get(key, f"remove {keys}"))

    def read_section(self, document: Mapping[str, object], name: str) -> Any:
        """Read the settings of `[name]`; InvalidConfiguration if a key or value is not valid."""
        value = document.get(name, {})
        place = self._place((name,), name)
        if not isinstance(value, dict):
            place.refuse(f"must be a table, written [{name}]")
        return self._table(value, list_sections()[name], (name,), name)

    def entries(self, document: Mapping[str, object], name: str) -> tuple[Any, ...]:
        """Read the settings of every `[[name]]`, in order.

        Raises:
            InvalidConfiguration: a key or value is not valid, or two entries have the same id.
        """
        value = document.get(name, [])
        if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
            self._place((name,), name).refuse(f"must be a list of tables, each written [[{name}]]")
        id_type = field_types(ENTRY_TABLES[name])["id"]
        entries: dict[str, Any] = {}
        for index, entry in enumerate(value):
            path = (name, index)
            label = f"{name}[{index}].id"
            if "id" not in entry:
                self._place(path, label).refuse(f"is missing; it must be {id_type.description}")
            place = self._place((*path, "id"), label)
            entry_id = convert_value(entry["id"], id_type, place, self.base)
            table = self._table(entry, ENTRY_TABLES[name], path, f"{name}.{entry_id}")
            if entry_id in entries:
                place.refuse(f'another entry of [[{name}]] has the id "{entry_id}"')
            entries[entry_id] = table
        return tuple(entries.values())

    def _table(self, table: Mapping[str, object], cls: Any, path: KeyPath, key: str) -> Any:
        value_types = field_types(cls)
        self._refuse_unknown(table, value_types, path, key)
        defaults = {field.name: field for field in dataclasses.fields(cls)}
        values = {
            name: self._value(table, value_type, (*path, name), f"{key}.{name}", defaults[name])
            for name, value_type in value_types.items()
        }
        return cls(**values)

    def _value(
        self,
        table: Mapping[str, object],
        value_type: ValueType,
        path: KeyPath,
        key: str,
        field: dataclasses.Field[Any],
    ) -> object:
        place = self._place(path, key)
        if variable := self.variables.get(key):
            place = Place(self.file, key, variable=variable.name)
            value = convert_value(
                parse_variable(variable.text, value_type), value_type, place, self.base
            )
        elif field.name not in table:
            value = self._default(value_type, place, field)
            place = dataclasses.replace(place, given=False)
        elif value_type.is_list and value_type.item.kind is settings.Step:
            value = self._steps(table[field.name], place, path)
        elif dataclasses.is_dataclass(value_type.kind):
            inner = table[field.name]
            if not isinstance(inner, dict):
                place.refuse("must be a table, such as { temperature = 0.2 }")
            value = self._table(inner, value_type.kind, path, key)
        else:
            value = convert_value(table[field.name], value_type, place, self.base)
        self.places[key] = place
        return value

    def _default(
        self, value_type: ValueType, place: Place, field: dataclasses.Field[Any]
    ) -> object:
        if field.default_factory is not dataclasses.MISSING:
            return field.default_factory()
        if field.default is dataclasses.MISSING:
            place.refuse(f"is missing; it must be {value_type.description}")
        return self.base / field.default if isinstance(field.default, Path) else field.default

    def _steps(self, value: object, place: Place, path: KeyPath) -> tuple[object, ...]:
        if not isinstance(value, list) or not all(isinstance(step, dict) for step in value):
            place.refuse('must be a list of steps, each like { name = "draft", agent = "writer" }')
        return tuple(
            self._table(step, settings.Step, (*path, index), f"{place.key}[{index}]")
            for index, step in enumerate(value)
        )

    def _place(self, path: KeyPath, key: str) -> Place:
        while path:
            for known in (path, (*path, 0)):
                if known in self.lines:
                    return Place(self.file, key, line=self.lines[known])
            path = path[:-1]
        return Place(self.file, key)

    def _refuse_unknown(
        self, table: Mapping[str, object], known: Mapping[str, object], path: KeyPath, key: str
    ) -> None:
        for name in table:
            if name in known or _former_key((*path, name)) in FORMER_KEYS:
                continue
            quoted = name if name.isidentifier() else quote_text(name)
            place = self._place((*path, name), f"{key}.{quoted}" if key else quoted)
            near = suggest_name(name, known)
            guess = f', did you mean "{near}"?' if near else f"; it has {', '.join(known)}"
            place.refuse(f"this version has no such key{guess}", hint="correct or remove the key")


def _list_values(value: object, path: KeyPath = ()) -> Iterator[tuple[KeyPath, object]]:
    """Yield the values of a document with their paths, without tables and lists."""
    inner: Iterable[tuple[str | int, object]] = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    else:
        yield path, value
    for name, item in inner:
        yield from _list_values(item, (*path, name))


def _former_key(path: KeyPath) -> str:
    """Return the key of `FORMER_KEYS` at a path."""
    return ".".join(part for part in path if isinstance(part, str))


def settings_to_text(settings: Settings) -> str:
    """Return the settings, including `sources`, as one line of ASCII."""
    return json.dumps(_encode(settings), default=_encode)


def settings_from_text(text: str) -> Settings:
    """Return the settings of a text from `settings_to_text`, with equal values."""
    plain = json.loads(text)
    settings: Settings = _decode_table(Settings, plain)
    tables = list_sections()
    added = {name: _decode_table(tables[name], table) for name, table in plain["added"].items()}
    return dataclasses.replace(settings, added=added)


def _encode(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _decode_table(cls: Any, table: dict[str, Any]) -> Any:
    return cls(
        **{
            name: _decode_value(table[name], value_type)
            for name, value_type in field_types(cls).items()
        }
    )


def _decode_value(value: Any, value_type: ValueType) -> Any:
    if value is None:
        return None
    if value_type.is_list:
        return tuple(_decode_value(item, value_type.item) for item in value)
    if value_type.is_table:
        return {name: _decode_value(item, value_type.item) for name, item in value.items()}
    if dataclasses.is_dataclass(value_type.kind):
        return _decode_table(value_type.kind, value)
    return Path(value) if value_type.kind is Path else value


def effective_settings(settings: Settings) -> dict[str, Any]:
    """Return the values in effect, table by table, in the shape of the file.

    Returns:
        `{"server": {"port": 7777, …}, …, "agents": [{"id": …}, …], …}`; paths are text, and a path
        that is not set is `""`. Verification keys are masked, because one may be a secret.
    """
    tables: dict[str, Any] = {
        name: _plain_table(getattr(settings, name, None) or settings.get_table(table))
        for name, table in list_sections().items()
    }
    for name in ENTRY_TABLES:
        tables[name] = [_plain_table(entry) for entry in getattr(settings, name)]
    return tables


def _plain_table(table: Any) -> dict[str, Any]:
    return {
        name: _plain_value(getattr(table, name), value_type)
        for name, value_type in field_types(table.__class__).items()
    }


def _plain_value(value: Any, value_type: ValueType) -> Any:
    if isinstance(value, tuple):
        return [_plain_value(item, value_type.item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {key: item for key, item in _plain_table(value).items() if item not in ("", [])}
    if value_type.is_table and value is not None:
        return {name: _plain_value(item, value_type.item) for name, item in value.items()}
    secret = value_type.find_rule(Secret)
    if secret is not None and secret.masked:
        return MASK
    if isinstance(value, Path):
        return str(value)
    return "" if value is None else value
