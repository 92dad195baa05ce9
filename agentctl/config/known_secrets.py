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

    They are the values of the variables that the configuration names, of the variables with the
    name of a secret, and the shared verification keys.
    """
    configured_names = set(_list_variables(settings))
    secrets = set(settings.authorization.verification_keys)
    for name, value in environ.items():
        if name in configured_names or is_secret_name(name):
            secrets.add(value)

    # A secret that is part of a longer one must not be replaced first.
    return tuple(sorted(secrets, key=len, reverse=True))


def _list_variables(settings: Settings) -> Iterator[str]:
    yield from (model.api_key_env for model in settings.models)
    yield from (database.password_env for database in settings.databases)
    for webhook in settings.webhooks:
        yield from (webhook.secret_env, webhook.previous_secret_env)
