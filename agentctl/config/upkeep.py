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

RetentionDays = Annotated[int, Field(ge=0, le=36_500)]


@dataclass(frozen=True, slots=True)
class Approvals:
    """The table `[approvals]`: what runs that wait for people may do.

    Attributes:
        expire_seconds: seconds after which a pending approval counts as rejected; 0 for never.
        client_seconds: seconds after which a run that waits for its caller to execute a tool of the
            request is cancelled; 0 for never.
        own: True if an approver may decide about its own run.
    """

    expire_seconds: Annotated[int, Field(ge=0, le=31_622_400)] = 0
    client_seconds: Annotated[int, Field(ge=0, le=31_622_400)] = 3_600
    own: bool = False


@dataclass(frozen=True, slots=True)
class Budget:
    """An entry of `[[budgets]]`: what runs may use in a period. It has `tokens` or `cost`.

    Attributes:
        per: what has a separate sum: each user, each agent, team and workflow, or the server.
        component: only runs of this agent, team or workflow; empty for all.
        period: a day or a month, UTC.
        cost: US dollars.
        on_exceed: `refuse` starts no further run; `stop` also ends live runs at their next call of
            a model.
        unknown: with `refuse` a budget of a cost refuses models whose price is not known, with
            `allow` their tokens do not count.
    """

    id: Id
    per: BudgetSubject
    component: Annotated[str, Reference(("agents", "teams", "workflows"))] = ""
    period: BudgetPeriod = "day"
    tokens: Annotated[int | None, Field(ge=1, le=1_000_000_000_000_000)] = None
    cost: Annotated[float | None, Field(ge=0.000_001, le=1_000_000_000)] = None
    on_exceed: Literal["refuse", "stop"] = "refuse"
    unknown: Literal["refuse", "allow"] = "refuse"


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
    """The table `[retention]`: the days after which a server deletes data.

    Attributes:
        idle_days: days after the last use of a session; 0 for never. A component may have others.
        approval_days: days after the decision of an approval whose run has ended; 0 for as long as
            its session.
    """

    idle_days: RetentionDays = 0
    approval_days: RetentionDays = 0


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

    With `store` "s3" the bytes are in `bucket`; the credentials are those of the environment.

    Attributes:
        folder: the folder of the bytes, or with S3 that of uploads in progress; absolute in loaded
            settings.
        prefix: the beginning of the keys in the bucket.
        endpoint: a server with the interface of S3; empty for AWS.
        item_bytes: maximum bytes of a file.
        run_bytes: maximum bytes of the files of one run.
        user_day_bytes: maximum bytes of the files that a user stores in one day, UTC.
    """

    store: Literal["folder", "s3"] = "folder"
    folder: FilePath = Path("files")
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
    endpoint: BaseUrl = ""
    region: Region = ""
    item_bytes: Annotated[int, Field(ge=1, le=1 << 32)] = 26_214_400
    run_bytes: Annotated[int, Field(ge=1, le=1 << 32)] = 104_857_600
    user_day_bytes: Annotated[int, Field(ge=1, le=1 << 50)] = 1_073_741_824


@dataclass(frozen=True, slots=True)
class ModelPrice:
    """The table `price` of a model: US dollars for a million tokens.

    Attributes:
        cached: for input tokens that the provider has in its cache; None for those of `input`.
    """

    input: Annotated[float, Field(ge=0, le=1_000_000)]
    output: Annotated[float, Field(ge=0, le=1_000_000)]
    cached: Annotated[float | None, Field(ge=0, le=1_000_000)] = None
