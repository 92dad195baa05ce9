"""`agentctl console`: open the web page of a server, with a token to paste into it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from agentctl.cli.commands.token import USER_SCOPES_NAME, sign_token
from agentctl.cli.durations import parse_until
from agentctl.cli.options import Config
from agentctl.cli.parameters import flag, option
from agentctl.cli.show.output import write_line
from agentctl.cli.show.terminal import note
from agentctl.errors import UsageError

if TYPE_CHECKING:
    from agentctl.config.settings import Settings

EXAMPLE = "agentctl console --sub me --scope sessions:read --no-open"


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
    yes: bool = flag("--yes -y", "Skip the confirmation of the admin scope"),
    config: Config = None,
) -> None:
    """Print a token for the console and open the console in a browser.

    The token is on stdout only. Paste it into the page, which keeps it in memory.
    """
    import getpass
    import webbrowser

    from agentctl.config import load_settings

    settings = load_settings(config)
    if not settings.console.enabled:
        raise UsageError(
            "the console is disabled", hint="set enabled = true in [console] and restart the server"
        )
    page = f"{(url or find_url(settings)).rstrip('/')}/console"
    if settings.authorization.enabled:
        span = parse_until(expires_in, now=datetime.now(UTC))
        user = sub or getpass.getuser()
        write_line(sign_token(settings, user, scope or [USER_SCOPES_NAME], span, yes=yes))
    else:
        note("authorization is off: the console asks for no token")
    note(f"console: {page}")
    if not no_open and not webbrowser.open(page):
        note("no browser can be started here: open the page yourself")


def find_url(settings: Settings) -> str:
    """Return the URL at which a server with these settings is reached from this machine."""
    server = settings.server
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(server.host, server.host)
    name = f"[{host}]" if ":" in host else host
    return server.url or f"http://{name}:{server.port}"
