"""The parameters of an operation as FastAPI describes them, from the signature of a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Annotated, Any, get_args, get_origin

import fastapi
from typing_extensions import TypeAliasType

from agentctl.interface.declarations import Header, Path, Query
from agentctl.records.kinds import ComponentKind

SessionType = TypeAliasType("SessionType", ComponentKind)
"""The kinds as an enumeration of the document."""

_STANDARD_DECLARATIONS = {Path: fastapi.Path, Query: fastapi.Query, Header: fastapi.Header}


def build_signature_function(
    declared: Iterable[inspect.Parameter], path_names: Mapping[str, str]
) -> Callable[[], None]:
    """Return a function whose signature has parameters of an operation; it is never called.

    Args:
        declared: the parameters in the path, the query and the header.
        path_names: the names of the path parameters, by their names in the path.
    """
    public_names = {name: path_name for path_name, name in path_names.items()}
    parameters = [
        parameter.replace(
            name=public_names.get(parameter.name, parameter.name),
            annotation=_build_annotation(parameter.annotation),
            default=None if parameter.default == () else parameter.default,
        )
        for parameter in declared
    ]

    def signature_only() -> None:
        raise NotImplementedError

    signature_only.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return signature_only


def _build_annotation(annotation: Any) -> Any:
    if get_origin(annotation) is not Annotated:
        return annotation

    plain, declared, *_ = get_args(annotation)
    options = {name: value for name, value in asdict(declared).items() if value is not None}
    options.pop("noun", None)  # for the audit log
    if "max_items" in options:
        plain = list[str]
        options["max_length"] = options.pop("max_items")
    elif plain == tuple[str, ...]:
        plain = str | None
    elif plain == ComponentKind:
        plain = SessionType
    elif ComponentKind in get_args(plain):
        plain = SessionType | None
    return Annotated[plain, _STANDARD_DECLARATIONS[type(declared)](**options)]
