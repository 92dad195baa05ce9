"""The tables of what a server keeps and how much of it.

`[approvals]`, `[[budgets]]` and `[rate_limits]` (docs/budgets.md), `[quotas]`, `[search]`,
`[files]` (docs/files.md), `[retention]`, and the prices of models (docs/usage.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from agentctl.config.mcp_table import BaseUrl
from agentctl.config.names import Id, Region
from agentctl.config.types import FilePath, Reference

BudgetSubject = Literal["user", "agent", "server"]
BudgetPeriod = Literal["day", "month"]
OnExceed = Literal["refuse", "stop", "ask"]

RetentionDays = Annotated[int, Field(ge=0, le=36_500)]


@dataclass(frozen=True, slots=True)
class Approvals:
    """The table `[approvals]`: what runs that wait for people may do."""

    expire_seconds: Annotated[int, Field(ge=0, le=31_622_400)] = 0
    """Seconds after which a pending approval counts as rejected; 0 for never."""

    client_seconds: Annotated[int, Field(ge=0, le=31_622_400)] = 3_600
    """Seconds after which a run is cancelled that waits for its caller; 0 for never.

    The caller has to execute a tool of its request.
    """

    own: bool = False
    """True if an approver may decide about its own run."""


@dataclass(frozen=True, slots=True)
class Budget:
    """An entry of `[[budgets]]`: what runs may use in a period. It has `tokens` or `cost`."""

    id: Id

    per: BudgetSubject
    """The owners of separate sums: users, or agents, teams and workflows, or the server."""

    component: Annotated[str, Reference(("agents", "teams", "workflows"))] = ""
    """Only runs of this agent, team or workflow; empty for all."""

    period: BudgetPeriod = "day"
    """A day or a month, UTC."""

    tokens: Annotated[int | None, Field(ge=1, le=1_000_000_000_000_000)] = None

    cost: Annotated[float | None, Field(ge=0.000_001, le=1_000_000_000)] = None
    """US dollars."""

    on_exceed: OnExceed = "refuse"
    """The effect of a limit that is reached.

    `refuse` starts no further run, `stop` also ends live runs at their next call of a model, and
    `ask` lets them wait there until a person has raised the limit.
    """

    warn_at: Annotated[float | None, Field(gt=0, le=1_000_000_000_000_000)] = None
    """A part of the limit, below 1, or an amount, from which on the budget warns once in a period;
    None for no warning."""

    unknown: Literal["refuse", "allow"] = "refuse"
    """The effect of a budget of a cost on models whose price is not known.

    With `refuse` they are refused, with `allow` their tokens do not count.
    """

    @property
    def limit(self) -> float:
        """The limit: tokens, or US dollars."""
        return self.tokens if self.tokens is not None else self.cost or 0

    @property
    def unit(self) -> Literal["tokens", "dollars"]:
        """The unit of the limit."""
        return "tokens" if self.tokens is not None else "dollars"


@dataclass(frozen=True, slots=True)
class RateLimits:
    """The table `[rate_limits]`: what one caller may do at one process; 0 for no limit."""

    requests_per_minute: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    runs_per_minute: Annotated[int, Field(ge=0, le=10_000_000)] = 0


@dataclass(frozen=True, slots=True)
class Quotas:
    """The table `[quotas]`: bounds for the stored data of one user in one database; 0 for none."""

    sessions_per_user: Annotated[int, Field(ge=0, le=1 << 40)] = 0
    memories_per_user: Annotated[int, Field(ge=0, le=1 << 40)] = 0
    store_items_per_user: Annotated[int, Field(ge=0, le=1 << 40)] = 10_000
    bytes_per_user: Annotated[int, Field(ge=0, le=1 << 50)] = 0


@dataclass(frozen=True, slots=True)
class Retention:
    """The table `[retention]`: the days after which a server deletes data."""

    idle_days: RetentionDays = 0
    """Days after the last use of a session; 0 for never. A component may have others."""

    approval_days: RetentionDays = 0
    """Days after the decision of an approval whose run has ended; 0 for as long as its session."""


@dataclass(frozen=True, slots=True)
class Search:
    """Search in messages, answers and names of sessions.

    `tokenizer` "trigram" is for SQLite only: it finds parts of words.
    """

    enabled: bool = False
    tokenizer: Literal["words", "trigram"] = "words"


@dataclass(frozen=True, slots=True)
class Files:
    """The table `[files]`: where the bytes of files are, and how many there may be.

    With `store` "s3" the bytes are in `bucket`; the environment has the credentials.
    """

    store: Literal["folder", "s3"] = "folder"

    folder: FilePath = Path("files")
    """The folder of the bytes, or with S3 the folder of uploads in progress.

    Its path is absolute in loaded settings.
    """

    bucket: Annotated[
        str, Field(pattern=r"^([a-z0-9.-]{3,63})?$", description="the name of a bucket, or empty")
    ] = ""

    prefix: Annotated[
        str,
        Field(
            pattern=r"^([A-Za-z0-9._/-]{1,200})?$",
            description='a prefix such as "agentctl", or empty',
        ),
    ] = ""
    """The beginning of the keys in the bucket."""

    endpoint: BaseUrl = ""
    """A server with the interface of S3; empty for AWS."""

    region: Region = ""

    item_bytes: Annotated[int, Field(ge=1, le=1 << 32)] = 26_214_400
    """Maximum bytes of a file."""

    run_bytes: Annotated[int, Field(ge=1, le=1 << 32)] = 104_857_600
    """Maximum bytes of the files of one run."""

    user_day_bytes: Annotated[int, Field(ge=1, le=1 << 50)] = 1_073_741_824
    """Maximum bytes of the files that a user stores in one day, UTC."""


@dataclass(frozen=True, slots=True)
class ModelPrice:
    """The table `price` of a model: US dollars for a million tokens."""

    input: Annotated[float, Field(ge=0, le=1_000_000)]
    output: Annotated[float, Field(ge=0, le=1_000_000)]

    cached: Annotated[float | None, Field(ge=0, le=1_000_000)] = None
    """For input tokens that the provider has in its cache; None for those of `input`."""
