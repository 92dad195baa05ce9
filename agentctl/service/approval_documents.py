"""Documents of approvals (docs/contract.md "Approvals")."""

from __future__ import annotations

from agentctl.records.approvals import ApprovalRecord
from agentctl.records.document import Document
from agentctl.service.json_texts import dump, dump_time, join_object, stored_json
from agentctl.store.repositories.approvals import ApprovalRow


def build_approval_document(row: ApprovalRow) -> bytes:
    """Build the record of an approval."""
    return join_object(
        {
            "approval_id": dump(row.approval_id),
            "kind": dump(row.kind),
            "status": dump(row.status),
            "execution": dump(row.execution),
            "policy": dump(row.policy),
            "run_id": dump(row.run_id),
            "root_run_id": dump(row.root_run_id),
            "session_id": dump(row.session_id),
            "component_type": dump(row.component_type),
            "component_id": dump(row.component_id),
            "user_id": dump(row.user_id),
            "tool_call_id": dump(row.tool_call_id),
            "tool_name": dump(row.tool_name),
            "arguments": stored_json(row.arguments),
            "arguments_hash": dump(row.arguments_hash),
            "approved_arguments": stored_json(row.approved_arguments),
            "approved_arguments_hash": dump(row.approved_hash),
            "question": dump(row.question),
            "schema": stored_json(row.schema),
            "answer": stored_json(row.answer),
            "note": dump(row.note),
            "result": stored_json(row.result),
            "created_at": dump_time(row.created_at),
            "expires_at": dump_time(row.expires_at),
            "decided_at": dump_time(row.decided_at),
            "decided_by": dump(row.decided_by),
            "executing_at": dump_time(row.executing_at),
            "executed_at": dump_time(row.executed_at),
            "request_id": dump(row.request_id),
        }
    )


def build_approval_record(row: ApprovalRow) -> ApprovalRecord:
    """Build the record of an approval as an object."""
    document: Document[ApprovalRecord] = Document(build_approval_document(row))
    return document.value
