"""`agentctl console`: open the web page of a server with a link that signs in once."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agentctl.cli.commands.token import USER_SCOPES_NAME, sign_token
from agentctl.cli.durations import parse_option_until
from agentctl.cli.options import Config
from agentctl.cli.parameters import flag, option
from agentctl.cli.show.output import write_line
from agentctl.cli.show.terminal import note
from agentctl.errors import AgentctlError, UsageError

if TYPE_CHECKING:
    from agentctl.config.settings import Settings

EXAMPLE = "agentctl console --sub me --scope sessions:read"

CONNECT_SECONDS = 3.0
"""Maximum time to reach the server; without an answer the token is printed."""

READ_SECONDS = 10.0
"""Maximum time until the server answers."""

CODE = re.compile(r"[A-Za-z0-9_-]{20,200}")
"""The code of a link: text of a server, which becomes a part of a URL."""


def console(
    sub: str | None = option("--sub", "USER", "Subject of the token (default: your login name)"),
    scope: list[str] | None = option(
        "--scope",
        "SCOPE",
        "Scope to grant (repeatable; default: read and run everything, write sessions)",
    ),
    expires_in: str = option("--expires-in", "TIME", "Lifetime of the token", default="1h"),
    url: str | None = option("--url", "URL", "Server URL (default: from the configuration)"),
    no_open: bool = flag("--no-open", "Print the token without opening a browser"),
    chat: bool = flag("--chat", "Open the chat in place of the console"),
    yes: bool = flag("--yes -y", "Skip the confirmation of the admin scope"),
    config: Config = None,
) -> None:
    """Open the console in a browser with a link that signs in.

    The link works once, within a minute, and has no token in it. If the server gives no link,
    the token is printed on stdout: paste it into the page, which keeps it in memory.
    """
    import getpass

    from agentctl.config import load_settings

    settings = load_settings(config)
    if not settings.console.enabled:
        raise UsageError(
            "the console is disabled", hint="set enabled = true in [console] and restart the server"
        )
    if chat and not settings.console.chat:
        raise UsageError(
            "the chat is disabled", hint="set chat = true in [console] and restart the server"
        )

    base_url = (url or find_url(settings)).rstrip("/")
    page = f"{base_url}/{'chat' if chat else 'console'}"
    link = page
    if settings.authorization.enabled:
        span = parse_option_until("--expires-in", expires_in)
        user = sub or getpass.getuser()
        token = sign_token(settings, user, scope or [USER_SCOPES_NAME], span, yes=yes)
        code = None if no_open else create_code(base_url, token)
        if code is None:
            write_line(token)
        else:
            link = f"{page}#link={code}"
    else:
        note("authorization is off: the console asks for no token")

    note(f"{'chat' if chat else 'console'}: {page}")
    if not no_open:
        open_link(link, page)


def create_code(base_url: str, token: str) -> str | None:
    """Return a code with which a page of a server signs in once; None if the server gives none.

    The token is sent as every command sends it: never over plain http to another machine.
    """
    import asyncio

    from agentctl.remote.client import RemoteOperations
    from agentctl.remote.connection import Request, Timeouts
    from agentctl.remote.failures import parse_object

    async def request_code() -> str:
        timeouts = Timeouts(connect=CONNECT_SECONDS, read=READ_SECONDS)
        async with RemoteOperations(base_url, token, timeouts=timeouts) as remote:
            request = Request("POST", "/console/sign-in/links")
            content = await remote.connection.fetch(request, "object")
        return str((parse_object(content) or {}).get("code", ""))

    try:
        code = asyncio.run(request_code())
    except AgentctlError as error:
        note(f"no link that signs in, so paste the token: {error.detail}")
        return None
    return code if CODE.fullmatch(code) else None


def open_link(link: str, page: str) -> None:
    """Open a link in a browser, or name it for a person who opens it elsewhere."""
    import webbrowser

    if webbrowser.open(link):
        return
    note("no browser can be started here: open the page yourself")
    if link != page:
        note(f"this link signs in once, within a minute: {link}")


def find_url(settings: Settings) -> str:
    """Return the URL at which a server with these settings is reached from this machine."""
    server = settings.server
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(server.host, server.host)
    name = f"[{host}]" if ":" in host else host
    return server.url or f"http://{name}:{server.port}"
