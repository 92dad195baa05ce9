"""Checks of the configuration: models, tools, agents, exposure; and of the clock."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from urllib.parse import urlsplit

from agentctl.admin.doctor.files import check_permissions, check_private
from agentctl.auth.keys.files import read_private_key
from agentctl.auth.keys.keyring import has_remote_keys, load_key_set, read_key_files
from agentctl.auth.keys.rotation import open_published_files
from agentctl.auth.keys.signing import SigningKey, key_thumbprint, load_signing_key
from agentctl.auth.tokens.algorithms import get_algorithm
from agentctl.auth.tokens.jws import KeySet
from agentctl.auth.verifier import Verifier
from agentctl.config import require_verification_key
from agentctl.config.mcp_servers import is_per_user, parse_mcp_reference
from agentctl.config.mcp_table import McpServer
from agentctl.config.outgoing import check_proxies
from agentctl.config.providers import list_used_models, require_extra, requires_key
from agentctl.config.settings import Agent, Authorization, Settings, Team
from agentctl.errors import InvalidConfiguration, InvalidKey
from agentctl.records.hosts import is_loopback_host, split_address
from agentctl.records.system import Finding, from_failure, note, ok, wrong
from agentctl.records.text import format_count
from agentctl.records.times import format_rfc3339, now

_EARLIEST = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
_LATEST = datetime(2100, 1, 1, tzinfo=UTC).timestamp()

_KEYS = "keys"


def check_configuration(settings: Settings) -> Iterator[Finding]:
    """Check the configuration file, which was loaded."""
    check = "configuration"
    counts = [
        format_count(len(settings.agents), "agent"),
        format_count(len(settings.teams), "team"),
        format_count(len(settings.workflows), "workflow"),
    ]
    yield ok(check, f"{settings.path} is valid: {', '.join(counts)}")

    try:
        require_verification_key(settings)
    except InvalidConfiguration as failure:
        yield from_failure(check, failure)

    if settings.path is None:
        return

    yield from check_permissions(check, settings.path, "the configuration")
    authorization = settings.authorization
    is_in_file = settings.sources.get("authorization.verification_keys", "").startswith("/")
    if authorization.algorithm.startswith("HS") and authorization.verification_keys and is_in_file:
        yield from check_private(check, settings.path, "the shared secret in")


def check_exposure(settings: Settings) -> Iterator[Finding]:
    """Check the addresses, authorization and origins that a server accepts."""
    check = "exposure"
    server = settings.server
    authorization = settings.authorization
    is_local = is_loopback_host(server.host)

    if is_local and authorization.enabled:
        yield ok(check, f"{server.host} is local to this machine, and requests need a token")
    elif is_local:
        text = "authorization is off: every process of this machine is an administrator"
        yield note(check, text, "enabled = true in [authorization]")
    elif authorization.enabled:
        text = f"{server.host} is reachable from other machines, and agentctl does not encrypt"
        remedy = 'host = "127.0.0.1" in [server], and a TLS proxy in front of it'
        yield note(check, text, remedy)
    else:
        text = f"authorization is off and {server.host} is reachable from other machines"
        yield wrong(check, text, 'enabled = true in [authorization], or host = "127.0.0.1"')

    if "*" in server.cors_origins:
        remedy = 'cors_origins = ["https://app.example.org"] in [server]'
        if authorization.enabled:
            text = "web pages of every origin may send requests with a token"
            yield note(check, text, remedy)
        else:
            yield wrong(check, "every web page may send requests without a token", remedy)

    listen = settings.metrics.listen
    if listen and not is_loopback_host(split_address(listen)[0]):
        text = f"metrics at {listen} are reachable from other machines without a token"
        yield note(check, text, 'listen = "127.0.0.1:9464" in [metrics]')


def check_settings(settings: Settings, *, foreign: bool) -> Iterator[Finding]:
    """Check for settings that are allowed and weak.

    Args:
        foreign: the JWKS has keys of an identity provider, which issues tokens for other services
            as well.
    """
    findings = list[Finding]()
    if settings.server.on_disconnect == "detach":
        text = "a run continues, at its cost, after its client disconnects"
        findings.append(_weak(text, 'on_disconnect = "cancel" in [server]'))
    if settings.authorization.enabled:
        findings += _check_tokens(settings.authorization, foreign)
    yield from findings or [ok("settings", "no weak settings")]


def _check_tokens(authorization: Authorization, foreign: bool) -> Iterator[Finding]:
    section = "in [authorization]"
    if not authorization.require_exp:
        yield _weak("tokens without exp never expire", f"require_exp = true {section}")

    if not authorization.require_sub:
        text = "tokens without sub are accepted and share the data without an owner"
        yield _weak(text, f"require_sub = true {section}")

    if foreign and not authorization.verify_audience and not authorization.issuer:
        text = "all tokens of the identity provider are accepted, also those for other services"
        yield wrong("settings", text, f'verify_audience = true and issuer = "..." {section}')
    elif not authorization.verify_audience:
        text = "tokens for other services (aud) are accepted"
        yield _weak(text, f"verify_audience = true {section}")

    if authorization.algorithm.startswith("HS"):
        text = f"{authorization.algorithm}: every program that can verify tokens can also mint them"
        yield _weak(text, "agentctl keys generate --algorithm ES256")

    if not authorization.user_isolation:
        text = "a scope such as sessions:read grants the data of every user"
        yield _weak(text, f"user_isolation = true {section}")


def _weak(what: str, remedy: str) -> Finding:
    return note("settings", what, remedy)


def check_clock(present: float | None = None) -> Finding:
    """Check that the clock is between 2026 and 2100; tokens depend on it."""
    if present is None:
        present = time.time()
    text = f"it is {format_rfc3339(int(present) * 1_000_000)[:19]}Z"
    if _EARLIEST <= present < _LATEST:
        return ok("clock", text)
    return wrong(
        "clock", f"{text}, which is implausible", "set the clock: timedatectl set-ntp true"
    )


def check_outgoing(settings: Settings) -> Iterator[Finding]:
    """Check the proxies in the environment of this command; a server may have other proxies."""
    try:
        check_proxies(settings)
    except InvalidConfiguration as failure:
        yield from_failure("proxies", failure)


def check_models(settings: Settings) -> Iterator[Finding]:
    """Check that every model in use has its library, and its API key in the environment."""
    for model in list_used_models(settings):
        check = f"model {model.id}"
        variable = model.api_key_env

        try:
            require_extra(model)
        except InvalidConfiguration as failure:
            yield from_failure(check, failure)

        if not variable and requires_key(model):
            yield wrong(check, "it has no API key", f"api_key_env = ... in [[models]] {model.id}")
        elif variable and not os.environ.get(variable):
            text = f"the variable {variable} with its API key is not set here"
            yield wrong(check, text, f"export {variable}=... in the environment of the server")
        else:
            yield ok(check, f"{variable} is set" if variable else "it needs no API key")

        parts = urlsplit(model.base_url)
        if parts.scheme == "http" and not is_loopback_host(parts.hostname or ""):
            text = f"requests to {parts.hostname} are not encrypted"
            yield note(check, text, f'base_url = "https://..." in [[models]] {model.id}')


def check_objects(settings: Settings) -> Iterator[Finding]:
    """Check that the object of every agent in code can be imported and used.

    The output of the modules goes to stderr.
    """
    from agentctl.runtime.runners.loading import load_runner

    folder = None if settings.path is None else settings.path.parent
    count = 0

    with contextlib.redirect_stdout(sys.stderr):
        for agent in settings.agents:
            if not agent.object:
                continue
            try:
                load_runner(f"agent {agent.id}", agent.object, folder)
                count += 1
            except InvalidConfiguration as failure:
                yield from_failure("agents", failure)

    if count:
        label = format_count(count, "agent in code", "agents in code")
        yield ok("agents", f"{label} can be used")


def check_tools(settings: Settings) -> Iterator[Finding]:
    """Check that every tool and output can be imported and used, as at the start of a server.

    The output of the modules goes to stderr.
    """
    from agentctl.runtime.models.structured_output import load_output_model
    from agentctl.runtime.tools.functions import load_tools

    folder = None if settings.path is None else settings.path.parent
    owners: list[tuple[str, Agent | Team]] = [
        *((f"agent {agent.id}", agent) for agent in settings.agents),
        *((f"team {team.id}", team) for team in settings.teams),
    ]

    count = 0
    with contextlib.redirect_stdout(sys.stderr):
        for owner, component in owners:
            try:
                functions = tuple(tool for tool in component.tools if not parse_mcp_reference(tool))
                count += len(load_tools(owner, functions, folder))
                if isinstance(component, Agent) and component.output:
                    load_output_model(owner, component.output, folder)
            except InvalidConfiguration as failure:
                yield from_failure("tools", failure)

    if count:
        yield ok("tools", f"{format_count(count, 'tool')} can be used")


async def check_mcp_server(settings: Settings, server: McpServer) -> list[Finding]:
    """Connect to an MCP server, and compare its tools with the tools that agents name."""
    from agentctl.runtime.mcp.definitions import build_public_name
    from agentctl.runtime.mcp.servers import probe_server

    check = f"mcp server {server.id}"
    findings = []

    host = urlsplit(server.url).hostname or ""
    if server.url.startswith("http:") and server.headers and not is_loopback_host(host):
        text = f"headers are sent to {host} without encryption"
        remedy = f'url = "https://..." in [[mcp_servers]] {server.id}'
        findings.append(note(check, text, remedy))

    if is_per_user(server):
        text = "not checked: its headers have data of the user"
        remedy = f"agentctl mcp check {server.id} --user-id ..."
        return [*findings, note(check, text, remedy)]

    report = await probe_server(settings, server, None, {})
    if report["state"] != "connected":
        detail = f" ({report['detail']})" if report["detail"] else ""
        text = f"it is not available: {report['reason']}{detail}"
        remedy = f"correct its entry, then: agentctl mcp check {server.id}"
        return [*findings, wrong(check, text, remedy)]

    findings += [note(check, problem) for problem in report["problems"]]

    tool_names = {tool["name"] for tool in report["tools"]}
    components: list[Agent | Team] = [*settings.agents, *settings.teams]
    for component in components:
        for reference in component.tools:
            parsed = parse_mcp_reference(reference)
            if parsed is None or parsed.server != server.id or not parsed.tool:
                continue
            if build_public_name(server.id, parsed.tool) not in tool_names:
                text = f"{component.id} names its tool {parsed.tool}, which it does not have"
                findings.append(wrong(check, text, f"agentctl mcp tools {server.id}"))

    label = format_count(len(tool_names), "tool")
    return [*findings, ok(check, f"it is connected and has {label} ({report['server']})")]


def check_keys(settings: Settings) -> Iterator[Finding]:
    """Check the verification keys, the signing key, and an unfinished rotation."""
    authorization = settings.authorization
    signing = settings.signing.key_file

    for path in (*authorization.verification_key_files, *authorization.jwks_file):
        yield from check_permissions(_KEYS, path, "the verification keys in")

    keys = None
    if authorization.enabled:
        try:
            keys = load_key_set(authorization, read_key_files(authorization))
        except InvalidKey as failure:
            yield from_failure(_KEYS, failure)
        else:
            yield from _check_verification_keys(settings, keys)

    yield from check_permissions(_KEYS, signing, "the signing key")
    if not signing.exists():
        yield ok(_KEYS, f"there is no {signing}: tokens are minted elsewhere")
        return

    if not os.access(signing, os.R_OK):
        yield ok(_KEYS, f"this user cannot read {signing}, which a server does not need")
        return

    try:
        key = load_signing_key(read_private_key(signing), get_algorithm(authorization.algorithm))
    except InvalidKey as failure:
        yield from_failure(_KEYS, failure)
        return

    yield ok(_KEYS, f"{signing} signs with {authorization.algorithm}; only its owner may read it")
    if keys is not None:
        yield from _check_signing_key(settings, key, keys)


def _check_verification_keys(settings: Settings, keys: KeySet) -> Iterator[Finding]:
    count = len(keys.keys)
    remote = has_remote_keys(settings.authorization)
    if count or not remote:
        keys_verify = "1 key verifies" if count == 1 else f"{count} keys verify"
        yield ok(_KEYS, f"{keys_verify} {keys.spec.name} tokens")
    yield from _note_skipped_keys(keys)
    if remote:
        yield from _check_remote_keys(settings)


def _note_skipped_keys(keys: KeySet) -> Iterator[Finding]:
    for entry in keys.skipped:
        text = f"{entry.label} is left out: {entry.reason}"
        yield note(_KEYS, text, "agentctl keys list")


def _check_remote_keys(settings: Settings) -> Iterator[Finding]:
    verifier = Verifier(settings)
    verifier.fetch_remote_keys()
    state = verifier.remote_state
    assert state is not None

    if state.error is None:
        yield ok(_KEYS, state.describe(time.time()))
        if verifier.remote_keys is not None:
            yield from _note_skipped_keys(verifier.remote_keys)
        return

    text = f"the keys of {state.source} cannot be fetched: {state.detail} ({state.error})"
    yield wrong(_KEYS, text, "correct jwks_url or issuer in [authorization]")


def has_third_party_keys(settings: Settings) -> bool:
    """Return True if the JWKS has keys that are not the current or a replaced signing key."""
    authorization = settings.authorization
    if not authorization.enabled:
        return False
    if has_remote_keys(authorization):
        return True
    if not authorization.jwks_file:
        return False

    try:
        files = read_key_files(authorization)
        # Only for its error: the server does not start with these files.
        load_key_set(authorization, files)

        published_files = open_published_files(authorization, files)
        marks = {
            name: mark
            for path in authorization.jwks_file
            for name, mark in published_files[path].removal_times().items()
        }

        key = load_signing_key(
            read_private_key(settings.signing.key_file), get_algorithm(authorization.algorithm)
        )
    except InvalidKey:
        return True

    own_thumbprints = {key_thumbprint(key)} | {
        name for name, mark in marks.items() if mark is not None
    }
    return not marks.keys() <= own_thumbprints


def _check_signing_key(settings: Settings, key: SigningKey, keys: KeySet) -> Iterator[Finding]:
    authorization = settings.authorization
    thumbprint = key_thumbprint(key)
    if thumbprint not in map(key_thumbprint, keys.keys):
        text = (
            f"the server rejects tokens that {settings.signing.key_file} signs: it has other keys"
        )
        remedy = "agentctl keys jwks prints its public key, for jwks_file in [authorization]"
        yield note(_KEYS, text, remedy)

    try:
        files = open_published_files(authorization, read_key_files(authorization)).values()
        marks = {
            name: mark for file in files for name, mark in file.removal_times().items() if mark
        }
    except InvalidKey as failure:
        yield from_failure(_KEYS, failure)
        return

    if marks.pop(thumbprint, None) is not None:
        yield note(_KEYS, "a key rotation was interrupted", "agentctl keys rotate")

    for name, mark in marks.items():
        remedy = "agentctl keys rotate --finish"
        if mark <= now():
            yield note(_KEYS, f"the replaced key {name} still verifies tokens", remedy)
        else:
            yield ok(_KEYS, f"the replaced key {name} verifies tokens until {format_rfc3339(mark)}")
