"""Operations, scopes and the OpenAPI document, from the routes and the policy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pages.markdown import code, made_from, sentence, table

__all__ = ["document", "operations_page", "scopes_page"]

_OPERATIONS = f"""# Operations

{made_from("the routes in agentctl/server and agentctl/auth/policy.py")}

Every operation of the REST interface with its requirement: one of the listed scopes suffices, and
the admin scope (`authorization.admin_scope`, by default `agent_os:admin`) always does. `*` means
every id. [document.json](../../agentctl/server/openapi/document.json) has parameters, bodies and
responses; [HTTP API](../api.md) describes their use.
"""

_SCOPES = f"""# Scopes

{made_from("agentctl/auth/policy.py and agentctl/records/authorization.py")}

A token's `scopes` claim is an array of these. `resource:action` is for all resources of a kind,
`resource:<id>:action` for one of them, `resource:*:action` for all again. They are compared
exactly; an unknown scope grants nothing, and `agentctl token mint` rejects it. In a list that is
marked "in part", a caller with scopes for single ids sees only those.
"""

_ADMIN = """## The admin scope

`agent_os:admin`, or the value of `authorization.admin_scope`, allows every operation on the data of
every user. Only this scope allows: {alone}.

## Without a scope

Public operations read no credential:
"""


def document() -> str:
    """Build `document.json`: the document that a server answers at `/openapi.json`."""
    from agentctl.server.openapi.document import build_document, format_document

    return format_document(build_document(_operations()))


def operations_page() -> str:
    """Build `operations.md`."""
    by_tag: dict[str, list[Any]] = {}
    for operation in _operations():
        by_tag.setdefault(str(operation.tag), []).append(operation)
    lines = [_OPERATIONS]
    for tag, operations in by_tag.items():
        rows = [
            (
                code(f"{method} {operation.path}"),
                code(operation.operation),
                _first_sentence(operation),
                _needs(operation.operation),
            )
            for operation in operations
            for method in sorted(operation.methods or ())
        ]
        lines += [
            f"## {tag}",
            "",
            *table(("route", "operation", "description", "requirement"), rows),
            "",
        ]
    return "\n".join(lines[:-1]) + "\n"


def scopes_page() -> str:
    """Build `scopes.md`."""
    from agentctl.auth.policy import POLICY, Admin, Authenticated, Public
    from agentctl.records.authorization import KNOWN_SCOPES, RESOURCES_WITH_IDS

    lines = [_SCOPES]
    for scope in KNOWN_SCOPES:
        resource, action = scope.split(":")
        lines += [f"## {scope}", ""]
        if resource in RESOURCES_WITH_IDS:
            forms = [code(form) for form in (f"{resource}:<id>:{action}", f"{resource}:*:{action}")]
            lines += [f"Also as {' and '.join(forms)}.", ""]
        heads: tuple[str, ...] = ("operation",)
        if resource in RESOURCES_WITH_IDS:
            heads = ("operation", f"with `{resource}:<id>:{action}`")
        rows = [row[: len(heads)] for row in _allowed_by(resource, action)]
        lines += [*table(heads, rows), ""]
    public = [code(name) for name, rule in POLICY.items() if isinstance(rule, Public)]
    known = [code(name) for name, rule in POLICY.items() if isinstance(rule, Authenticated)]
    alone = [code(name) for name, rule in POLICY.items() if isinstance(rule, Admin)]
    admin = _ADMIN.format(alone=", ".join(alone))
    lines += [f"{admin}{', '.join(public)}.", "", f"With any valid token: {', '.join(known)}."]
    return "\n".join(lines) + "\n"


def _operations() -> list[Any]:
    from agentctl.server.openapi import pages
    from agentctl.server.routes import build_all_operations

    return [*build_all_operations(), *pages.build_operations()]


def _first_sentence(operation: Any) -> str:
    return sentence(operation.texts[0])


def _needs(operation: str) -> str:
    from agentctl.auth.policy import POLICY, Admin, Authenticated, NeedsScope, Public, scope_forms

    rule = POLICY[operation]
    if isinstance(rule, Public):
        return "public"
    if isinstance(rule, Authenticated):
        return "any valid token"
    if isinstance(rule, Admin):
        return "the admin scope"
    assert isinstance(rule, NeedsScope)
    text = " or ".join(code(scope) for scope in scope_forms(operation))
    one = code(f"{rule.resource}:<id>:{rule.action}")
    return f"{text}; with {one} in part" if rule.filters_list else text


def _allowed_by(resource: str, action: str) -> Iterator[tuple[str, str]]:
    """Yield the operations that a scope allows, and their extent with a scope for one id."""
    from agentctl.auth.policy import POLICY, NeedsScope
    from agentctl.auth.principal import sufficient_scopes

    for name, rule in POLICY.items():
        if not isinstance(rule, NeedsScope) or rule.action != action:
            continue
        if f"{resource}:{action}" in sufficient_scopes(rule.resource, rule.action):
            if rule.filters_list:
                yield code(name), "in part"
            else:
                yield code(name), "for this one" if rule.id_param else "no"
