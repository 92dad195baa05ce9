"""Options of commands that take a request or a group of options, from the fields of its class.

A command such as `async def list_sessions(target, out: ListOutput, filter: SessionFilter)` has an
option for each field of the request with an `agentctl.interface.declarations.Option`, and those of
`ListOutput`, which come last.
"""

from __future__ import annotations

import functools
import inspect
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from inspect import Parameter
from typing import Annotated, Any, cast, get_args

import typer
from typer.models import ParameterInfo

from agentctl.cli.durations import microseconds_ago
from agentctl.cli.ids import ShortId
from agentctl.cli.parameters import build_option
from agentctl.cli.show.output import CommandOutput, resolve_format
from agentctl.interface.declarations import Option, Query, Signature, find_declared, is_time

_LAST = ("all_pages", "watch", "every", "output", "fields")
"""The last options of a command that shows a result, unless its `order` names the last options."""


class CommandSignature:
    """The parameters of a command, and the arguments of its function.

    Args:
        function: the function, without the parameter for the target.
        without, order: as for `agentctl.interface.declarations.Signature`.

    Attributes:
        parameters: the parameters of the command, for Typer.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        without: Sequence[str] = (),
        order: tuple[Any, ...] = (...,),
    ) -> None:
        self._signature = Signature(function, without=without, order=order)
        self._options: dict[str, tuple[Parameter, Option]] = {}
        for parameter in self._signature.parameters:
            option = find_declared(parameter.annotation, Option)
            if option:
                self._options[parameter.name] = (parameter, option)

        # A field of a request without an option, such as a cursor of the API, is no parameter.
        self.parameters = [
            self._build_parameter(parameter)
            for parameter in self._signature.parameters
            if parameter.name in self._options or find_declared(parameter.annotation, Query) is None
        ]

        has_output = any(parameter.name == "output" for parameter in self.parameters)
        moved_names = _LAST if has_output and order[-1] is ... else ()
        last_names = [name for name in moved_names if name not in order]
        self.parameters.sort(
            key=lambda parameter: (
                last_names.index(parameter.name) if parameter.name in last_names else -1
            )
        )

    def build_arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Build the arguments of the function from the values of the parameters."""
        fields = {parameter.name: parameter.default for parameter in self._signature.parameters}
        fields |= {name: value for name, value in values.items() if name in fields}

        for parameter, option in self._options.values():
            value = values[_name_of(option)]
            if is_time(parameter.annotation):
                value = microseconds_ago(option.flag, value)
            elif parameter.default == ():
                value = tuple(value or ())
            fields[parameter.name] = value

        arguments = self._signature.build_arguments(fields)
        for argument in arguments.values():
            if isinstance(argument, CommandOutput):
                resolve_format(argument.output)
        return arguments

    def _build_parameter(self, parameter: Parameter) -> Parameter:
        """Return the parameter of the command for a field of a request, or for itself."""
        if parameter.name not in self._options:
            return parameter

        _, option = self._options[parameter.name]
        marks = () if option.noun is None else (ShortId(option.noun),)
        plain_type = get_args(parameter.annotation)[0]
        default = parameter.default
        if plain_type == tuple[str, ...]:
            # Typer repeats an option whose type is a list.
            plain_type = list[str] | None
            default = None
        elif is_time(parameter.annotation):
            plain_type = str | None

        annotation: Any = Annotated[(plain_type, *marks, build_option(parameter.annotation))]
        return parameter.replace(name=_name_of(option), annotation=annotation, default=default)


def expand_options(function: Any) -> Any:
    """Return a command with the parameters of a function, and the options of its groups.

    A coroutine function is executed with `run_until_done`.
    """
    if hasattr(function, "__signature__"):
        # `with_target` did it.
        return function

    own = CommandSignature(function)

    @functools.wraps(function)
    def command(**values: Any) -> Any:
        result = function(**own.build_arguments(values))
        if inspect.iscoroutine(result):
            run_until_done(result)

    declare_parameters(command, own.parameters)
    return command


def run_until_done(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end. SIGINT, SIGTERM and SIGHUP cancel it, so that it closes its resources.

    Raises:
        KeyboardInterrupt: SIGINT was received.
        typer.Exit: SIGTERM or SIGHUP was received; the code is 128 plus the signal number.
    """
    import asyncio

    from agentctl.work.event_loop import (
        build_loop_class,
        handle_signals,
        run_event_loop,
        stop_signals,
    )

    received: list[int] = []

    async def interruptible() -> None:
        def stop(number: int) -> None:
            received.append(number)
            task.cancel()

        task = cast("asyncio.Task[None]", asyncio.current_task())
        # The event loop itself handles SIGINT.
        stopping = [number for number in stop_signals() if number != signal.SIGINT]
        with handle_signals({number: functools.partial(stop, number) for number in stopping}):
            # SIGINT cancels this task only once the event loop waits for it.
            await asyncio.sleep(0)
            await work

    try:
        loop_class = build_loop_class(asyncio.SelectorEventLoop)
        run_event_loop(interruptible(), loop_factory=loop_class)
    except asyncio.CancelledError:
        raise typer.Exit(128 + received[0] if received else 1) from None


def declare_parameters(command: Any, parameters: Sequence[Parameter]) -> None:
    """Set the parameters of a command, which Typer reads from these two attributes."""
    for parameter in parameters:
        info = parameter.default
        if isinstance(info, ParameterInfo) and info.default is ...:
            # Not required: `option()` and `flag()` leave the default out.
            info.default = False if parameter.annotation is bool else None

    command.__signature__ = inspect.Signature(parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


def _name_of(option: Option) -> str:
    return option.flag.removeprefix("--").replace("-", "_")
