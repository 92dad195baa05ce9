"""The operation `explain_auth`: the decision on a request, check by check.

`auth.explain` runs the checks of the credential and the policy. This module adds the last check,
`data`: it looks up the resources that the request names, as the principal of that request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from agentctl import errors
from agentctl.auth.principal import Principal
from agentctl.interface.requests import ExplainRequest, SessionLocator
from agentctl.records.authorization import ExplainRecord
from agentctl.records.document import Document, build_document
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.routes import RouteMatch, operation_ids
from agentctl.records.text import check_text
from agentctl.service.family import OperationFamily, RunLookups
from agentctl.service.hosting import Hosting
from agentctl.store.repositories import accounts, run_reads, sessions
from agentctl.store.visibility import EVERYONE

if TYPE_CHECKING:
    from agentctl.auth.explain.explain import Explanation

_METHOD = re.compile(r"[A-Za-z]{1,20}")
_MAXIMUM_PATH = 8_192

_ACCOUNT_OPERATIONS = ("create_service_account", "list_service_accounts", "revoke_service_account")
_REMEDIES = {
    400: "add a session_id, or use a token with one",
    403: "manage service accounts locally, or enable authorization",
}

Query = Mapping[str, str]


class AuthorizationOperations(OperationFamily):
    """Questions of an operator about the requests of other callers."""

    async def explain_auth(self, request: ExplainRequest) -> Document[ExplainRecord]:
        async with self.audit("explain_auth"):
            from agentctl.auth.explain.explain import explain_request

            if _METHOD.fullmatch(request.method) is None:
                raise errors.ValidationFailed("method must be a word, such as GET")

            method = request.method.upper()
            target = check_text("path", request.path)
            if not target.startswith("/") or len(target) > _MAXIMUM_PATH:
                raise errors.ValidationFailed(
                    f"path must begin with / and be at most {_MAXIMUM_PATH} characters"
                )

            settings = self.hosting.settings
            verifier = self.hosting.verifier()
            token = request.token or None
            report = await explain_request(verifier, settings, method, target, token)

            principal = report.principal
            match = report.match
            if report.allowed and match is not None and principal is not None:
                data = _DataCheck(self.hosting, principal, match, _parse_query(target))
                report = await data.extend(report)

            return build_document(report.record())


class _DataCheck:
    """The check `data` of an explanation.

    Args:
        hosting: the shared objects of the service.
        principal: the caller of the explained request.
        match: its operation and path parameters.
        query: its query parameters.
    """

    def __init__(
        self, hosting: Hosting, principal: Principal, match: RouteMatch, query: Query
    ) -> None:
        self._hosting = hosting
        self._principal = principal
        self._lookups = RunLookups(hosting, principal)
        self._operation, self._path = match
        self._query = query

    async def extend(self, report: Explanation) -> Explanation:
        """Return the explanation with this check added."""
        from agentctl.auth.explain.explain import ExplainedCheck

        owner = _describe_owner(self._principal.subject)
        visible = f"the caller sees only data that {owner} (authorization.user_isolation)"
        if self._principal.sees_all_users:
            visible = "the caller sees the data of all users"

        try:
            await self._require_resources()
        except errors.NotFound as failure:
            cause, remedy = await self._explain_missing(failure)
            check = ExplainedCheck("data", "failed", f"{failure.detail}; {visible}", cause, remedy)
            return report.with_check(check, failure.status)
        except (errors.BadRequest, errors.Forbidden) as failure:
            remedy = _REMEDIES[failure.status]
            check = ExplainedCheck("data", "failed", visible, failure.detail, remedy)
            return report.with_check(check, failure.status)
        except (errors.Unavailable, errors.SchemaMismatch):
            return report.with_check(
                ExplainedCheck("data", "skipped", "the database cannot be read")
            )

        return report.with_check(ExplainedCheck("data", "passed", visible))

    async def _require_resources(self) -> None:
        """Raise the error of the operation if a resource of the path or query is not found."""
        lookups = self._lookups
        operation = self._operation

        path = self._path
        run_id = path.get("run_id")
        db_id = self._query.get("db_id")
        component = self._named_component()

        if operation in _ACCOUNT_OPERATIONS:
            lookups.require_account_management()
            if "account_id" in path:
                system = self._hosting.databases.system
                row = await system.read(accounts.get(path["account_id"]))
                if row is None or row.revoked_at is not None:
                    raise errors.NotFound("Service account not found")
        elif "session_id" in path:
            session_id = path["session_id"]
            where = _locator_from_query(self._query)
            database = lookups.session_database(where)
            if run_id is None:
                await database.read(lookups.session(session_id, where))
            else:
                await database.read(lookups.run_document(run_id, session=(session_id, where)))
        elif component is not None:
            await self._require_component(*component, run_id)
        elif run_id is not None:
            await lookups.database(db_id).read(lookups.run_document(run_id))
        elif operation == "get_sessions":
            lookups.session_database(_locator_from_query(self._query))
        elif operation in ("create_session", "delete_sessions", "get_runs"):
            lookups.database(db_id)

    async def _require_component(
        self, kind: ComponentKind, component_id: str, run_id: str | None
    ) -> None:
        ids = operation_ids(kind)
        session_id = self._query.get("session_id")
        self._lookups.component(kind, component_id)

        if run_id is None:
            return

        # Clients of another product cannot name the session of a run.
        needs_session = self._hosting.settings.server.compatibility == "none"
        reads = self._operation in (ids.get_run, ids.follow_run, ids.get_tool_call)
        if reads or not needs_session:
            await self._lookups.find_run(kind, component_id, run_id, session_id)
        else:
            action = "cancel" if self._operation == ids.cancel_run else "resume"
            await self._lookups.find_named_run(kind, component_id, run_id, session_id, action)

    def _named_component(self) -> tuple[ComponentKind, str] | None:
        for kind, names in KINDS.items():
            if names.id_field in self._path:
                return kind, self._path[names.id_field]
        return None

    async def _explain_missing(self, failure: errors.NotFound) -> tuple[str, str]:
        noun = failure.detail.partition(" ")[0]
        if noun == "Service":
            cause = "there is no service account with this id, or it is revoked"
            return cause, "list the accounts with `agentctl accounts list`"

        if noun == "Database":
            ids = ", ".join(self._hosting.databases)
            return f"the databases are: {ids}", "use one of them as db_id"

        if noun == "Table":
            return "the only table is sessions", "remove table from the query"

        for kind, names in KINDS.items():
            if noun == names.noun:
                configured = ", ".join(self._hosting.catalog.components(kind)) or "none"
                remedy = f"use one of them, or configure [[{names.path}]] with this id"
                return f"the {names.path} are: {configured}", remedy

        if "run_id" in self._path:
            return await self._explain_missing_run(self._path["run_id"])
        return await self._explain_missing_session(self._path["session_id"])

    async def _explain_missing_session(self, session_id: str) -> tuple[str, str]:
        database = self._lookups.session_database(_locator_from_query(self._query))
        row = await database.read(sessions.get(session_id, EVERYONE))
        if row is None:
            return (
                "no user has a session with this id",
                "list the sessions with `agentctl sessions list`",
            )

        owner = _describe_owner(row.user_id)
        if not self._lookups.visibility.sees(row.user_id):
            return f"the session exists and {owner}", _owner_remedy(row.user_id)

        cause = f"the session is of type {row.session_type} and {owner}"
        return f"{cause}; the query names another", "remove type and user_id from the query"

    async def _explain_missing_run(self, run_id: str) -> tuple[str, str]:
        lookups = self._lookups
        component = self._named_component()

        if component is None:
            database = lookups.database(self._query.get("db_id"))
        else:
            database = lookups.component_database(*component)

        row = await database.read(run_reads.get(run_id, EVERYONE))
        if row is None:
            return "no user has a run with this id", "list the runs with `agentctl runs list`"

        if not lookups.visibility.sees(row.user_id):
            owner = _describe_owner(row.user_id)
            return f"the run exists and {owner}", _owner_remedy(row.user_id)

        place = f"{row.component_type} {row.component_id} in session {row.session_id}"
        return f"the run exists, of {place}", "use that path and session"


def _parse_query(target: str) -> Query:
    query = target.partition("#")[0].partition("?")[2]
    try:
        return dict(parse_qsl(query, keep_blank_values=True, max_num_fields=100))
    except ValueError:
        raise errors.ValidationFailed("path has more than 100 fields in its query") from None


def _locator_from_query(query: Query) -> SessionLocator:
    kind = query.get("type")
    return SessionLocator(
        type=kind if kind in KINDS else None,
        user_id=query.get("user_id"),
        db_id=query.get("db_id"),
        table=query.get("table"),
    )


def _describe_owner(user_id: str | None) -> str:
    from agentctl.auth.explain.credential import quote_value

    return "has no owner" if user_id is None else f"belongs to {quote_value(user_id)}"


def _owner_remedy(user_id: str | None) -> str:
    token = "a token without sub" if user_id is None else "a token of its owner"
    return f"use {token}, or an administrator's"
