"""Settings from environment variables: `AGENTCTL_SECTION__KEY` and the two `JWT_*` variables.

Variables without `__` are ignored: container platforms generate names such as AGENTCTL_PORT for a
service of that name. The rules are in docs/contract.md "Configuration".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from agentctl.config.places import Place
from agentctl.records.text import suggest_name

PREFIX = "AGENTCTL_"
TEST_PREFIX = "AGENTCTL_TEST_"
VERIFICATION_KEY_VARIABLE = "JWT_VERIFICATION_KEY"
JWKS_FILE_VARIABLE = "JWT_JWKS_FILE"


class Variable(NamedTuple):
    """An environment variable that sets a key."""

    name: str
    text: str


def variable_name(key: str) -> str:
    """Return the variable of a key: AGENTCTL_SERVER__PORT for `server.port`."""
    return PREFIX + key.upper().replace(".", "__")


def find_variables(environ: Mapping[str, str], keys: Iterable[str]) -> dict[str, Variable]:
    """Return the variables that set one of `keys`, by key such as `server.port`.

    Raises:
        InvalidConfiguration: a variable of this form belongs to no key.
    """
    known = {variable_name(key): key for key in keys}
    variables: dict[str, Variable] = {}
    for name in sorted(environ):
        if name in known:
            variables[known[name]] = Variable(name, environ[name])
        elif name.startswith(PREFIX) and "__" in name and not name.startswith(TEST_PREFIX):
            _refuse_variable(name, list(known))
    if environ.get(JWKS_FILE_VARIABLE):
        jwks_file = Variable(JWKS_FILE_VARIABLE, environ[JWKS_FILE_VARIABLE])
        variables["authorization.jwks_file"] = jwks_file
    return variables


def _refuse_variable(name: str, known: list[str]) -> None:
    near = _suggest_variable(name, known)
    guess = f"; did you mean {near}?" if near else ""
    Place("", variable=name).refuse(
        f"this version has no such key{guess}",
        hint=f"unset it; only keys of single tables have variables, such as "
        f"{variable_name('server.port')}; lists of tables are set in the file",
    )


def _suggest_variable(name: str, known: list[str]) -> str | None:
    section, _, key = name.partition("__")
    keys = [other.partition("__")[2] for other in known if other.startswith(f"{section}__")]
    if not keys:
        return suggest_name(name, known)
    near = suggest_name(key, keys)
    return near and f"{section}__{near}"
