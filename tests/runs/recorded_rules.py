"""Rules of a state machine that reports the steps of a failure as they happened."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from hypothesis import stateful
from hypothesis import strategies as st

__all__ = ["InvariantViolation", "rule"]

Step = TypeVar("Step", bound=Callable[..., None])


class InvariantViolation(BaseException):
    """An invariant is violated.

    Not an Exception, so that it ends the search at once: a replay of the same steps may not have
    the same timing.
    """


def rule(**strategies: st.SearchStrategy[Any]) -> Callable[[Step], Step]:
    """Create a rule that adds itself to `steps` of the machine before it is executed."""

    def made(step: Step) -> Step:
        @functools.wraps(step)
        def noted(self: Any, **drawn: Any) -> None:
            given = ", ".join(f"{name}={value!r}" for name, value in drawn.items())
            self.steps.append(f"{step.__name__}({given})")
            step(self, **drawn)

        ruled: Any = stateful.rule(**strategies)  # type: ignore[call-overload]
        return cast(Step, ruled(noted))

    return made
