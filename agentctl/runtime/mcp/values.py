"""Values of header fields and of environment variables, with their placeholders replaced."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

from agentctl.config.mcp_servers import TemplatePart, parse_template
from agentctl.light_dataclass import dataclass
from agentctl.runtime.mcp.calls import McpUnavailable

if TYPE_CHECKING:
    from agentctl.runtime.context import RunEnvironment

_HEADER_TEXT = re.compile(r"[!-~]([ -~]*[!-~])?")


@dataclass(frozen=True, slots=True)
class McpUser:
    """The user of a run that calls tools.

    Attributes:
        user_id: None without a user.
        claims: the verified claims of the token; empty without one.
    """

    user_id: str | None = None
    claims: Mapping[str, Any] = field(default_factory=dict)


NOBODY = McpUser()


def get_user(environment: RunEnvironment) -> McpUser:
    """Return the user of a run, with the verified claims of the caller."""
    spec = environment.spec
    return McpUser(spec.user_id, json.loads(spec.claims) if spec.claims else {})


def expand_values(values: Mapping[str, str], user: McpUser) -> dict[str, str]:
    """Return the values with all placeholders replaced.

    Raises:
        McpUnavailable: a variable is not set, or the user has no such claim, or one that cannot be
            a header field. The text names it and never repeats a value.
    """
    return {
        name: "".join(_expand_part(part, user) for part in parse_template(value) or ())
        for name, value in values.items()
    }


def collect_secrets(values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of the environment variables that these values contain."""
    names = (
        part.name
        for value in values.values()
        for part in parse_template(value) or ()
        if part.kind == "env"
    )
    return tuple(secret for name in names if (secret := os.environ.get(name)))


def _expand_part(part: TemplatePart, user: McpUser) -> str:
    if part.kind == "text":
        return part.name
    if part.kind == "env":
        value = os.environ.get(part.name, "")
        if not value:
            raise McpUnavailable(f"the environment variable {part.name} is not set")
        return value
    if part.kind == "user":
        return _check_user_value(user.user_id, "the run has no user", "the id of the user")
    return _check_user_value(
        user.claims.get(part.name),
        f"the token of the user has no claim {part.name}",
        f"the claim {part.name} of the user",
    )


def _check_user_value(value: object, missing: str, label: str) -> str:
    """Return a value of the user as the text of a header field (docs/security-cases.md P08)."""
    if value is None or value == "":
        raise McpUnavailable(missing)
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not _HEADER_TEXT.fullmatch(text):
        raise McpUnavailable(f"{label} cannot be a header: it is not printable ASCII text")
    return text
