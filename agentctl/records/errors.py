"""The error body of spec.md "Errors"."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict

__all__ = ["ErrorBody", "ForbiddenBody"]


class ErrorBody(TypedDict):
    """An error: what happened, and a code to sort it by."""

    detail: str
    error_code: NotRequired[str | None]


class ForbiddenBody(TypedDict):
    """A refusal for lack of scopes: any one of `required_scopes` would do."""

    detail: str
    error_code: NotRequired[str | None]
    required_scopes: list[str]
