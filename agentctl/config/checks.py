"""Checks between keys: references, ids, and keys without effect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from operator import attrgetter
from typing import Any, get_type_hints
from urllib.parse import urlsplit

from agentctl.config.databases import is_sqlite_url
from agentctl.config.mcp_servers import check_mcp_servers
from agentctl.config.places import Place
from agentctl.config.providers import check_models, find_cycle
from agentctl.config.settings import Authorization, Breaker, Database, Settings
from agentctl.config.tables import ENTRY_TABLES
from agentctl.config.types import Reference, find_mark
from agentctl.extensions import load_extensions
from agentctl.records.authorization import is_known_scope, suggest_scope
from agentctl.records.hosts import is_loopback_host, split_address
from agentctl.records.text import quote_text

_HIGHEST_PORT = 65_535

# A bound without effect above the other one.
_OUTER_BOUNDS = {
    "limits.message_bytes": "limits.body_bytes",
    "limits.state_bytes": "limits.body_bytes",
    "limits.tool_result_bytes": "limits.run_bytes",
    "runs.tool_timeout_seconds": "runs.timeout_seconds",
    "files.item_bytes": "files.run_bytes",
    "files.run_bytes": "files.user_day_bytes",
}

_CONSOLE_NEEDS = (
    ("oidc_issuer", "oidc_client_id"),
    ("oidc_client_id", "oidc_issuer"),
    ("oidc_cli_client_id", "oidc_issuer"),
)
"""Keys of `[console]` with the key that they need: without it they have no effect."""

_POSTGRES_KEYS = (
    "pool_size", "wait_seconds", "statement_seconds", "password_env", "search_path", "tls",
    "tls_ca_file", "listen_url",
)  # fmt: skip

_MODEL_KEYS = (
    "model", "instructions", "settings", "output", "memory", "summary", "model_calls",
    "tool_result_tokens", "tools", "external_tools",
)  # fmt: skip
"""Keys of an agent that its object takes the place of."""

_CODE_KEYS = ("deps", "store", "configurable")
"""Keys of an agent that are for its object."""

Places = Mapping[str, Place]


def check_settings(settings: Settings, places: Places) -> None:
    """Check the converted settings against each other.

    Args:
        places: the places of all keys, for messages.

    Raises:
        InvalidConfiguration: the first mistake, with file and key.
    """
    checks: tuple[Callable[[Settings, Places], None], ...] = (
        _check_origins,
        _check_guide,
        _check_authorization,
        _check_roles,
        _check_console,
        _check_bounds,
        _check_metrics,
        _check_audit,
        *(extension.check_settings for extension in load_extensions()),
        _check_databases,
        _check_agents,
        _check_next,
        _check_breakers,
        _check_references,
        check_models,
        _check_steps,
        _check_teams,
        _check_durable,
        check_mcp_servers,
        _check_approvers,
        _check_search,
        _check_files,
        _check_budgets,
        _check_webhooks,
    )
    for check in checks:
        check(settings, places)


def _check_origins(settings: Settings, places: Places) -> None:
    origins = settings.server.cors_origins
    if "*" in origins and len(origins) > 1:
        places["server.cors_origins"].refuse('"*" allows every origin, the others have no effect')


def _check_guide(settings: Settings, places: Places) -> None:
    folder = settings.server.guide
    if folder is None or (folder / "index.html").is_file():
        return
    places["server.guide"].refuse(
        f"{folder} has no documentation site: it needs an index.html",
        hint="unpack agentctl-guide-VERSION.tgz of the release, and name its folder guide",
    )


def _check_authorization(settings: Settings, places: Places) -> None:
    table = settings.authorization
    if table.audience and not table.verify_audience:
        places["authorization.audience"].refuse(
            "has no effect while authorization.verify_audience is false",
            hint="set verify_audience = true, or remove audience",
        )

    # All further checks are about keys that are fetched.
    if not table.jwks_url and not table.oidc_discovery:
        return

    key = "jwks_url" if table.jwks_url else "oidc_discovery"
    place = places[f"authorization.{key}"]
    if table.jwks_url and table.oidc_discovery:
        place.refuse("has no effect with oidc_discovery = true", hint="remove one of the two")
    if table.algorithm.startswith("HS"):
        place.refuse(f"{table.algorithm} needs a shared secret, which is never fetched")

    address = urlsplit(table.jwks_url or table.issuer)
    if not address.hostname:
        place.refuse("needs the issuer, a URL", hint='set issuer = "https://id.example.org"')
    _check_transport(address.geturl(), place if table.jwks_url else places["authorization.issuer"])


def _check_roles(settings: Settings, places: Places) -> None:
    table = settings.authorization
    if not table.scopes_claim and not table.roles_claim:
        places["authorization.scopes_claim"].refuse("must name a claim, unless roles_claim does")

    if places["authorization.roles_claim"].given and table.roles_claim and not table.roles:
        places["authorization.roles_claim"].refuse(
            "has no effect without roles",
            hint='set the scopes of a role in [authorization.roles]: viewer = ["agents:read"]',
        )
    if table.roles and not table.roles_claim:
        places["authorization.roles"].refuse(
            "has no effect without roles_claim", hint='set roles_claim = "groups"'
        )

    for role, scopes in table.roles.items():
        place = places["authorization.roles"].member(role)
        for scope in scopes:
            _check_role_scope(scope, table, place)


def _check_role_scope(scope: str, table: Authorization, place: Place) -> None:
    """Check a scope that a role grants."""
    if scope == table.admin_scope:
        if not table.roles_may_grant_admin:
            place.refuse(
                f"grants {quote_text(scope)}, which allows everything",
                hint="set roles_may_grant_admin = true in [authorization] if that is meant",
            )
        return

    if not is_known_scope(scope):
        similar_scope = suggest_scope(scope, table.admin_scope)
        guess = f"; did you mean {quote_text(similar_scope)}?" if similar_scope else ""
        place.refuse(
            f"{quote_text(scope)} is not a scope{guess}",
            hint="`agentctl auth scopes` lists all scopes",
        )


def _check_transport(url: str, place: Place) -> None:
    """Check that no machine on the way can replace the keys of a URL."""
    address = urlsplit(url)
    if address.scheme == "https":
        return
    if address.scheme == "http" and is_loopback_host(address.hostname or ""):
        return
    place.refuse("must be fetched with https, except from this machine")


def _check_console(settings: Settings, places: Places) -> None:
    table = settings.console
    for name, needed_name in _CONSOLE_NEEDS:
        if getattr(table, name) and not getattr(table, needed_name):
            hint = f"set {needed_name} in [console]"
            places[f"console.{name}"].refuse(f"needs {needed_name}", hint=hint)

    if not table.oidc_issuer:
        return
    place = places["console.oidc_issuer"]
    _check_transport(table.oidc_issuer, place)
    if not settings.authorization.enabled:
        place.refuse("has no effect while authorization is off")


def _check_bounds(settings: Settings, places: Places) -> None:
    for inner, outer in _OUTER_BOUNDS.items():
        inner_bound = attrgetter(inner)(settings)
        outer_bound = attrgetter(outer)(settings)
        # A default is no mistake of the file: the outer bound was lowered.
        if places[inner].given and inner_bound > outer_bound:
            places[inner].refuse(f"has no effect above {outer}, which is {outer_bound}")


def _check_metrics(settings: Settings, places: Places) -> None:
    metrics = settings.metrics
    if not metrics.listen:
        return

    host, port = split_address(metrics.listen)
    if port > _HIGHEST_PORT:
        places["metrics.listen"].refuse(f"must have a port from 0 to {_HIGHEST_PORT}")
    if not (metrics.allow_remote or is_loopback_host(host)):
        places["metrics.listen"].refuse(
            f"accepts connections from other machines at {host}, without a token",
            hint='set listen = "127.0.0.1:9464", or allow_remote = true in [metrics]',
        )


def _check_audit(settings: Settings, places: Places) -> None:
    if settings.audit.heads_file is not None and settings.audit.key_file is None:
        places["audit.heads_file"].refuse(
            "has no effect without key_file",
            hint="create a key with: agentctl keys generate --algorithm EdDSA --out keys/audit.pem",
        )


def _check_databases(settings: Settings, places: Places) -> None:
    seen_databases: dict[tuple[str, str], Database] = {}
    for database in settings.databases:
        key = f"databases.{database.id}"
        where = (database.url, database.search_path)
        same_database = seen_databases.get(where)
        if same_database is not None:
            places[f"{key}.url"].refuse(f'is the same database as "{same_database.id}"')
        seen_databases[where] = database

        if is_sqlite_url(database.url):
            for name in _POSTGRES_KEYS:
                if places[f"{key}.{name}"].given:
                    places[f"{key}.{name}"].refuse("has no effect for SQLite")

        if database.listen_url and is_sqlite_url(database.listen_url):
            places[f"{key}.listen_url"].refuse("must be a URL of PostgreSQL")
        if database.listen_url == database.url:
            places[f"{key}.listen_url"].refuse(
                "is the url",
                hint="remove it, or name the server itself, without the connection pooler",
            )

        if database.tls_ca_file and not database.tls.startswith("verify"):
            places[f"{key}.tls_ca_file"].refuse(f'has no effect with tls = "{database.tls}"')


def _check_agents(settings: Settings, places: Places) -> None:
    for agent in settings.agents:
        key = f"agents.{agent.id}"
        if agent.object:
            for name in _MODEL_KEYS:
                if places[f"{key}.{name}"].given:
                    places[f"{key}.{name}"].refuse("has no effect with object")
            continue

        for name in _CODE_KEYS:
            if places[f"{key}.{name}"].given:
                places[f"{key}.{name}"].refuse("has no effect without object")
        if not agent.model:
            places[f"{key}.model"].refuse(
                "is missing; it must be the id of an entry of [[models]]",
                hint='or set object = "package.module:name" for an agent in code',
            )


def _check_references(settings: Settings, places: Places) -> None:
    ids = {table: [entry.id for entry in getattr(settings, table)] for table in ENTRY_TABLES}
    for table in ENTRY_TABLES:
        for entry in getattr(settings, table):
            _check_entry(entry, f"{table}.{entry.id}", ids, places)

    # The tables inside of entries.
    for table in ("agents", "teams"):
        for entry in getattr(settings, table):
            for name in ("memory", "summary"):
                _check_entry(getattr(entry, name), f"{table}.{entry.id}.{name}", ids, places)
    for workflow in settings.workflows:
        for index, step in enumerate(workflow.steps):
            _check_entry(step, f"workflows.{workflow.id}.steps[{index}]", ids, places)


def _check_entry(entry: Any, key: str, ids: Mapping[str, list[str]], places: Places) -> None:
    """Check that the ids in the fields of a table are ids of entries.

    Args:
        ids: the ids of the entries of each table.
    """
    for name, reference in _list_references(entry.__class__):
        value = getattr(entry, name)
        entry_ids = value if isinstance(value, tuple) else (value,)
        known_ids = [known_id for table in reference.tables for known_id in ids[table]]
        for entry_id in entry_ids:
            if entry_id and entry_id not in known_ids:
                places[f"{key}.{name}"].refuse_unknown_id(entry_id, reference.notation, known_ids)


@cache
def _list_references(table: type) -> list[tuple[str, Reference]]:
    """Return the fields of a table that have the ids of entries. Their types take long to read."""
    annotations = get_type_hints(table, include_extras=True)
    marks = {name: find_mark(annotation, Reference) for name, annotation in annotations.items()}
    return [(name, reference) for name, reference in marks.items() if reference is not None]


def _check_next(settings: Settings, places: Places) -> None:
    for table in ("agents", "teams", "workflows"):
        entries = {entry.id: entry for entry in getattr(settings, table)}
        for entry in entries.values():
            key = f"{table}.{entry.id}"
            if entry.percent and not entry.next:
                places[f"{key}.percent"].refuse("has no effect without next")

            # An unknown id is refused as a reference.
            next_entry = entries.get(entry.next)
            if next_entry is not None and (next_entry is entry or next_entry.next):
                places[f"{key}.next"].refuse(
                    "must be another entry, which has no next itself",
                    hint="two versions are compared at a time",
                )


def _check_breakers(settings: Settings, places: Places) -> None:
    for table in ("models", "agents", "teams", "workflows"):
        for entry in getattr(settings, table):
            place = places[f"{table}.{entry.id}.breaker"]
            if place.given and not entry.breaker.failures and entry.breaker != Breaker():
                place.item(".within_seconds").refuse(
                    "has no effect without failures",
                    hint="set failures, such as breaker = { failures = 5, within_seconds = 600 }",
                )


def _check_steps(settings: Settings, places: Places) -> None:
    for workflow in settings.workflows:
        key = f"workflows.{workflow.id}.steps"
        if not workflow.steps:
            places[key].refuse("must have at least one step")

        seen_names: set[str] = set()
        for index, step in enumerate(workflow.steps):
            place = places[key].item(f"[{index}]")
            if bool(step.agent) == bool(step.team):
                place.refuse("must have exactly one of agent and team")
            if step.name in seen_names:
                place.item(".name").refuse(f"another step has the name {quote_text(step.name)}")
            seen_names.add(step.name)


def _check_teams(settings: Settings, places: Places) -> None:
    agent_ids = {agent.id for agent in settings.agents}
    for team in settings.teams:
        if team.id in agent_ids:
            places[f"teams.{team.id}.id"].refuse(
                f'an agent has the id "{team.id}" too, and members are ids of both'
            )

    members = {team.id: team.members for team in settings.teams}
    checked_ids: set[str] = set()
    for team in settings.teams:
        if not team.members:
            places[f"teams.{team.id}.members"].refuse("must have at least one member")
        cycle = find_cycle(team.id, members, checked_ids)
        if cycle:
            places[f"teams.{cycle[-1]}.members"].refuse(
                f"the team is a member of itself: {' -> '.join(cycle)}"
            )


def _check_durable(settings: Settings, places: Places) -> None:
    """Check that everything below a durable team or workflow can continue in another process."""
    agents = {agent.id: agent for agent in settings.agents}
    teams = {team.id: team for team in settings.teams}

    members_by_key: dict[str, Iterable[str]] = {}
    for team in settings.teams:
        if team.durable:
            members_by_key[f"teams.{team.id}"] = team.members
    for workflow in settings.workflows:
        if workflow.durable:
            step_ids = [step.agent or step.team for step in workflow.steps]
            members_by_key[f"workflows.{workflow.id}"] = step_ids

    for key, members in members_by_key.items():
        open_ids = [*members]
        seen_ids = set[str]()
        while open_ids:
            member_id = open_ids.pop()
            if member_id in seen_ids:
                continue
            seen_ids.add(member_id)

            agent = agents.get(member_id)
            if agent is None:
                open_ids += teams[member_id].members
            elif agent.object and not agent.durable:
                places[f"{key}.durable"].refuse(
                    f"needs that all agents in code below it are durable; {agent.id} is not",
                    hint=f"set durable = true for the agent {agent.id}, or remove it here",
                )


def _check_approvers(settings: Settings, places: Places) -> None:
    if settings.has_approvers:
        return

    for table in ("agents", "teams"):
        for entry in getattr(settings, table):
            for pattern, policy in entry.approve.items():
                if policy == "other":
                    places[f"{table}.{entry.id}.approve"].member(pattern).refuse(
                        'must not be "other" while authorization is off: no one is another user',
                        hint='set it to "user", or own = true in [approvals]',
                    )


def _check_search(settings: Settings, places: Places) -> None:
    if settings.search.tokenizer != "trigram":
        return

    for database in settings.databases:
        if not is_sqlite_url(database.url):
            places["search.tokenizer"].refuse(
                f'must be "words": the database {database.id} is on PostgreSQL',
                hint="trigrams are in SQLite only",
            )


def _check_files(settings: Settings, places: Places) -> None:
    table = settings.files
    if table.store == "s3" and not table.bucket:
        places["files.bucket"].refuse('must be set with store = "s3"')
    for key in ("bucket", "prefix", "endpoint", "region"):
        if table.store == "folder" and getattr(table, key):
            places[f"files.{key}"].refuse('has no effect with store = "folder"')


def _check_budgets(settings: Settings, places: Places) -> None:
    for budget in settings.budgets:
        key = f"budgets.{budget.id}"
        if (budget.tokens is None) == (budget.cost is None):
            places[f"{key}.tokens"].refuse(
                "must be set, unless cost is: a budget has exactly one of them",
                hint="write an entry for each of them",
            )
        if budget.warn_at is not None and budget.warn_at >= max(budget.limit, 1):
            places[f"{key}.warn_at"].refuse(
                f"must be less than the limit, which is {budget.limit:,}",
                hint="write a part of the limit, such as 0.8, or a smaller amount",
            )
        if budget.per == "server" and budget.component:
            places[f"{key}.component"].refuse(
                'must be empty with per = "server"', hint='set per = "agent"'
            )


def _check_webhooks(settings: Settings, places: Places) -> None:
    for webhook in settings.webhooks:
        key = f"webhooks.{webhook.id}"

        if not webhook.url:
            places[f"{key}.url"].refuse("must not be empty")
        if not webhook.url.startswith("https:") and not webhook.allow_private:
            places[f"{key}.url"].refuse(
                "must begin with https",
                hint="for a receiver in your own network, set allow_private = true",
            )
        if not webhook.events:
            places[f"{key}.events"].refuse("must have at least one event")

        if bool(webhook.secret_env) == (webhook.key_file is not None):
            places[f"{key}.secret_env"].refuse(
                "must be set, unless key_file is: exactly one of them signs",
                hint="create a secret with: agentctl webhooks secret",
            )
        if webhook.previous_secret_env and not webhook.secret_env:
            places[f"{key}.previous_secret_env"].refuse("has no effect without secret_env")
