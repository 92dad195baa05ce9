"""Declarations of parameters and operations, and what follows from them.

The fields of `agentctl.interface.requests` and the arguments of `interface.operations.Operations`
declare where they are in an HTTP request: `limit: Annotated[int, Query("Maximum number of results",
ge=1)] = 20`. A field without a declaration is in the body. `Declaration` describes one operation
with its method, path, parameters and result. The server reads requests with it, the remote backend
writes them, and the OpenAPI document and the options of list commands show it.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import operator
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import EllipsisType
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.routes import Route, operation_ids
from agentctl.records.times import ParsedTimestamp

Order = tuple[str | EllipsisType, ...]
"""Names of parameters in an order; an ellipsis represents those that are not named."""

_TEXT_WIDTH = 97
"""Characters of a line of a description in the OpenAPI document."""

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_EMPTY = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Path:
    """Declaration of a path parameter."""

    description: str


@dataclass(frozen=True, slots=True)
class Query:
    """Declaration of a query parameter, with the bounds that the OpenAPI document shows.

    `max_items` is the maximum number of values of a parameter that may be repeated; a tuple without
    it is one text with commas.
    """

    description: str
    ge: float | None = None
    le: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    max_items: int | None = None


@dataclass(frozen=True, slots=True)
class Header:
    """Declaration of a header field; `alias` is its name."""

    description: str
    alias: str
    ge: float | None = None
    le: float | None = None
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class Option:
    """Declaration of an option of commands that take a request.

    Attributes:
        flag: the option: `--user`.
        metavar: the name of its value in the help; None for a flag without a value.
        noun: the kind of record that it names by its id, for completion and short ids.
        any_case: accept a word in any case.
    """

    flag: str
    metavar: str | None
    help: str
    noun: Literal["run", "session"] | None = None
    any_case: bool = False


def find_declared(annotation: Any, kinds: type[T] | tuple[type[T], ...]) -> T | None:
    """Return the first declaration of some classes in an annotation, None without one."""
    return next((part for part in get_args(annotation) if isinstance(part, kinds)), None)


def is_time(annotation: Any) -> bool:
    """Return True for a declared time, whose value is microseconds UTC."""
    return ParsedTimestamp in get_args(get_args(annotation)[0])


class Signature:
    """The parameters of a function, where the fields of a request replace it.

    Args:
        function: the arguments that are dataclasses of `agentctl.interface.requests` are requests.
        without: fields of the requests that are no parameters and keep their default.
        order: the order of the parameters, if it is not that of the arguments and fields.

    Attributes:
        parameters: the parameters; their names are unique.
    """

    def __init__(
        self, function: Callable[..., Any], *, without: Sequence[str] = (), order: Order = (...,)
    ) -> None:
        arguments = inspect.signature(function, eval_str=True).parameters.values()
        self._parts = {
            argument.name: _read_part(argument.name, argument.annotation, argument.default, without)
            for argument in arguments
        }
        self._builders = [(name, _compile_builder(part)) for name, part in self._parts.items()]
        leaves = {leaf.name: leaf for part in self._parts.values() for leaf in _list_leaves(part)}
        self.parameters = [leaves[name] for name in sort_names(leaves, order)]

    def build_arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Build the arguments of the function from the values of all parameters."""
        return {name: build(values) for name, build in self._builders}

    def list_values(self, arguments: Mapping[str, Any]) -> Iterator[tuple[inspect.Parameter, Any]]:
        """Yield each parameter with its value in the arguments of the function."""
        for name, part in self._parts.items():
            yield from _list_values(part, arguments[name])


def list_request_values(request: Any) -> Iterator[tuple[inspect.Parameter, Any]]:
    """Yield each field of a request of `agentctl.interface.requests` as a parameter, with its
    value."""
    return _list_values(_read_part("", type(request), _EMPTY, ()), request)


@dataclass(frozen=True, slots=True)
class _Group:
    """A request as an argument: the class, its parameters, and the values of its other fields."""

    request: type
    parts: Mapping[str, _Part]
    fixed: Mapping[str, Any]


_Part = inspect.Parameter | _Group


def _read_part(name: str, annotation: Any, default: Any, without: Sequence[str]) -> _Part:
    if not (isinstance(annotation, type) and is_dataclass(annotation)):
        kind = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(name, kind, default=default, annotation=annotation)
    hints = get_type_hints(annotation, include_extras=True)
    defaults: dict[str, Any] = {}
    for field in fields(annotation):
        if default is not _EMPTY:
            defaults[field.name] = getattr(default, field.name)
        elif field.default_factory is not MISSING:
            defaults[field.name] = field.default_factory()
        else:
            defaults[field.name] = _EMPTY if field.default is MISSING else field.default
    parts = {
        name: _read_part(name, hints[name], value, without)
        for name, value in defaults.items()
        if name not in without
    }
    fixed = {name: value for name, value in defaults.items() if name in without}
    return _Group(annotation, parts, fixed)


def _list_leaves(part: _Part) -> Iterator[inspect.Parameter]:
    if isinstance(part, inspect.Parameter):
        yield part
        return
    for inner in part.parts.values():
        yield from _list_leaves(inner)


def _list_values(part: _Part, value: Any) -> Iterator[tuple[inspect.Parameter, Any]]:
    if isinstance(part, inspect.Parameter):
        yield part, value
        return
    for name, inner in part.parts.items():
        yield from _list_values(inner, getattr(value, name))


def _compile_builder(part: _Part) -> Callable[[Mapping[str, Any]], Any]:
    if isinstance(part, inspect.Parameter):
        return operator.itemgetter(part.name)
    request = part.request
    fixed = part.fixed
    builders = {name: _compile_builder(inner) for name, inner in part.parts.items()}
    if fixed:
        parts = tuple(builders.items())
        return lambda values: request(**fixed, **{name: build(values) for name, build in parts})
    # Each request is built like this, so arguments are positional, and read at once if possible.
    in_order = tuple(builders.values())
    if len(in_order) > 1 and not any(isinstance(inner, _Group) for inner in part.parts.values()):
        read_all = operator.itemgetter(*part.parts)
        return lambda values: request(*read_all(values))
    return lambda values: request(*[build(values) for build in in_order])


def sort_names(names: Iterable[str], order: Order) -> list[str]:
    others = [name for name in names if name not in order]
    before = order[: order.index(...)]
    after = order[order.index(...) + 1 :]
    return [*map(str, before), *others, *map(str, after)]


@dataclass(frozen=True)
class Declaration:
    """One operation of the HTTP interface, as a method of `interface.operations.Operations`
    declares it.

    The docstring of the method has the texts of the OpenAPI document: summary and description.

    Attributes:
        name: operation id, the key of every table.
        errors: error statuses, in addition to those of every operation and of a body.
        summaries: the type of the document with `view=summary`; None: it has no summaries.
        records: the type of the document by kind; None: it is that of the method.
        without: fields of the requests that are no parameters.
        order: the order of the parameters in the OpenAPI document.
        wait: seconds that it may take longer than others.
        kind: the kind of component that the operation is about.
    """

    name: str
    function: Callable[..., Any]
    route: Route
    tag: str
    status: int = 200
    errors: tuple[int, ...] = ()
    summaries: Any = None
    records: Mapping[ComponentKind, Any] | None = None
    without: tuple[str, ...] = ()
    order: Order = (...,)
    wait: float = 0.0
    kind: ComponentKind | None = None

    @functools.cached_property
    def method(self) -> Callable[..., Any]:
        """The method without its first arguments: the backend, and the kind."""
        bound = (None,) if self.kind is None else (None, self.kind)
        return functools.partial(self.function, *bound)

    @functools.cached_property
    def signature(self) -> Signature:
        return Signature(self.method, without=self.without, order=self.order)

    @functools.cached_property
    def record(self) -> Any:
        """The type of the document; None for no content, and for events."""
        if self.records is not None and self.kind is not None:
            return self.records[self.kind]
        from agentctl.records.document import Document

        result = get_type_hints(self.function)["return"]
        return get_args(result)[0] if get_origin(result) is Document else None

    def read_texts(self) -> tuple[str, str]:
        """Return the summary and the description, with the noun of the kind.

        A paragraph is filled again; a line break after a full stop stays.
        """
        text = inspect.getdoc(self.function) or ""
        if self.kind is not None:
            one = f"an {self.kind}" if self.kind == "agent" else f"a {self.kind}"
            text = text.replace("a component", one).replace("components", f"{self.kind}s")
        summary, _, description = text.partition("\n\n")
        parts = re.split(r"(\n\n|(?<=\.)\n)", description)
        filled = [textwrap.fill(text, _TEXT_WIDTH) if text.strip() else text for text in parts]
        return summary.rstrip("."), "".join(filled)


def operation(method: str, path: str, *, tag: str, **more: Any) -> Callable[[F], F]:
    """Declare a method as an operation, which `execute` executes unless a backend overrides it.

    Args:
        method, path: the HTTP method, and the path with parameters in braces.
        more: further attributes of `Declaration`.
    """

    def declare(function: F) -> F:
        route = Route(method, path)
        return dispatch(function, Declaration(function.__name__, function, route, tag, **more))

    return declare


def component_operation(name: str, method: str, path: str = "", **more: Any) -> Callable[[F], F]:
    """Declare a method as an operation of each kind of component; see `operation`.

    Args:
        name: the attribute of `records.routes.ComponentOperationIds` with the operation id.
        path: the rest of the path, after `/agents`.
    """

    def declare(function: F) -> F:
        declared = []
        for kind, names in KINDS.items():
            template = f"/{names.path}{path}".replace("{component_id}", f"{{{names.id_field}}}")
            operation_id = getattr(operation_ids(kind), name)
            route = Route(method, template)
            declared.append(
                Declaration(operation_id, function, route, names.tag, kind=kind, **more)
            )
        return dispatch(function, *declared)

    return declare


def dispatch(function: F, *declared: Declaration) -> F:
    """Return a method that calls `execute` with its name and its arguments by name."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        bound = signature.bind(self, *args, **options)
        bound.apply_defaults()
        _, *arguments = bound.arguments.items()
        return self.execute(function.__name__, dict(arguments))

    call.declared = declared  # type: ignore[attr-defined]
    return cast(F, call)


def find_declaration(method: Any, kind: ComponentKind | None) -> Declaration:
    """Return the declaration of a method, for a kind of component if it takes one."""
    declared: tuple[Declaration, ...] = method.declared
    return next(declaration for declaration in declared if declaration.kind == kind)


def list_declarations(operations: type) -> list[Declaration]:
    """Return the operations that the methods of a class and its bases declare, by kind."""
    members = [member for base in operations.__mro__ for member in vars(base).values()]
    methods = [member.declared for member in members if hasattr(member, "declared")]
    declared = list[Declaration]()
    for of_kinds, group in itertools.groupby(methods, lambda method: len(method) == len(KINDS)):
        rows = list(group)
        declared += itertools.chain.from_iterable(zip(*rows, strict=True) if of_kinds else rows)
    return declared
