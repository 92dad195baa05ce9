"""`agentctl login`: sign in at the identity provider of a server."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from agentctl.cli.contexts import load_contexts
from agentctl.cli.io import TOKEN_VARIABLE
from agentctl.cli.options import ContextName, InsecureHttp, Url
from agentctl.cli.parameters import flag, option
from agentctl.cli.show.terminal import note
from agentctl.cli.target import require_server
from agentctl.errors import NotFound, Unauthenticated, UsageError

if TYPE_CHECKING:
    from agentctl.auth.oidc import OidcClient, Tokens
    from agentctl.cli.sign_ins import SignIn

EXAMPLE = "agentctl login --url https://agents.example.com"

SECONDS = 300.0
"""Maximum time for a user in a browser."""


async def login(
    url: Url = None,
    context: ContextName = None,
    device: bool = flag("--device", "Show a code to enter in a browser on any machine"),
    no_open: bool = flag("--no-open", "Print the URL of the sign-in without opening a browser"),
    port: int = option(
        "--port", "PORT", "Port on 127.0.0.1 for the response", default=0, min=0, max=65_535
    ),
    issuer: str | None = option("--issuer", "URL", "Provider (default: from the server)"),
    client_id: str | None = option("--client-id", "ID", "Client ID (default: from the server)"),
    scope: list[str] | None = option(
        "--scope", "SCOPE", "Scope to request (repeatable; default: from the server)"
    ),
    insecure_storage: bool = flag(
        "--insecure-storage", "Store the tokens in a file instead of the system keyring"
    ),
    insecure_http: InsecureHttp = False,
) -> None:
    """Sign in to a server through its identity provider.

    Opens a browser, or shows a code to enter where there is none, as over SSH. Later commands for
    this URL use the token and renew it. --token-file, AGENTCTL_TOKEN and the token file of a
    context take precedence.
    """
    from agentctl.cli import sign_ins
    from agentctl.remote import RemoteOperations
    from agentctl.remote.address import check_transport, parse_address

    address = parse_address(require_server(url, context))
    check_transport(address, allow_insecure=insecure_http)
    server = address.base

    provider = await _read_provider(server, issuer, client_id)
    client = sign_ins.build_client(
        provider["issuer"],
        provider["client_id"],
        provider["token"],
        tuple(scope or provider["scopes"]),
    )

    kept_in = "file"
    if not insecure_storage and sign_ins.has_keyring():
        kept_in = "keyring"
    with sign_ins.changing_sign_in(server):
        # A place that cannot be written fails before a person signs in.
        pass

    note(f"signing in to {server} at {provider['issuer']}")
    if device or not (no_open or _has_browser()):
        tokens = await _sign_in_with_code(client)
    else:
        tokens = await _sign_in_with_browser(client, port, opens=not no_open)

    try:
        remote = RemoteOperations(server, tokens.token, allow_insecure=insecure_http)
        async with remote as operations:
            user = (await operations.system.get_me()).value["principal"]
    except Unauthenticated:
        raise Unauthenticated(
            "The server does not accept the token of the provider",
            hint="ask the operator to check issuer and audience in [authorization] of the server",
        ) from None

    with sign_ins.changing_sign_in(server) as store:
        sign_in = sign_ins.SignIn(
            server, provider["issuer"], provider["client_id"], provider["token"], user, "", kept_in
        ).with_tokens(tokens)
        store(sign_in)
    _report(sign_in)


async def _read_provider(server: str, issuer: str | None, client_id: str | None) -> dict[str, Any]:
    """Return the `SignInRecord` of the server, with the issuer and the client of the options.

    Raises:
        NotFound: neither the server nor the options name a provider.
        UsageError: the URL of the provider is not allowed.
    """
    from agentctl.auth.keys.remote import is_allowed_url
    from agentctl.records.system import SignInRecord
    from agentctl.records.value_types import find_mismatch
    from agentctl.remote import RemoteOperations

    provider: dict[str, Any] = {"scopes": [], "token": "access_token"}
    async with RemoteOperations(server, None) as operations:
        provider |= (await operations.system.get_info()).value.get("sign_in", {})
    if issuer:
        provider["issuer"] = issuer
    if client_id:
        provider["client_id"] = client_id

    is_complete = bool(provider.get("issuer") and provider.get("client_id"))
    # Another member, such as the refresh token, must not be sent to the server.
    has_token = provider["token"] in ("access_token", "id_token")
    if not is_complete or not has_token or find_mismatch(provider, SignInRecord) is not None:
        raise NotFound(
            f"{server} names no provider for a sign-in",
            hint="give --issuer and --client-id, or let the operator set oidc_issuer in [console]",
        )

    # A server elsewhere must not choose a request to this machine.
    if not is_allowed_url(provider["issuer"], "" if issuer else server):
        raise UsageError(
            "the URL of the provider is not https, or one on this machine", hint="check --issuer"
        )
    return provider


def _has_browser() -> bool:
    """Return True if a browser of this person can be opened: not over SSH, or named by BROWSER."""
    if os.environ.get("BROWSER"):
        return True
    has_screen = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return (has_screen or sys.platform == "darwin") and not os.environ.get("SSH_CONNECTION")


async def _sign_in_with_browser(client: OidcClient, port: int, *, opens: bool) -> Tokens:
    """Sign in with a browser of this machine (RFC 8252 7.3)."""
    import webbrowser

    from agentctl.auth.oidc import SignInEnd, build_refusal
    from agentctl.cli.loopback import LoopbackListener

    async with LoopbackListener(port) as listener:
        started = await client.start(listener.redirect_uri)
        note(f"open in a browser: {started.url}")
        if opens:
            # A browser in the foreground returns when the user closes it.
            threading.Thread(target=webbrowser.open, args=(started.url,), daemon=True).start()

        fields = await listener.wait(started.state, SECONDS)
        if "code" not in fields:
            raise build_refusal(fields.get("error", ""))

        end = SignInEnd(
            fields["code"],
            started.code_verifier,
            started.nonce,
            listener.redirect_uri,
            fields.get("iss", ""),
        )
        return await client.finish(end)


async def _sign_in_with_code(client: OidcClient) -> Tokens:
    """Sign in with a code that the user enters in any browser (RFC 8628)."""
    started = await client.start_device()
    note(f"open in a browser of any machine: {started.url}")
    note(f"and enter the code: {started.user_code}")
    return await client.wait_for_device(started)


def _report(sign_in: SignIn) -> None:
    who = f"{sign_in.user} ({sign_in.name})" if sign_in.name else sign_in.user
    note(f"signed in as {who}; the tokens are in the {sign_in.kept_in}")
    if not sign_in.refresh_token:
        end = sign_in.describe()["expires_at"] or "its token expires"
        note(f"the provider gave no refresh token, so the sign-in is valid until {end} only")
    if os.environ.get(TOKEN_VARIABLE):
        note(f"{TOKEN_VARIABLE} is set and takes precedence")
    for context in load_contexts().by_name.values():
        if context.url == sign_in.server and context.token_file is not None:
            note(f"the token file of the context {context.name} takes precedence")
