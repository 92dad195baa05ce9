"""Options of commands that take a request, from the declarations of its fields.

A command such as `async def list_sessions(target, filter: SessionFilter)` has an option for each
field of the request with an `agentctl.interface.declarations.Option`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from inspect import Parameter
from typing import Annotated, Any, get_args

from agentctl.cli.durations import microseconds_ago
from agentctl.cli.ids import ShortId
from agentctl.cli.options import build_option
from agentctl.interface.declarations import Option, Query, Signature, find_declared
from agentctl.records.times import ParsedTimestamp


class CommandSignature:
    """The parameters of a command, and the arguments of its function.

    Args:
        function: the function, whose first parameter is the target.
        without, order: as for `agentctl.interface.declarations.Signature`.

    Attributes:
        parameters: the parameters of the command, for Typer.
    """

    def __init__(
        self,
        function: Callable[..., Awaitable[None]],
        without: Sequence[str],
        order: tuple[Any, ...],
    ) -> None:
        self._signature = Signature(partial(function, None), without=without, order=order)
        self._options = {
            each.name: (each, option)
            for each in self._signature.parameters
            if (option := find_declared(each.annotation, Option))
        }
        self.parameters = [
            self._build_parameter(each)
            for each in self._signature.parameters
            if each.name in self._options or find_declared(each.annotation, Query) is None
        ]

    def build_arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Build the arguments of the function from the values of the parameters.

        Raises:
            UsageError: an age is not valid.
        """
        fields = {each.name: each.default for each in self._signature.parameters}
        fields |= {name: value for name, value in values.items() if name in fields}
        for parameter, option in self._options.values():
            value = values[_name_of(option)]
            if _is_time(parameter):
                value = microseconds_ago(option.flag, value)
            elif parameter.default == ():
                value = tuple(value or ())
            fields[parameter.name] = value
        return self._signature.build_arguments(fields)

    def _build_parameter(self, parameter: Parameter) -> Parameter:
        if parameter.name not in self._options:
            return parameter
        _, option = self._options[parameter.name]
        marks = () if option.noun is None else (ShortId(option.noun),)
        plain, default = get_args(parameter.annotation)[0], parameter.default
        if plain == tuple[str, ...]:
            plain, default = list[str] | None, None
        elif _is_time(parameter):
            plain = str | None
        annotation: Any = Annotated[(plain, *marks, build_option(parameter.annotation))]
        return parameter.replace(name=_name_of(option), annotation=annotation, default=default)


def _name_of(option: Option) -> str:
    return option.flag.removeprefix("--").replace("-", "_")


def _is_time(parameter: Parameter) -> bool:
    return ParsedTimestamp in get_args(get_args(parameter.annotation)[0])
