"""Forms as clients of AgentOS send them: urlencoded or multipart."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from starlette.datastructures import Headers
from starlette.formparsers import MultiPartException, MultiPartParser

from agentctl.errors import BadRequest, UnsupportedMediaType, ValidationFailed
from agentctl.server.requests import (
    FORM,
    JSON,
    MAXIMUM_PAIRS,
    RequestBody,
    parse_pairs,
    read_content,
    read_content_type,
)
from agentctl.server.state import Call

MULTIPART = "multipart/form-data"

_REFUSED = {
    "images": "runs take text only",
    "audio": "runs take text only",
    "audios": "runs take text only",
    "videos": "runs take text only",
    "files": "runs take text only",
    "input_files": "runs take text only",
    "knowledge_filters": "this server has no knowledge bases",
    "factory_input": "components are those of the configuration",
}
"""Fields of AgentOS that would be dropped, and the reason why they are refused."""

_EMPTY = frozenset({"", "[]", "{}", "null", "None"})

_BOOLEANS = frozenset({"stream", "background"})
_TRUTH = {"yes": "true", "on": "true", "y": "true", "t": "true"} | {
    "no": "false", "off": "false", "n": "false", "f": "false"
}  # fmt: skip
"""Words for truth values, besides true and false, that AgentOS accepts in a form."""


class FormBody(RequestBody):
    """The reader of a body that may be a multipart form as well."""

    def __init__(self, record: type, *, optional: bool = False) -> None:
        super().__init__(record, form=True, optional=optional)

    async def read(self, call: Call) -> dict[str, Any]:
        """Return the fields of the body. Fields that neither side knows are ignored.

        A file, or a field that this server does not support and that has a value, is refused.
        """
        given = read_content_type(call)
        media_type = given.partition(";")[0].strip().lower()
        if media_type not in (MULTIPART, FORM):
            if given and media_type != JSON:
                raise UnsupportedMediaType(f"The body must be {MULTIPART}, {FORM} or {JSON}")
            return await super().read(call)
        content = await read_content(call)
        if media_type == FORM:
            pairs = parse_pairs(content)
        else:
            pairs = await _parse_multipart(call.headers, content)
        return self.check_form(_check_pairs(pairs))


async def _parse_multipart(headers: Headers, content: bytes) -> list[tuple[str, str]]:
    """Return the fields of a multipart form."""

    async def stream() -> AsyncGenerator[bytes]:
        yield content

    size = max(len(content), 1)
    parser = MultiPartParser(headers, stream(), max_fields=MAXIMUM_PAIRS, max_part_size=size)
    try:
        form = await parser.parse()
    # Older releases of Starlette pass on the error of python_multipart, a ValueError.
    except (MultiPartException, KeyError, ValueError):
        raise BadRequest("The body is not a valid multipart form") from None
    pairs = list[tuple[str, str]]()
    try:
        for name, value in form.multi_items():
            if isinstance(value, str):
                pairs.append((name, value))
            elif value.filename or value.size:  # Otherwise no file was chosen in a page.
                raise ValidationFailed(f"{name} is not supported: runs take text only")
    finally:
        await form.close()
    return pairs


def _check_pairs(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the pairs without empty unsupported ones, truth values as the contract spells them."""
    checked = list[tuple[str, str]]()
    for name, text in pairs:
        if name in _REFUSED:
            if text not in _EMPTY:
                raise ValidationFailed(f"{name} is not supported: {_REFUSED[name]}")
        elif name in _BOOLEANS:
            checked.append((name, _TRUTH.get(text.lower(), text)))
        else:
            checked.append((name, text))
    return checked
