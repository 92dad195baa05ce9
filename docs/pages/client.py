"""`client.md`: the methods of the Python client, from `agentctl.client`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, get_type_hints

from pages.markdown import code, made_from, sentence, table

__all__ = ["page"]

_INTRODUCTION = f"""# Methods of the Python client

{made_from("agentctl/client")}

The methods of `agentctl.client.Client`. Those of `AsyncClient` are the same: coroutines, and
asynchronous generators in place of the iterators. [Client libraries](../client.md) has the
guarantees.

Records are dictionaries whose types are in `agentctl.records`. Times in arguments are microseconds
since 1970 in UTC. A `run` is an id, or the record or the event data of a run.
"""


def page() -> str:
    """Build `client.md`."""
    from agentctl.client import Client, resources

    lines = [_INTRODUCTION]
    with Client("http://127.0.0.1") as client:
        for name, resource in vars(client).items():
            if not name.startswith("_"):
                about = sentence(inspect.getdoc(type(resource)) or "")
                lines += [f"## client.{name}", "", about, ""]
                lines += [*table(("method", "meaning"), _rows(resource)), ""]
    options = get_type_hints(resources.RunOptions)
    about = " ".join((inspect.getdoc(resources.RunOptions) or "").split())
    lines += ["## Options of a run", "", about, ""]
    lines += [", ".join(map(code, options)) + "."]
    return "\n".join(lines) + "\n"


def _rows(resource: Any) -> Iterator[tuple[str, str]]:
    from agentctl.client.calls import Method, StreamMethod

    for name, member in vars(type(resource)).items():
        if isinstance(member, Method | StreamMethod):
            method = getattr(resource, name)
            text = " ".join((inspect.getdoc(method) or "").split())
            first = re.split(r"(?<=\.) ", text)[0]
            yield code(f"{name}({', '.join(_parameters(method))})"), first


def _parameters(method: Any) -> Iterator[str]:
    for parameter in inspect.signature(method).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            yield f"**{parameter.name}"
        elif parameter.default is inspect.Parameter.empty:
            yield parameter.name
        else:
            yield f"{parameter.name}=…"
