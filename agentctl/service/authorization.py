"""Why a request is allowed or not: the chain of `auth.explain`, and what is stored behind it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from agentctl import errors
from agentctl.auth.principal import Principal
from agentctl.operations import ExplainRequest, SessionLocator
from agentctl.records.authorization import ExplainRecord
from agentctl.records.document import Document, build_document
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.routes import RouteMatch, operation_ids
from agentctl.service.access import Access, check_text
from agentctl.service.accounts import AccountOperations
from agentctl.service.runs import RunOperations
from agentctl.service.sessions import SessionOperations
from agentctl.store.database import Database
from agentctl.store.repositories import accounts, runs, sessions
from agentctl.store.visibility import EVERYONE

if TYPE_CHECKING:
    from agentctl.auth.explain.explain import Explanation

__all__ = ["AuthorizationOperations"]

_METHOD = re.compile(r"[A-Za-z]{1,20}")
_MAXIMUM_PATH = 8_192

_ACCOUNT_OPERATIONS = ("create_service_account", "list_service_accounts", "revoke_service_account")
_REMEDIES = {
    400: "ask with a session_id, or with a token that has one",
    403: "manage them locally, or switch authorization on",
}

Query = Mapping[str, str]


class AuthorizationOperations(AccountOperations, RunOperations, SessionOperations):
    """What an operator asks about the requests of others."""

    async def explain_auth(self, request: ExplainRequest) -> Document[ExplainRecord]:
        """What a request would be answered, and which check decides it.

        Raises:
            ValidationFailed: method or path is none.
            InvalidKey: the verification keys are refused, or there are none.
        """
        async with self.audit("explain_auth"):
            found = await self._explained(request)
            return build_document(found.record())

    async def _explained(self, request: ExplainRequest) -> Explanation:
        from agentctl.auth.explain.explain import explain_request

        method, target = _check_request(request)
        settings, verifier = self.hosting.settings, self.hosting.verifier()
        found = await explain_request(verifier, settings, method, target, request.token or None)
        if not found.allowed or found.match is None or found.principal is None:
            return found
        acting = type(self)(self.hosting, found.principal)
        return await acting._with_data(found, found.match, _parse_query(target))

    async def _with_data(self, found: Explanation, match: RouteMatch, query: Query) -> Explanation:
        """The chain with what is stored: asked here as the caller that is explained."""
        from agentctl.auth.explain.explain import ExplainedCheck

        try:
            await self._require_named(match, query)
        except errors.NotFound as failure:
            cause, remedy = await self._missing(match, query, failure)
            step = ExplainedCheck(
                "data", "failed", f"{failure.detail}; {_describe_visibility(self)}", cause, remedy
            )
            return found.with_check(step, failure.status)
        except (errors.BadRequest, errors.Forbidden) as failure:
            remedy = _REMEDIES[failure.status]
            step = ExplainedCheck(
                "data", "failed", _describe_visibility(self), failure.detail, remedy
            )
            return found.with_check(step, failure.status)
        except (errors.Unavailable, errors.SchemaMismatch):
            return found.with_check(
                ExplainedCheck("data", "skipped", "the database cannot be read")
            )
        return found.with_check(ExplainedCheck("data", "passed", _describe_visibility(self)))

    async def _require_named(self, match: RouteMatch, query: Query) -> None:
        """Refuse as the operation would, where what the path and the query name is not there.

        Raises:
            NotFound: it is not there for the principal.
            BadRequest: a session must be named and is not.
        """
        operation, path = match
        if operation in _ACCOUNT_OPERATIONS:
            await self._require_account(path)
            return
        if "session_id" in path:
            await self._require_session(path, _locator_from_query(query))
            return
        for kind, names in KINDS.items():
            if names.id_field in path:
                await self._require_component(kind, match, query)
                return
        if "run_id" in path:
            await self.database(query.get("db_id")).read(self._document(path["run_id"]))
        elif operation == "get_sessions":
            self.database_of(_locator_from_query(query))
        elif operation in ("create_session", "delete_sessions", "get_runs"):
            self.database(query.get("db_id"))

    async def _require_account(self, path: Mapping[str, str]) -> None:
        self._require_authenticated()
        if "account_id" in path:
            row = await self.hosting.databases.system.read(accounts.get(path["account_id"]))
            if row is None or row.revoked_at is not None:
                raise errors.NotFound("Service account not found")

    async def _require_session(self, path: Mapping[str, str], where: SessionLocator) -> None:
        session_id, run_id = path["session_id"], path.get("run_id")
        if run_id is None:
            await self.require_session(session_id, where)
        else:
            await self.database_of(where).read(self._run(session_id, run_id, where))

    async def _require_component(
        self, kind: ComponentKind, match: RouteMatch, query: Query
    ) -> None:
        (operation, path), ids = match, operation_ids(kind)
        component_id, session_id = path[KINDS[kind].id_field], query.get("session_id")
        self.component(kind, component_id)
        if operation == ids.get_run:
            await self.require_run(kind, component_id, path["run_id"], session_id)
        elif "run_id" in path:
            action = "cancel" if operation == ids.cancel_run else "resume"
            await self._require_named_run(kind, component_id, path["run_id"], session_id, action)

    async def _missing(
        self, match: RouteMatch, query: Query, failure: errors.NotFound
    ) -> tuple[str, str]:
        """Why something is not found, and what would find it: for operators only."""
        path = match.path_params
        noun = failure.detail.partition(" ")[0]
        if noun == "Service":
            cause = "there is no service account of this id, or it is revoked"
            return cause, "`agentctl accounts list` shows them"
        if noun == "Database":
            known = ", ".join(self.hosting.databases)
            return f"the databases are: {known}", "ask with one of these as db_id"
        if noun == "Table":
            return "the only table is sessions", "ask without table"
        for kind, names in KINDS.items():
            if noun == names.noun:
                configured = ", ".join(self.hosting.catalog.components(kind)) or "none"
                remedy = f"ask for one of these, or configure a [[{names.path}]] of this id"
                return f"the {names.path} are: {configured}", remedy
        if "run_id" in path:
            return await self._missing_run(path, query)
        return await self._missing_session(path["session_id"], query)

    async def _missing_session(self, session_id: str, query: Query) -> tuple[str, str]:
        database = self.database_of(_locator_from_query(query))
        row = await database.read(sessions.get(session_id, EVERYONE))
        if row is None:
            return "there is no such session, of anybody", "`agentctl sessions list` shows them"
        if not self.visibility.sees(row.user_id):
            return f"the session is there, and {_describe_owner(row.user_id)}", _owner_remedy(
                row.user_id
            )
        cause = f"the session is of type {row.session_type}, and {_describe_owner(row.user_id)}"
        return f"{cause}; the query asks for another", "ask without type and user_id"

    async def _missing_run(self, path: Mapping[str, str], query: Query) -> tuple[str, str]:
        run_id = path["run_id"]
        database = self._database_of_run(path, query)
        row = await database.read(runs.get(run_id, EVERYONE))
        if row is None:
            return "there is no such run, of anybody", "`agentctl runs list` shows them"
        if not self.visibility.sees(row.user_id):
            return f"the run is there, and {_describe_owner(row.user_id)}", _owner_remedy(
                row.user_id
            )
        where = f"{row.component_type} {row.component_id} in session {row.session_id}"
        return f"the run is there, of {where}", "ask with that path and session"

    def _database_of_run(self, path: Mapping[str, str], query: Query) -> Database:
        for kind, names in KINDS.items():
            if names.id_field in path:
                return self._database_of(kind, path[names.id_field])
        return self.database(query.get("db_id"))


def _check_request(request: ExplainRequest) -> tuple[str, str]:
    """Method and path of a request that could be made.

    Raises:
        ValidationFailed: they are none.
    """
    if _METHOD.fullmatch(request.method) is None:
        raise errors.ValidationFailed("method must be a word, such as GET")
    path = check_text("path", request.path)
    if not path.startswith("/") or len(path) > _MAXIMUM_PATH:
        raise errors.ValidationFailed(
            f"path must begin with / and be at most {_MAXIMUM_PATH} characters"
        )
    return request.method.upper(), path


def _parse_query(target: str) -> Query:
    """The names in a request target's query, each with its last value.

    Raises:
        ValidationFailed: there are more than anybody writes.
    """
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


def _describe_visibility(access: Access) -> str:
    """Whose data a caller sees (contract.md 6)."""
    principal: Principal = access.principal
    if principal.sees_all_users:
        return "the caller sees the data of everybody"
    return (
        f"the caller sees only {_describe_owned(principal.subject)} (authorization.user_isolation)"
    )


def _describe_owned(user_id: str | None) -> str:
    from agentctl.auth.explain.suggestions import quote_value

    return (
        "what belongs to nobody" if user_id is None else f"what belongs to {quote_value(user_id)}"
    )


def _describe_owner(user_id: str | None) -> str:
    from agentctl.auth.explain.suggestions import quote_value

    return "belongs to nobody" if user_id is None else f"belongs to {quote_value(user_id)}"


def _owner_remedy(user_id: str | None) -> str:
    who = "a token without sub" if user_id is None else "a token of its owner"
    return f"ask with {who}, or an administrator's"
