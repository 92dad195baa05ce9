"""A configuration that need not be there: for commands that say more with one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agentctl.errors import InvalidConfiguration

if TYPE_CHECKING:
    from agentctl.config.settings import Settings

__all__ = ["admin_scope_of", "settings_if_any"]


def settings_if_any(config: Path | None) -> tuple[Settings | None, str | None]:
    """The configuration, or why there is none. One that is named has to be good.

    Raises:
        InvalidConfiguration: `config` names one that is not.
    """
    from agentctl.config import load

    try:
        return load(config), None
    except InvalidConfiguration as failure:
        if config is not None:
            raise
        return None, failure.detail


def admin_scope_of(settings: Settings | None) -> str:
    """The scope that allows everything, by default without a configuration."""
    from agentctl.config.settings import Authorization

    return (Authorization() if settings is None else settings.authorization).admin_scope
