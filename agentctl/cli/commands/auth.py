"""`agentctl auth`: show the identity of the caller and explain access decisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from agentctl.auth import policy
from agentctl.auth.explain.credential import routable_path, suggest_path
from agentctl.auth.explain.origins import describe_origins
from agentctl.auth.principal import Principal, find_covering_scope
from agentctl.auth.tokens.grants import ScopeOrigin
from agentctl.auth.tokens.mint import check_mintable_scopes
from agentctl.cli.help import CommandApp
from agentctl.cli.io import read_token_file, resolve_token
from agentctl.cli.options import (
    AgentId,
    Config,
    ContextName,
    GivenTokenFile,
    InsecureHttp,
    LocalConfig,
    SessionOption,
    TeamId,
    Url,
    WorkflowId,
    load_optional_settings,
    resolve_admin_scope,
)
from agentctl.cli.parameters import argument, flag
from agentctl.cli.show.output import CommandOutput, FieldsOutput, write_json
from agentctl.cli.show.table import Column, plain_columns
from agentctl.cli.show.terminal import note
from agentctl.cli.target import Target, TargetOptions, open_target, with_target
from agentctl.errors import Forbidden, UsageError
from agentctl.interface.operations import ROUTES, route_table
from agentctl.interface.requests import ExplainRequest
from agentctl.records.authorization import KNOWN_SCOPES, ExplainRecord
from agentctl.records.document import Document
from agentctl.records.routes import RouteMatch
from agentctl.records.system import MeRecord
from agentctl.records.text import format_count, suggest_name

app = CommandApp(
    help="Show your identity and explain access decisions.",
    epilog="Example: agentctl auth explain GET /agents --token-file my.token",
)

Method = Annotated[str, argument("METHOD", "HTTP method, such as GET")]
PathArgument = Annotated[
    str, argument("PATH", "Path such as /agents/writer/runs, with or without a query")
]
WhatArgument = Annotated[str, argument("WHAT", "Scope, operation, or HTTP method with a path")]

_NO_SCOPE = {"token": "(any valid token)", "nothing": "(public)"}

_EXPLAIN_HINT = (
    "use a token with the admin scope, or explain it on the machine of the server, without --url;"
    " `agentctl auth whoami` shows your scopes"
)

_WHOAMI_COLUMNS = [
    *plain_columns("principal", "admin"),
    Column("auth_mode", heading="authorization"),
    Column("scopes", lambda record: ", ".join(record["scopes"]), look="whole"),
]
_CAN_I_COLUMNS = [
    *plain_columns("allowed", "principal", "asked", "by"),
    Column("required_scopes", lambda record: ", ".join(record["required_scopes"]), look="whole"),
]
_STEP_COLUMNS = [Column("name", heading="step"), Column("outcome"), Column("found", look="whole")]
_ALL_STEP_COLUMNS = [*_STEP_COLUMNS, Column("cause"), Column("remedy")]
_SCOPE_COLUMNS = [
    Column("scope", lambda entry: entry["scope"] or _NO_SCOPE[entry["needs"]]),
    Column("also_as", lambda entry: ", ".join(entry["forms"][1:]), look="whole"),
    Column(
        "opens",
        lambda entry: ", ".join(operation["operation"] for operation in entry["operations"]),
        look="whole",
    ),
]

_OPTIONS = {
    "agent_id": "--agent",
    "team_id": "--team",
    "workflow_id": "--workflow",
    "session_id": "--session",
}


@app.command("whoami", epilog="Example: agentctl auth whoami --url http://127.0.0.1:7777")
@with_target()
async def whoami(target: Target, out: CommandOutput) -> None:
    """Show your identity and your scopes.

    In local mode you are the user of this machine, with all rights.
    """
    from agentctl.cli.show.tokens import token_times

    me = await target.operations.system.get_me()
    if out.format == "json":
        write_json(me.raw)
        return
    record = {**me.value, **token_times(target.token)}
    times = plain_columns(*(name for name in record if name not in me.value))
    out.show_record(record, [*_WHOAMI_COLUMNS, *times], "principal")


@app.command("can-i", epilog="Example: agentctl auth can-i POST /agents/writer/runs && echo yes")
@with_target()
async def can_i(
    target: Target,
    out: CommandOutput,
    what: WhatArgument,
    path: str | None = argument("PATH", "Path, after an HTTP method", show_default=False),
    agent: AgentId = None,
    team: TeamId = None,
    workflow: WorkflowId = None,
    session: SessionOption = None,
) -> None:
    """Check your permission: exit code 0 for yes, 1 for no.

    Give a scope (agents:run), an operation (create_agent_run), or a method with a path. The answer
    does not consider which sessions and runs you can see; `agentctl auth explain` does.
    """
    ids = {"agent_id": agent, "team_id": team, "workflow_id": workflow, "session_id": session}
    question = parse_question(what, path, {name: value for name, value in ids.items() if value})
    me = (await target.operations.system.get_me()).value
    answer = answer_question(question, me)
    out.show_record(answer, _CAN_I_COLUMNS, "allowed")
    if not answer["allowed"]:
        raise typer.Exit(1)


@app.command("explain", epilog="Example: agentctl auth explain GET /agents --token-file my.token")
async def explain_request(
    out: CommandOutput,
    method: Method,
    path: PathArgument,
    token_file: GivenTokenFile = None,
    no_token: bool = flag("--no-token", "Explain a request without a token"),
    url: Url = None,
    context: ContextName = None,
    insecure_http: InsecureHttp = False,
    config: LocalConfig = None,
    every: bool = flag("--all", "Show the passed checks in tables too"),
) -> None:
    """Show the checks of a request, the one that fails, and the fix.

    A table shows the check that decides; all other formats show every check. In local mode the
    checks use the configuration and the database. On a server the caller must be an administrator:
    AGENTCTL_TOKEN or the context authenticates the caller, --token-file is the token to explain; if
    only one is given, it is both. Exit code 0 if the request is allowed, 1 if not.
    """
    if no_token and token_file is not None:
        raise UsageError("--token-file and --no-token cannot be used together")
    token: str | None = None
    if no_token:
        token = ""
    elif token_file is not None:
        token = read_token_file(token_file)

    options = TargetOptions(url, context=context, insecure_http=insecure_http, config=config)
    async with open_target(options, reads_token=True, fallback_token=token or None) as target:
        if target.local is not None and token is None:
            token = resolve_token(None)
        try:
            request = ExplainRequest(method, path, token)
            document = await target.operations.system.explain_auth(request)
        except Forbidden as failure:
            # The hint of other denials leads here: it must not lead in a circle.
            failure.hint = _EXPLAIN_HINT
            raise
        _show_explanation(document, out, every)
        if not document.value["allowed"]:
            raise typer.Exit(1)


@app.command("scopes", epilog="Example: agentctl auth scopes -o json")
def list_scopes(out: FieldsOutput, config: Config = None) -> None:
    """List every scope, its forms, and the operations that it grants."""
    settings, _ = load_optional_settings(config)
    table = policy.build_scope_table(resolve_admin_scope(settings))
    out.show_list(table, _SCOPE_COLUMNS, "scope")


def _show_explanation(document: Document[ExplainRecord], out: CommandOutput, every: bool) -> None:
    """Show the checks of a call, and as notes the result, its cause and its remedy.

    Args:
        every: show all checks in a table, not only those that decide.
    """
    record = document.value
    if out.format == "json":
        write_json(document.raw)
    else:
        steps = list(record["steps"])
        if out.format == "table" and not every:
            failures = [step for step in steps if step["outcome"] == "failed"]
            last_passed = [step for step in steps if step["outcome"] == "passed"][-1:]
            steps = failures or last_passed
        columns = _STEP_COLUMNS if out.is_table else _ALL_STEP_COLUMNS
        out.show_list(steps, columns, "name")

    who = f" as {record['principal']}" if record["principal"] else ""
    if record["allowed"]:
        note(f"allowed: {record['operation']}{who}")
    else:
        failed = next(step for step in record["steps"] if step["name"] == record["decided_by"])
        note(f"{record['status']}: rejected by {failed['name']}{who}")
        if failed["cause"]:
            note(f"  cause: {failed['cause']}")
        if failed["remedy"]:
            note("")
            note(f"hint: {failed['remedy']}")

    if out.format == "table" and not every:
        counts = Counter(step["outcome"] for step in record["steps"])
        reached = f", {counts['skipped']} not reached" if counts["skipped"] else ""
        note(f"{format_count(counts['passed'], 'check')} passed{reached} (--all shows them)")


@dataclass(frozen=True, slots=True)
class ExplainQuery:
    """A question about an operation or a scope."""

    asked: str

    match: RouteMatch | None = None
    """The operation with the known ids; None for a scope."""

    scope: str = ""
    """The scope; empty for an operation."""


def parse_question(what: str, path: str | None, ids: Mapping[str, str]) -> ExplainQuery:
    """Parse a question.

    Args:
        what: a scope, an operation id, or an HTTP method.
        ids: path parameters for an operation id.

    Raises:
        UsageError: no such operation or scope.
    """
    if path is not None:
        _reject_unused_ids(ids, {}, f"{what} {path}")
        return ExplainQuery(f"{what.upper()} {path}", _match_route(what.upper(), path))

    if what in policy.POLICY:
        named = {name for name in _OPTIONS if f"{{{name}}}" in ROUTES[what].template}
        _reject_unused_ids(ids, named, what)
        return ExplainQuery(what, RouteMatch(what, dict(ids)))

    _reject_unused_ids(ids, {}, what)
    if ":" in what:
        return ExplainQuery(what, scope=what)

    near = suggest_name(what, [*policy.POLICY, *KNOWN_SCOPES], cutoff=0.6)
    hint = f"did you mean {near!r}?" if near else "`agentctl auth scopes` lists both"
    if what.upper() in {route.method for route in ROUTES.values()} | {"HEAD"}:
        hint = f"add a path: agentctl auth can-i {what.upper()} /agents"
    raise UsageError(f"{what!r} is neither a scope nor an operation", hint=hint)


def _match_route(method: str, path: str) -> RouteMatch:
    """Return the operation of a method and a path.

    Raises:
        UsageError: there is none; the cause names the methods of the path, or a similar path.
    """
    table = route_table()
    served_path = routable_path(path)
    match = table.find("GET" if method == "HEAD" else method, served_path)
    if match is None:
        methods = ", ".join(table.methods(served_path))
        cause = suggest_path(table, method, served_path)
        if methods:
            cause = f"its methods are {methods}"
        raise UsageError(
            f"{method} {path} is not an operation",
            cause=cause,
            hint="`agentctl auth scopes` lists the operations",
        )
    return match


def _reject_unused_ids(ids: Mapping[str, str], named: Any, what: str) -> None:
    for name in ids:
        if name not in named:
            raise UsageError(f"{_OPTIONS[name]} has no effect with {what}")


def answer_question(asked: ExplainQuery, me: MeRecord) -> dict[str, Any]:
    """Answer a question: allowed or not, the reason, and the required scopes.

    The reason names the claim or the role that grants the scope, if the server names it.
    """
    origins = [ScopeOrigin(**origin) for origin in me.get("scope_origins", ())]
    held = frozenset(me["scopes"])
    principal = Principal(subject=me["principal"], scopes=held, admin=me["admin"])
    answer: dict[str, Any] = {"allowed": False, "principal": me["principal"]}
    answer |= {"asked": asked.asked, "by": None}

    if asked.match is not None:
        answer["required_scopes"] = list(policy.required_scopes(*asked.match))
        try:
            policy.authorize(principal, *asked.match)
        except Forbidden:
            return answer
        granting = (resolve_admin_scope(None),) if principal.admin else answer["required_scopes"]
        by = policy.describe_grant(principal, asked.match) + describe_origins(origins, granting)
        return answer | {"allowed": True, "by": by}

    answer["required_scopes"] = [asked.scope]
    if asked.scope not in held:
        check_mintable_scopes((asked.scope,), resolve_admin_scope(None))
    if principal.admin:
        return answer | {"allowed": True, "by": "the caller is an administrator"}

    covering = find_covering_scope(held, asked.scope)
    if covering is None:
        return answer
    by = f"granted by {covering}{describe_origins(origins, (covering,))}"
    return answer | {"allowed": True, "by": by}
