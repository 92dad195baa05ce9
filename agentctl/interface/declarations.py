"""Declarations of parameters and operations, and what follows from them.

The fields of `agentctl.interface.requests` and the arguments of `interface.operations.Operations`
declare where they are in an HTTP request: `limit: Annotated[int, Query("Maximum number of results",
ge=1)] = 20`. A field without a declaration is in the body. `Declaration` describes one operation
with its method, path, requirement, parameters, body and result. The policy decides by it, the
server reads requests with it, the remote backend writes them, the audit log names its resource, and
the OpenAPI document and the options of list commands show it.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import operator
import re
import textwrap
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.routes import Route, operation_ids
from agentctl.records.times import ParsedTimestamp

if TYPE_CHECKING:
    from agentctl.interface.requirements import OfComponent, Requirement
    from agentctl.interface.responses import Responses

Order = tuple[str | EllipsisType, ...]
"""Names of parameters in an order; an ellipsis represents all parameters without a name in it."""

_TEXT_WIDTH = 97
"""Maximum number of characters of a line of a description in the OpenAPI document."""

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_EMPTY = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Path:
    """Declaration of a path parameter."""

    description: str

    noun: str | None = None
    """The resource that it names in an audit entry; None for a component, named by its kind."""


@dataclass(frozen=True, slots=True)
class Query:
    """Declaration of a query parameter, with the bounds that the OpenAPI document shows."""

    description: str
    ge: float | None = None
    le: float | None = None
    min_length: int | None = None
    max_length: int | None = None

    max_items: int | None = None
    """Maximum number of values of a parameter that may be repeated.

    A tuple without it is one text with commas.
    """


@dataclass(frozen=True, slots=True)
class Header:
    """Declaration of a header field."""

    description: str

    alias: str
    """The name of the field."""

    ge: float | None = None
    le: float | None = None
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class Body:
    """Declaration of the body of an operation."""

    record: type
    """The typed dictionary of its fields, one of `agentctl.interface.bodies`."""

    form: bool = False
    """True if a form, urlencoded or multipart, is accepted as well as JSON."""

    optional: bool = False
    """True if an empty body is an empty object."""


@dataclass(frozen=True, slots=True)
class Option:
    """Declaration of an option of commands that take a request."""

    flag: str
    """The option: `--user`."""

    metavar: str | None
    """The name of its value in the help; None for a flag without a value."""

    help: str

    noun: Literal["run", "session"] | None = None
    """The kind of record that it names by its id, for completion and short ids."""

    any_case: bool = False
    """True to accept a word in any case."""


@dataclass(frozen=True, slots=True)
class Matches:
    """Declaration of a filter of runs that matches runs of some statuses only.

    It is refused together with another status. Commands on live runs do not have it.
    """

    statuses: Literal["ended", "failed"]


@functools.cache
def list_status_filters(request: type) -> Mapping[str, str]:
    """Return the filters of a request with a `Matches`: its statuses, by the name of the filter.

    They are in the order of their names.
    """
    statuses = dict[str, str]()
    for name, hint in sorted(get_type_hints(request, include_extras=True).items()):
        matches = find_declared(hint, Matches)
        if matches is not None:
            statuses[name] = matches.statuses
    return statuses


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
        order: the order of the parameters, if it is not the order of the arguments and fields.
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

        leaves = dict[str, inspect.Parameter]()
        for part in self._parts.values():
            for leaf in _list_leaves(part):
                leaves[leaf.name] = leaf
        self.parameters = [leaves[name] for name in sort_names(leaves, order)]
        """The parameters; their names are unique."""

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
    """A request as an argument."""

    request: type

    parts: Mapping[str, _Part]
    """Its fields that are parameters, by name."""

    fixed: Mapping[str, Any]
    """The values of its other fields."""


_Part = inspect.Parameter | _Group
"""An argument of a function, or a field of a request."""


def _read_part(name: str, annotation: Any, default: Any, without: Sequence[str]) -> _Part:
    """Return a parameter; for a request its fields, with the defaults of `default` if it is one."""
    if not (isinstance(annotation, type) and is_dataclass(annotation)):
        kind = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(name, kind, default=default, annotation=annotation)

    defaults: dict[str, Any] = {}
    for field in fields(annotation):
        if default is not _EMPTY:
            defaults[field.name] = getattr(default, field.name)
        elif field.default_factory is not MISSING:
            defaults[field.name] = field.default_factory()
        elif field.default is not MISSING:
            defaults[field.name] = field.default
        else:
            defaults[field.name] = _EMPTY

    hints = get_type_hints(annotation, include_extras=True)
    parts = dict[str, _Part]()
    fixed = dict[str, Any]()
    for field_name, field_default in defaults.items():
        if field_name in without:
            fixed[field_name] = field_default
        else:
            parts[field_name] = _read_part(field_name, hints[field_name], field_default, without)
    return _Group(annotation, parts, fixed)


def _list_leaves(part: _Part) -> Iterator[inspect.Parameter]:
    """Yield the parameters of a part, also of the requests in it."""
    if isinstance(part, inspect.Parameter):
        yield part
        return
    for inner_part in part.parts.values():
        yield from _list_leaves(inner_part)


def _list_values(part: _Part, argument: Any) -> Iterator[tuple[inspect.Parameter, Any]]:
    """Yield the parameters of a part with their values in an argument of the function."""
    if isinstance(part, inspect.Parameter):
        yield part, argument
        return
    for name, inner_part in part.parts.items():
        yield from _list_values(inner_part, getattr(argument, name))


def _compile_builder(part: _Part) -> Callable[[Mapping[str, Any]], Any]:
    """Return a function that builds an argument from the values of all parameters."""
    if isinstance(part, inspect.Parameter):
        return operator.itemgetter(part.name)

    request = part.request
    fixed = part.fixed
    builders = {name: _compile_builder(inner_part) for name, inner_part in part.parts.items()}
    if fixed:
        named_builders = tuple(builders.items())
        return lambda values: request(
            **fixed, **{name: build(values) for name, build in named_builders}
        )

    # Each request is built like this, so arguments are positional, and read at once if possible.
    has_groups = any(isinstance(inner_part, _Group) for inner_part in part.parts.values())
    if len(builders) > 1 and not has_groups:
        read_all = operator.itemgetter(*part.parts)
        return lambda values: request(*read_all(values))

    builders_in_order = tuple(builders.values())
    return lambda values: request(*[build(values) for build in builders_in_order])


def sort_names(names: Iterable[str], order: Order) -> list[str]:
    """Return names in an order; names that it does not have stand at its ellipsis."""
    unordered_names = [name for name in names if name not in order]
    before = order[: order.index(...)]
    after = order[order.index(...) + 1 :]
    return [*map(str, before), *unordered_names, *map(str, after)]


ResultForm = Literal["document", "nothing", "events", "bytes"]
"""Content of a successful response: a document, none, server-sent events, or bytes of a file."""


@dataclass(frozen=True)
class Declaration:
    """One operation of the HTTP interface, as a method of `interface.operations.Operations`
    declares it.

    The docstring of the method has the texts of the OpenAPI document: summary and description.
    """

    name: str
    """The operation id, the key of every table."""

    function: Callable[..., Any]
    """The method of its family, with its parameters and its result."""

    route: Route

    needs: Requirement
    """Requirement for the caller (docs/contract.md "Routes")."""

    tag: str
    """The group of the operation in the OpenAPI document."""

    body: Body | None = None
    """The body of its requests; None for no body, or for the bytes of a file."""

    status: int = 200
    """The status of a successful response with a document."""

    errors: tuple[int, ...] = ()
    """Further error statuses, next to the statuses of every operation and of a body."""

    responses: Responses | None = None
    """Further responses of the OpenAPI document; they replace responses that follow from the
    result."""

    accepted_status: int | None = None
    """An error status whose response has the document all the same."""

    summaries: Any = None
    """The type of the document with `view=summary`; None if it has no summaries."""

    records: Mapping[ComponentKind, Any] | None = None
    """The type of the document by kind; None if the method has it."""

    without: tuple[str, ...] = ()
    """Fields of the requests that are no parameters."""

    order: Order = (...,)
    """The order of the parameters in the OpenAPI document."""

    wait: float = 0.0
    """Seconds that it may take longer than other operations."""

    is_read: bool = False
    """True for a POST that changes nothing: the audit log records it as a read."""

    is_repeatable: bool = False
    """True for a change that a client may send again: the second request changes nothing more."""

    finds_run: bool = False
    """True if an unknown run is a 404 although the request is invalid, by the id of the run alone.

    Resources in the paths of sessions, components, memories and files are always found first.
    """

    kind: ComponentKind | None = None
    """The kind of component that the operation is about."""

    @property
    def address(self) -> str:
        """The family and the name of the method: `sessions.get`."""
        return find_address(self.function)

    @property
    def changes_data(self) -> bool:
        """True for an operation that the audit log always records."""
        return self.route.method != "GET" and not self.is_read

    @functools.cached_property
    def resource_nouns(self) -> dict[str, str]:
        """The nouns, in an audit entry, of the resources that the path names, by path parameter."""
        nouns: dict[str, str] = {}
        if self.kind is not None:
            nouns[KINDS[self.kind].id_field] = self.kind
        for parameter in self.signature.parameters:
            place = find_declared(parameter.annotation, Path)
            if place is not None and place.noun is not None:
                nouns[parameter.name] = place.noun
        return nouns

    @functools.cached_property
    def result_form(self) -> ResultForm:
        """The content of a successful response, from the return type of the method."""
        result = get_type_hints(self.function)["return"]
        if get_origin(result) is AsyncIterator:
            return "bytes" if get_args(result) == (bytes,) else "events"
        return "nothing" if result is type(None) else "document"

    @functools.cached_property
    def method(self) -> Callable[..., Any]:
        """The method without its first arguments: the backend, and the kind."""
        bound = (None,) if self.kind is None else (None, self.kind)
        return functools.partial(self.function, *bound)

    @functools.cached_property
    def signature(self) -> Signature:
        """The parameters of the operation, with the fields of its requests."""
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
            singular = f"an {self.kind}" if self.kind == "agent" else f"a {self.kind}"
            text = text.replace("a component", singular).replace("components", f"{self.kind}s")

        summary, _, description = text.partition("\n\n")
        # The breaks between paragraphs and sentences are parts as well.
        parts = re.split(r"(\n\n|(?<=\.)\n)", description)
        filled_parts = [
            textwrap.fill(part, _TEXT_WIDTH) if part.strip() else part for part in parts
        ]
        return summary.rstrip("."), "".join(filled_parts)


Execute = Callable[[Any, Mapping[str, Any]], Any]
"""Executes a declared method with its arguments by name; returns an awaitable or an iterator."""


def refuse_operation(method: Any, arguments: Mapping[str, Any]) -> Any:
    """Execute no operation: for a backend that has a method for each of its operations."""
    raise NotImplementedError(method.__qualname__)


class Family:
    """The operations on one noun, as one caller can use them: `operations.sessions.get("s1")`.

    A subclass declares them: `SessionsFamily` is `operations.sessions`. A backend overrides them,
    or executes all of them by one function.
    """

    _execute: Execute = staticmethod(refuse_operation)

    def __init__(self, execute: Execute) -> None:
        self._execute = execute


def find_address(method: Any) -> str:
    """Return the family and the name of a declared method: `sessions.get`."""
    family, _, name = method.__qualname__.rpartition(".")
    return f"{family.removesuffix('Family').lower()}.{name}"


def operation(
    name: str, method: str, path: str, *, needs: Requirement, tag: str, **more: Any
) -> Callable[[F], F]:
    """Declare a method of a family as an operation.

    Args:
        name: the operation id.
        method, path: the HTTP method, and the path with parameters in braces.
        more: further attributes of `Declaration`.
    """

    def declare(function: F) -> F:
        route = Route(method, path)
        declared = Declaration(name, function, route, needs, tag, **more)
        return dispatch(function, declared)

    return declare


def component_operation(
    name: str, method: str, path: str = "", *, needs: OfComponent, **more: Any
) -> Callable[[F], F]:
    """Declare a method of a family as an operation of each kind of component; see `operation`.

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
            scope = needs.find_scope(kind)
            declared.append(
                Declaration(operation_id, function, route, scope, names.tag, kind=kind, **more)
            )
        return dispatch(function, *declared)

    return declare


def dispatch(function: F, *declared: Declaration) -> F:
    """Return a method that its backend executes with its arguments by name."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        bound = signature.bind(self, *args, **options)
        bound.apply_defaults()
        _, *arguments = bound.arguments.items()
        return self._execute(call, dict(arguments))

    call.declared = declared  # type: ignore[attr-defined]
    return cast(F, call)


def stream_of(operation: Any) -> Callable[[F], F]:
    """Declare a method as another form of an operation: with `stream` it responds with events."""

    def declare(function: F) -> F:
        call = dispatch(function)
        call.streams = operation.declared  # type: ignore[attr-defined]
        return call

    return declare


def find_declaration(method: Any, kind: ComponentKind | None) -> Declaration:
    """Return the declaration of a method, for a kind of component if it takes one.

    A stream has the declaration of its operation (`stream_of`).
    """
    declared: tuple[Declaration, ...] = method.declared or method.streams
    return next(declaration for declaration in declared if declaration.kind == kind)


def list_declarations(families: Iterable[type[Family]]) -> list[Declaration]:
    """Return the operations that the methods of families declare, in their order and by kind."""
    # The declarations of each method: one, or one for each kind of component.
    rows = list[tuple[Declaration, ...]]()
    for family in families:
        for member in vars(family).values():
            if hasattr(member, "declared"):
                rows.append(member.declared)

    # Neighbours with kinds are ordered by kind: all operations of agents, then those of teams.
    declarations = list[Declaration]()
    for has_kinds, group in itertools.groupby(rows, lambda row: len(row) == len(KINDS)):
        neighbours = list(group)
        if has_kinds:
            for declarations_of_kind in zip(*neighbours, strict=True):
                declarations += declarations_of_kind
        else:
            for row in neighbours:
                declarations += row
    return declarations
