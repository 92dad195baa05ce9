"""Whether there is anything to verify tokens with."""

from __future__ import annotations

from agentctl.config.settings import Settings
from agentctl.errors import InvalidConfiguration

__all__ = ["require_keys"]


def require_keys(settings: Settings) -> None:
    """For a server: with authorization on there must be a verification key.

    `load` does not ask for this: minting and local reads need no verification key.

    Raises:
        InvalidConfiguration: authorization is on and no key, key file or JWKS is configured.
    """
    given = settings.authorization
    if not given.enabled or given.verification_keys or given.verification_key_files:
        return
    if given.jwks_file is None:
        raise InvalidConfiguration(
            f"{settings.path or 'the configuration'}: authorization: is on and there is no key "
            "to verify tokens with",
            hint="set verification_key_files or jwks_file in [authorization], or "
            "JWT_VERIFICATION_KEY or JWT_JWKS_FILE; `agentctl init` makes a key pair",
        )
