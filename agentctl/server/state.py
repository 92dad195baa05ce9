"""State of an application, and the call object that endpoints receive."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from functools import cached_property
from typing import cast

from starlette.requests import Request

from agentctl.auth.oidc import OidcClient
from agentctl.auth.principal import Principal
from agentctl.auth.verifier import Verifier
from agentctl.config.settings import Settings
from agentctl.errors import TooManyRequests, Unauthenticated, Unavailable
from agentctl.light_dataclass import dataclass
from agentctl.server.observability.log import RequestObserver
from agentctl.service.service import Service, ServiceOperations

RESPONSE_BYTES = 268_435_456
"""Bytes of large responses that are under way in one process."""

LARGE_BYTES = 262_144
"""Size from which a response counts, and in parts of which it is sent."""

CALLER_KEY = "agentctl.caller"
"""Key of the `Caller` in the ASGI scope."""

ERROR_RESPONSE_KEY = "agentctl.error_response"
"""Key of a function in the ASGI scope that builds error responses in place of `error_response`."""

OWN_ROUTE_KEY = "agentctl.own_route"
"""Key of the method and the path template of a route that is no operation, in the ASGI scope."""

_ANONYMOUS = Principal(subject=None)


class ResponseBudget:
    """The bytes of large responses of one process, which stay in memory until clients read them.

    One caller can use half of them, so that it does not stop the large responses of others.
    """

    def __init__(self) -> None:
        self._used = 0
        self._used_by: Counter[str] = Counter()

    @contextlib.contextmanager
    def reserve(self, owner: str, size: int) -> Iterator[None]:
        """Count a response while the block sends it.

        A response that is larger than the limit is sent alone.

        Raises:
            Unavailable: too many bytes are under way.
        """
        bounds = ((self._used_by[owner], RESPONSE_BYTES // 2), (self._used, RESPONSE_BYTES))
        if any(used and used + size > bound for used, bound in bounds):
            raise Unavailable(
                "Too many large responses are under way", hint="read them first, then try again"
            )
        self._used += size
        self._used_by[owner] += size
        try:
            yield
        finally:
            self._used -= size
            self._used_by[owner] -= size
            if not self._used_by[owner]:
                del self._used_by[owner]


class FollowedRuns:
    """The streams of events that callers of one process follow.

    The streams of new runs are not counted: `limits.concurrent_runs` bounds them.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._counts: Counter[str] = Counter()

    @contextlib.contextmanager
    def reserve(self, owner: str) -> Iterator[None]:
        """Count a stream while the block sends it.

        Raises:
            TooManyRequests: the caller follows too many.
        """
        if self._counts[owner] >= self._limit:
            raise TooManyRequests(
                f"This caller follows {self._limit} event streams already",
                hint="close one of them, or ask the operator to raise limits.followed_runs",
            )
        self._counts[owner] += 1
        try:
            yield
        finally:
            self._counts[owner] -= 1
            if not self._counts[owner]:
                del self._counts[owner]


@dataclass(slots=True)
class AppState:
    """State of one application.

    Attributes:
        build_openapi_document: returns the document as JSON without a base path.
        service: the local backend of the operations; None while the application is not running.
        stopped: True after the application was running.
        verifier: turns an Authorization header into a principal; None while not running.
        oidc_client: signs users of the console in; None without a provider.
        request_observers: callables that receive every finished request.
    """

    settings: Settings
    build_openapi_document: Callable[[], bytes]
    service: Service | None = None
    stopped: bool = False
    verifier: Verifier | None = None
    request_observers: Sequence[RequestObserver] = ()
    response_budget: ResponseBudget = field(default_factory=ResponseBudget)
    followed_runs: FollowedRuns = field(init=False)
    oidc_client: OidcClient | None = field(init=False)

    def __post_init__(self) -> None:
        self.followed_runs = FollowedRuns(self.settings.limits.followed_runs)
        console = self.settings.console
        self.oidc_client = OidcClient(console) if console.oidc_issuer else None

    @property
    def running_service(self) -> Service:
        """The service; Unavailable while no lifespan runs this application."""
        if self.service is not None:
            return self.service
        if self.stopped:
            raise Unavailable("The server is shutting down")
        raise Unavailable(
            "The application is not running: use `async with agentctl.server.running(app):`"
            " in the lifespan of the host application"
        )


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request: a principal, or the reason why there is none.

    Attributes:
        request_id: a new UUIDv7, for `X-Request-ID` and the log.
        failure: if `principal` is None: the credential is missing or not valid, or cannot be
            verified now. The policy decides if the request needs one.
    """

    app_state: AppState
    request_id: str
    principal: Principal | None
    failure: Unauthenticated | Unavailable | None = None

    @property
    def owner(self) -> str:
        """The name under which its responses and streams count; '' without a principal."""
        return "" if self.principal is None else self.principal.identity

    def count_request(self) -> None:
        """Count a request, before its work; RateLimited if the caller has sent too many."""
        if self.principal is not None:
            limits = self.app_state.running_service.hosting.rate_limits
            limits.take_request(self.principal.identity)


class Call(Request):
    """A request with its caller, and the operations that the caller can use."""

    @property
    def caller(self) -> Caller:
        return cast(Caller, self.scope[CALLER_KEY])

    @cached_property
    def operations(self) -> ServiceOperations:
        """The operations as the caller; without a principal, as one without scopes."""
        caller = self.caller
        service = caller.app_state.running_service
        return service.operations_for(caller.principal or _ANONYMOUS, caller.request_id)
