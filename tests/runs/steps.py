"""Steps of a state machine whose failures are shown as they happened, not as they come again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from hypothesis import stateful
from hypothesis import strategies as st

__all__ = ["Broken", "rule"]

Step = TypeVar("Step", bound=Callable[..., None])


class Broken(BaseException):
    """Something that must hold did not. No Exception, so that it ends the search at once: played
    again, the same steps need not meet the same moment.
    """


def rule(**strategies: st.SearchStrategy[Any]) -> Callable[[Step], Step]:
    """Make a step, which is written down in `steps` of the machine before it is done."""

    def made(step: Step) -> Step:
        @functools.wraps(step)
        def noted(self: Any, **drawn: Any) -> None:
            given = ", ".join(f"{name}={value!r}" for name, value in drawn.items())
            self.steps.append(f"{step.__name__}({given})")
            step(self, **drawn)

        ruled: Any = stateful.rule(**strategies)  # type: ignore[call-overload]
        return cast(Step, ruled(noted))

    return made
