"""The operations of an AgentOS server, as those of this interface (docs/agentos.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from agentctl import errors
from agentctl.interface.requests.approvals import ApprovalFilter, Ruling
from agentctl.interop.agentos import values
from agentctl.interop.agentos.mapping import read_account, read_component, read_memory
from agentctl.interop.agentos.remote.runs import AgentOSRuns
from agentctl.interop.agentos.remote.sessions import Record, omit_type, view_session
from agentctl.interop.agentos.routes import AGENTOS_ROUTES
from agentctl.interop.agentos.waiting import PAUSE_TYPES, find_waiting
from agentctl.records.approvals import hash_call
from agentctl.records.document import Document, build_document
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.routes import operation_ids
from agentctl.records.times import now
from agentctl.remote.connection import Request, build_path, fill_template
from agentctl.remote.queries import build_query

_KINDS = {name: kind for kind, name in PAUSE_TYPES.items()}

_FILTERS = frozenset(
    {
        "status", "kind", "policy", "component_type", "component_id", "run_id", "user_id",
        "id_prefix", "page",
    }
)  # fmt: skip
"""The filters that a list of AgentOS has, or that are applied to its rows."""

_UNDECIDED = dict.fromkeys(("confirmed", "answered", "result"))

_MODELS_IN_CONFIG = (3,)
"""The release from which `/models` is a part of `/config`."""

_CONCURRENT_REQUESTS = 8

_SAME_REQUESTS: Mapping[str, Callable[..., Record]] = {
    "get_api": lambda record: record,
    "get_health": lambda record: record,
    "get_info": lambda record: record,
    "get_config": lambda record: record,
    "create_session": lambda record, **_: record,
    "get_component": lambda record, kind, **_: read_component(kind, record),
    "get_memory": lambda record, **_: read_memory(record),
    "create_service_account": lambda record, **_: read_account(record, now()),
    "rename_session": lambda record, view, **_: view_session(record, view),
}
"""Operations with the requests of this interface: builds the record from that of AgentOS."""


class AgentOSOperations(AgentOSRuns):
    """The `interface.operations.Operations` of an AgentOS server that have a counterpart there."""

    def execute(self, name: str, arguments: Mapping[str, Any]) -> Any:
        known = name in _SAME_REQUESTS
        return self._execute(name, arguments) if known else super().execute(name, arguments)

    async def _execute(self, name: str, arguments: Mapping[str, Any]) -> Document[Any]:
        sent = {**arguments}
        if "where" in sent:
            sent |= {"where": omit_type(sent["where"]), "view": "full"}
        record = await self.read_object(self.build(name, **sent))
        return build_document(_SAME_REQUESTS[name](record, **arguments))

    async def get_models(self) -> Document[Any]:
        if self.server.release < _MODELS_IN_CONFIG:
            return build_document(await self.read_list(self.build("get_models")))
        models = (await self.read_object(self.build("get_config"))).get("available_models") or []
        return build_document(
            [model if isinstance(model, dict) else {"id": str(model)} for model in models]
        )

    async def get_components(self, kind: ComponentKind) -> Document[Any]:
        """Return the components of a kind; a list of workflows has no steps, so each is read."""
        records = await self.read_list(self.build("get_components", kind=kind))
        components = [read_component(kind, record) for record in records]
        if kind == "workflow":
            semaphore = asyncio.Semaphore(_CONCURRENT_REQUESTS)

            async def read(summary: Record) -> Record:
                try:
                    async with semaphore:
                        component: Document[Record] = await self.get_component(kind, summary["id"])
                    return component.value
                except (errors.NotFound, errors.Forbidden):
                    return summary

            components = list(await asyncio.gather(*map(read, components)))
        return build_document(components)

    async def get_approvals(self, filter: ApprovalFilter) -> Document[Any]:
        """Return a page of approvals; the prefix of an id is searched among the newest ones."""
        for name in ApprovalFilter.__dataclass_fields__:
            if name not in _FILTERS and getattr(filter, name) is not None:
                raise self.build_missing_error(f"approvals by {name}")
        kind = filter.component_type
        named = {KINDS[kind].id_field: filter.component_id} if kind is not None else {}
        if filter.component_id is not None and kind is None:
            raise self.build_missing_error(
                "approvals by a component of any kind", "pass --type as well"
            )
        query = build_query(
            status=filter.status,
            source_type=kind,
            pause_type=PAUSE_TYPES.get(filter.kind) if filter.kind else None,
            approval_type="required" if filter.policy == "other" else None,
            user_id=filter.user_id,
            run_id=filter.run_id,
            **named,
        )
        rows, meta = await self.read_page(build_path("get_approvals"), query, filter.page)
        found = [
            row
            for row in map(read_approval, rows)
            if filter.kind in (None, row["kind"]) and filter.policy in (None, row["policy"])
        ]
        if filter.id_prefix is not None:
            found = [row for row in found if row["approval_id"].startswith(filter.id_prefix)]
            meta["searched"] = "page"
        return build_document({"data": found, "meta": meta})

    async def get_approval(
        self, kind: ComponentKind, component_id: str, approval_id: str
    ) -> Document[Any]:
        return build_document(await self._read_approval(approval_id))

    async def _read_approval(self, approval_id: str) -> values.Built:
        path = _build_path("get_approval", approval_id)
        return read_approval(await self.read_object(Request("GET", path)))

    async def decide_approval(
        self,
        kind: ComponentKind,
        component_id: str,
        approval_id: str,
        ruling: Ruling,
        idempotency_key: str | None = None,
    ) -> Document[Any]:
        """Resolve an approval, and continue its run, which waits for that on AgentOS.

        If its caller cannot continue the run, the decision is stored anyway.
        """
        if ruling.arguments is not None:
            raise self.build_missing_error("approvals with edited arguments")

        shown = await self._read_approval(approval_id)
        if ruling.arguments_hash not in (None, shown["arguments_hash"]):
            raise errors.Conflict("arguments_hash is that of another call: read it again")

        given = {"note": ruling.note, "values": ruling.answer, "result": ruling.result}
        data = {name: value for name, value in given.items() if value is not None}
        status = "rejected" if ruling.decision in ("reject", "fail") else "approved"
        body: dict[str, Any] = {"status": status}
        if data:
            body["resolution_data"] = data

        path = _build_path("resolve_approval", approval_id)
        decided = read_approval(await self.read_object(Request("POST", path, body=body)))
        ids = {KINDS[kind].id_field: component_id, "run_id": shown["root_run_id"]}
        form = build_query(session_id=shown["session_id"], stream=False, background=True)
        continued = Request("POST", build_path(operation_ids(kind).continue_run, **ids), form=form)

        try:
            await self.read_object(continued)
        except errors.AgentctlError as failure:
            failure.hint = f"the approval is {status}: its client can continue the run"
            raise
        return build_document(decided)


def read_approval(record: Record) -> values.Built:
    """Build the record of an approval.

    AgentOS has one record for all calls of a pause that need a person. All of them are shown, and
    the hash is that of all.
    """
    tools = [
        values.read_object(each.get("tool_execution"))
        for each in values.read_objects(record.get("requirements"))
    ]
    # Those of a decided record are shown, too.
    undecided = [tool | _UNDECIDED for tool in tools if tool]
    waiting = find_waiting({**record, "requirements": None, "tools": undecided})
    calls = [approval for approval, _ in waiting]
    first = calls[0] if calls else _read_call(record)
    data = values.read_object(record.get("resolution_data")) or {}
    names = [call["tool_name"] for call in calls] or [first["tool_name"]]
    arguments = first["arguments"]
    if len(calls) > 1:
        arguments = {call["tool_call_id"]: call["arguments"] for call in calls}
    run_id = values.read_required(record.get("run_id"))
    name = ", ".join(dict.fromkeys(names))
    return first | {
        "approval_id": values.read_required(record.get("id")),
        "kind": _KINDS.get(str(record.get("pause_type")), first["kind"]),
        "status": values.read_required(record.get("status")),
        "policy": "other" if record.get("approval_type") == "required" else "user",
        "tool_name": name,
        "arguments": arguments,
        "arguments_hash": hash_call(run_id, first["tool_call_id"], name, arguments),
        "answer": data.get("values"),
        "result": data.get("result"),
        "note": values.read_text(data.get("note")),
        "created_at": values.format_moment(record.get("created_at")),
        "expires_at": values.format_moment(record.get("expires_at")),
        "decided_at": values.format_moment(record.get("resolved_at")),
        "decided_by": values.read_text(record.get("resolved_by")),
    }


def _read_call(record: Record) -> values.Built:
    """Return the only call of a record that does not have it as an object."""
    call = {
        "tool_call_id": record.get("id"),
        "tool_name": record.get("tool_name"),
        "tool_args": record.get("tool_args"),
        "requires_confirmation": True,
    }
    ((approval, _),) = find_waiting({**record, "requirements": None, "tools": [call]})
    return approval


def _build_path(name: str, approval_id: str) -> str:
    return fill_template(AGENTOS_ROUTES[name][1].template, approval_id=approval_id)
