"""The secrets that this process knows: the values that its log and its records must not show."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from agentctl.config.settings import Settings

_SECRET_NAME = re.compile(
    r"token|secret|passw|credential|api[-_]?key|private[-_]?key|authorization|cookie", re.IGNORECASE
)


def is_secret_name(name: str) -> bool:
    """Return True if a variable or header of this name has a secret as its value."""
    return _SECRET_NAME.search(name) is not None


def list_secrets(settings: Settings, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the known secrets, the longest first.

    They are the variables that the configuration names, those with the name of a secret, and shared
    verification keys.
    """
    named = set(_list_variables(settings))
    values = {
        value for name, value in environ.items() if name in named or is_secret_name(name)
    } | set(settings.authorization.verification_keys)
    return tuple(sorted(values, key=len, reverse=True))


def _list_variables(settings: Settings) -> Iterator[str]:
    yield from (model.api_key_env for model in settings.models)
    yield from (database.password_env for database in settings.databases)
    for webhook in settings.webhooks:
        yield from (webhook.secret_env, webhook.previous_secret_env)
