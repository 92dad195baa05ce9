"""HTTP below the application: what is no HTTP gets an error of our shape as well."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from agentctl.errors import BadRequest
from agentctl.records.ids import new_id
from agentctl.server.answers import failure
from agentctl.server.authentication import dressed

__all__ = ["Protocol"]


class Protocol(HttpToolsProtocol):
    """uvicorn's, with refusals of ours."""

    def send_400_response(self, msg: str) -> None:
        """Answer what cannot be parsed, and close. `msg` is uvicorn's, and in its log already."""
        answer = failure(BadRequest("The request is not valid HTTP"))
        fields = dressed(answer.raw_headers, new_id())
        lines = [name + b": " + value + b"\r\n" for name, value in fields]
        head = b"".join([STATUS_LINE[400], *lines, b"connection: close\r\n\r\n"])
        self.transport.write(head + bytes(answer.body))
        self.transport.close()
