"""Settings from environment variables (contract.md 7): `AGENTCTL_SECTION__KEY` and the two JWT_*.

Variables without `__` are no settings and none of our business: container platforms make up names
like AGENTCTL_PORT for a service of that name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from agentctl.config.places import Place
from agentctl.records.text import suggest_name

__all__ = [
    "JWKS_FILE_VARIABLE",
    "PREFIX",
    "VERIFICATION_KEY_VARIABLE",
    "Variable",
    "find_variables",
    "variable_name",
]

PREFIX = "AGENTCTL_"
TEST_PREFIX = "AGENTCTL_TEST_"
VERIFICATION_KEY_VARIABLE = "JWT_VERIFICATION_KEY"
JWKS_FILE_VARIABLE = "JWT_JWKS_FILE"


class Variable(NamedTuple):
    """A variable that sets a key."""

    name: str
    text: str


def variable_name(key: str) -> str:
    """The variable that sets `key`: `server.port` is AGENTCTL_SERVER__PORT."""
    return PREFIX + key.upper().replace(".", "__")


def find_variables(environ: Mapping[str, str], keys: Iterable[str]) -> dict[str, Variable]:
    """The variables that set one of `keys` (`server.port`), by key.

    Raises:
        InvalidConfiguration: a variable of this form names no key.
    """
    known = {variable_name(key): key for key in keys}
    found: dict[str, Variable] = {}
    for name in sorted(environ):
        if name in known:
            found[known[name]] = Variable(name, environ[name])
        elif name.startswith(PREFIX) and "__" in name and not name.startswith(TEST_PREFIX):
            _refuse_variable(name, list(known))
    if environ.get(JWKS_FILE_VARIABLE):
        found["authorization.jwks_file"] = Variable(JWKS_FILE_VARIABLE, environ[JWKS_FILE_VARIABLE])
    return found


def _refuse_variable(name: str, known: list[str]) -> None:
    near = _suggest_variable(name, known)
    guess = f"; did you mean {near}?" if near else ""
    Place("", variable=name).refuse(
        f"this version has no such key{guess}",
        hint=f"unset it; lists of tables are set in the file only, single keys as "
        f"{variable_name('section.key')}, like {variable_name('server.port')}",
    )


def _suggest_variable(name: str, known: list[str]) -> str | None:
    """Within a section that exists only the key can be the slip."""
    section, _, key = name.partition("__")
    keys = [other.partition("__")[2] for other in known if other.startswith(f"{section}__")]
    if not keys:
        return suggest_name(name, known)
    near = suggest_name(key, keys)
    return near and f"{section}__{near}"
