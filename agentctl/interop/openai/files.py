"""The files of OpenAI's API: uploads, which messages name by their ids (docs/openai.md)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
from starlette.responses import Response

from agentctl.auth.principal import Principal
from agentctl.interface.requests import MAXIMUM_LIMIT, Page
from agentctl.interface.requests.files import FileFilter
from agentctl.interop.openai.failures import RefusedParameter
from agentctl.interop.openai.parameters import check_query
from agentctl.records.times import parse_rfc3339, whole_seconds
from agentctl.server.answers import Call, json_response
from agentctl.server.content import parse_pairs
from agentctl.server.given_files import read_multipart, store_part
from agentctl.server.routes import get_file_content
from agentctl.service.documents.paging import pack_cursor

_FORM_BYTES = 65_536
"""Maximum number of bytes of a form next to its file."""


async def create_file(call: Call, principal: Principal) -> Response:
    """Handle `POST /v1/files`: a form with the part `file`. Its `purpose` has no effect."""
    check_query(call, "db_id")
    limit = call.caller.app_state.settings.files.item_bytes + _FORM_BYTES
    async with read_multipart(call, limit) as (_, parts):
        if [name for name, _ in parts] != ["file"]:
            raise RefusedParameter("The form must have one file, in the part file", "file")
        _, part = parts[0]
        record = await store_part(call.operations, part, _find_database(call))
    return json_response(_format_file(orjson.loads(record)))


async def list_files(call: Call, principal: Principal) -> Response:
    """Handle `GET /v1/files`, newest first; `purpose` selects nothing."""
    check_query(call, "limit", "after", "order", "purpose", "db_id")
    parameters = dict(parse_pairs(call.scope["query_string"]))
    limit = parameters.get("limit", "20")
    order = parameters.get("order", "desc")
    if not limit.isdecimal() or not 1 <= int(limit[:9]) <= MAXIMUM_LIMIT:
        raise RefusedParameter(f"limit must be 1 to {MAXIMUM_LIMIT}", "limit", "invalid_value")
    if order not in ("asc", "desc"):
        raise RefusedParameter("order must be asc or desc", "order", "invalid_value")

    db_id = _find_database(call)
    cursor = None
    last_id = parameters.get("after")
    if last_id is not None:
        # A page of OpenAI follows a file, a page of agentctl the sort key of a row.
        last_file = (await call.operations.files.get(last_id, db_id=db_id)).value
        created_at = parse_rfc3339(last_file["created_at"])
        cursor = pack_cursor(f"files:created_at:{order}:{created_at}:{last_id}")

    page = Page(int(limit), sort_order="asc" if order == "asc" else "desc", cursor=cursor)
    found_page = (await call.operations.files.list(FileFilter(db_id=db_id, page=page))).value

    files = [_format_file(file) for file in found_page["data"]]
    body = {
        "object": "list",
        "data": files,
        "has_more": found_page["meta"]["next_cursor"] is not None,
    }
    if files:
        body["first_id"] = files[0]["id"]
        body["last_id"] = files[-1]["id"]
    return json_response(body)


async def get_file(call: Call, principal: Principal, file_id: str) -> Response:
    document = await call.operations.files.get(file_id, db_id=_find_database(call))
    return json_response(_format_file(document.value))


async def send_content(call: Call, principal: Principal, file_id: str) -> Response:
    return await get_file_content(
        call, file_id, db_id=_find_database(call), byte_range=call.headers.get("range")
    )


async def delete_file(call: Call, principal: Principal, file_id: str) -> Response:
    await call.operations.files.delete(file_id, db_id=_find_database(call))
    return json_response({"id": file_id, "object": "file", "deleted": True})


def _find_database(call: Call) -> str | None:
    """Return the parameter `db_id`, which OpenAI's API does not have; None for the default one.

    A file is in the database of the agents that get it.
    """
    return dict(parse_pairs(call.scope["query_string"])).get("db_id")


def _format_file(file: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": file["file_id"],
        "object": "file",
        "bytes": file["size"],
        "created_at": whole_seconds(parse_rfc3339(file["created_at"])),
        "filename": file["name"],
        "purpose": "user_data",
        "status": "processed",
    }


ENDPOINTS: dict[str, Callable[..., Awaitable[Response]]] = {
    "create_file": create_file,
    "list_files": list_files,
    "get_file": get_file,
    "get_file_content": send_content,
    "delete_file": delete_file,
}
