"""Documents of approvals (docs/contract.md "Approvals")."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from agentctl.records.approvals import ApprovalRecord
from agentctl.records.document import Document
from agentctl.service.json_texts import dump, dump_time, join_object, stored_json
from agentctl.store.repositories.approvals import ApprovalRow

_JSON_TEXTS = frozenset({"arguments", "approved_arguments", "schema", "answer", "result"})
_COLUMNS = {"approved_arguments_hash": "approved_hash"}


def _choose_writer(name: str) -> Callable[[Any], bytes]:
    if name in _JSON_TEXTS:
        return stored_json
    return dump_time if name.endswith("_at") else dump


_FIELDS = [
    (name, attrgetter(_COLUMNS.get(name, name)), _choose_writer(name))
    for name in ApprovalRecord.__annotations__
]


def build_approval_document(row: ApprovalRow) -> bytes:
    """Build the record of an approval."""
    return join_object({name: write(read(row)) for name, read, write in _FIELDS})


def build_approval_record(row: ApprovalRow) -> ApprovalRecord:
    """Build the record of an approval as an object."""
    document: Document[ApprovalRecord] = Document(build_approval_document(row))
    return document.value
