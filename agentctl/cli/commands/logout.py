"""`agentctl logout`: end the sign-in at a server."""

from __future__ import annotations

from agentctl.cli.options import ContextName, Url
from agentctl.cli.show.terminal import note
from agentctl.cli.target import require_server
from agentctl.errors import AgentctlError, NotFound

EXAMPLE = "agentctl logout --url https://agents.example.com"


async def logout(url: Url = None, context: ContextName = None) -> None:
    """Sign out: revoke the tokens at the provider and delete the local copies."""
    from agentctl.cli import sign_ins
    from agentctl.remote.address import parse_address

    server = parse_address(require_server(url, context)).base
    sign_in = sign_ins.forget_sign_in(server)
    if sign_in is None:
        raise NotFound(f"no sign-in is kept for {server}")
    note(f"deleted the tokens of {sign_in.user} for {server} from the {sign_in.kept_in}")

    if not sign_in.refresh_token:
        note("the provider gave no refresh token; the token stays valid until it expires")
        return
    client = sign_ins.build_client(sign_in.issuer, sign_in.client_id, sign_in.kind)
    try:
        is_revoked = await client.revoke(sign_in.refresh_token)
    except AgentctlError as failure:
        failure.detail = "Signed out here, but the provider has not revoked the refresh token"
        failure.hint = f"end the session in your account at {sign_in.issuer}"
        raise
    if is_revoked:
        note(f"{sign_in.issuer} has revoked the refresh token")
    else:
        note(f"{sign_in.issuer} cannot revoke tokens; they stay valid until they expire")
