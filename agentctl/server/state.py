"""What a request meets: the open service, who is calling, and the call that endpoints are given."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, cast

from starlette.requests import Request

from agentctl.auth.principal import Principal
from agentctl.errors import Unauthenticated, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentctl.auth.verifier import Verifier
    from agentctl.config.settings import Settings
    from agentctl.operations import LocalOperations
    from agentctl.server.observability.log import RequestObserver
    from agentctl.server.refusals import AuthenticationFailureCounter
    from agentctl.service.service import Service

__all__ = ["CALLER_KEY", "AppState", "Call", "Caller"]

CALLER_KEY = "agentctl.caller"
"""Key of the `Caller` in the ASGI scope."""

_ANONYMOUS = Principal(subject=None)


@dataclass(slots=True)
class AppState:
    """What an application holds while it runs.

    Attributes:
        settings: what was configured.
        service: the implementation of the port; None while the application is not running.
        verifier: turns an Authorization header into a principal; None while not running.
        refusals: counts the 401s; None while not running.
        description: the OpenAPI document, as bytes without a base path.
        watchers: are told of every request that is finished.
    """

    settings: Settings
    service: Service | None = None
    verifier: Verifier | None = None
    refusals: AuthenticationFailureCounter | None = None
    description: bytes = b"{}"
    request_observers: Sequence[RequestObserver] = ()

    @property
    def running_service(self) -> Service:
        """The service.

        Raises:
            Unavailable: the application was mounted, and the host's lifespan does not run it.
        """
        if self.service is None:
            raise Unavailable(
                "The application is not running: use `async with agentctl.server.running(app):`"
                " in the lifespan of the host application"
            )
        return self.service


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: a principal, or why there is none. Nothing is refused here.

    Attributes:
        door: the application's.
        request_id: ours, a UUIDv7; in `X-Request-ID` and in the log.
        principal: who was identified.
        failure: why nobody was, when `principal` is None: no credential that holds, or one that
            cannot be looked up now.
    """

    door: AppState
    request_id: str
    principal: Principal | None
    failure: Unauthenticated | Unavailable | None = None


class Call(Request):
    """A request as endpoints see it."""

    @property
    def caller(self) -> Caller:
        return cast(Caller, self.scope[CALLER_KEY])

    @cached_property
    def operations(self) -> LocalOperations:
        """The port, as the caller; without one, as a principal that holds nothing."""
        caller = self.caller
        service = caller.door.running_service
        return service.operations_for(caller.principal or _ANONYMOUS, caller.request_id)
