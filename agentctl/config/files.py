"""The table `[files]` (docs/files.md)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from agentctl.config.mcp_table import BaseUrl
from agentctl.config.names import Region
from agentctl.config.types import FilePath


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
