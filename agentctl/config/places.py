"""Where a value was given, so that a refusal and `config show --sources` can say so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NoReturn

from agentctl.errors import InvalidConfiguration

__all__ = ["Place", "listed", "nearest"]


@dataclass(frozen=True, slots=True)
class Place:
    """A key, and where its value was given.

    Attributes:
        file: the configuration file.
        key: `server.port`, `agents.writer.model`.
        line: the key's line in the file, None when not known or not given there.
        variable: the environment variable that gave the value.
        given: False for a default.
    """

    file: str
    key: str = ""
    line: int | None = None
    variable: str = ""
    given: bool = True

    @property
    def source(self) -> str:
        """`default`, `env NAME`, `FILE:LINE` or `FILE`."""
        if self.variable:
            return f"env {self.variable}"
        if not self.given:
            return "default"
        return self.file if self.line is None else f"{self.file}:{self.line}"

    def item(self, suffix: str) -> Place:
        """The place of a part: `[0]` of a list, `.name` of a table."""
        return replace(self, key=self.key + suffix)

    def refuse(self, problem: str, *, hint: str | None = None) -> NoReturn:
        """Raise InvalidConfiguration: where, which key, what is wrong and what is allowed."""
        where = self.variable or (f"{self.file}: {self.key}" if self.key else self.file)
        cause = None if self.line is None or self.variable else f"line {self.line} of the file"
        raise InvalidConfiguration(f"{where}: {problem}", cause=cause, hint=hint)


def listed(names: Iterable[str]) -> str:
    """Names for a sentence, in quotes: `"a", "b" or "c"`."""
    quoted = [f'"{name}"' for name in names]
    return " or ".join(filter(None, [", ".join(quoted[:-1]), quoted[-1]])) if quoted else "none"


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of `names` that a slip of the hand could have turned into `name`, or None."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, list(names), n=1, cutoff=0.75)), None)
