"""The table `[backup]`: backups that a server makes (docs/databases.md "Backups by the server")."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, NamedTuple, cast

from agentctl.config.names import DatabaseId
from agentctl.light_dataclass import dataclass
from agentctl.records.value_types import Pattern

Period = Literal["all", "hourly", "daily", "weekly", "monthly"]

_UNITS = {"m": 60, "h": 3_600, "d": 86_400, "w": 604_800}

Interval = Annotated[
    str, Pattern(r"^([1-9][0-9]{0,3}[mhd])?$", 'a time like "15m", "6h" or "1d", or empty')
]
KeepText = Annotated[
    str,
    Pattern(
        r"^[1-9][0-9]{0,3}[hdw] (all|hourly|daily|weekly|monthly)$",
        'a time and what to keep of it, like "24h hourly" or "30d daily"; also "all", "weekly" and'
        ' "monthly"',
    ),
]


class KeepRule(NamedTuple):
    """A rule that keeps backups up to an age: the last one of each period, UTC.

    Attributes:
        seconds: the age up to which the rule counts.
    """

    seconds: int
    period: Period


@dataclass(frozen=True, slots=True)
class Backup:
    """The table `[backup]`: what the server backs up, how often, and which backups it keeps.

    Attributes:
        every: time from one backup to the next one; empty for none.
        keep: which backups are kept; the others are deleted.
        folder: the folder of the backups, absolute in loaded settings.
        databases: the SQLite databases to back up; empty for all databases.
    """

    every: Interval = ""
    keep: tuple[KeepText, ...] = ("24h hourly", "30d daily")
    folder: Path = Path("backups")
    databases: tuple[DatabaseId, ...] = ()

    @property
    def seconds(self) -> int:
        """The time from one backup to the next one; 0 for none."""
        return _parse_seconds(self.every) if self.every else 0

    @property
    def rules(self) -> list[KeepRule]:
        """The rules of `keep`."""
        words = (text.split(" ") for text in self.keep)
        return [KeepRule(_parse_seconds(span), cast(Period, period)) for span, period in words]

    def includes(self, database_id: str) -> bool:
        """Return True if the server backs up a database."""
        return bool(self.every) and (not self.databases or database_id in self.databases)


def _parse_seconds(text: str) -> int:
    return int(text[:-1]) * _UNITS[text[-1]]
