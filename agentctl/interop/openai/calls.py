"""Tools of the caller in the forms of OpenAI's API: definitions, calls, results and approvals.

The id of a call is that of its approval, so a result finds its run without any state here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from agentctl.interop.openai.failures import RefusedParameter
from agentctl.interop.openai.parameters import OpenAIParameters, check_type, get_public_name
from agentctl.records.run_spec import REQUIRED
from agentctl.records.text import find_json_problem, is_unique_id, replace_unstorable
from agentctl.runtime.json_values import NOT_AN_OBJECT, find_large_integer

APPROVAL_SERVER = "agentctl"
"""The label of the server of an approval request: no server of MCP asks here."""

# The beginnings of ids: of a call, of the output item with a call, and of an approval request.
_CALL = "call_"
_FUNCTION_ITEM = "fc_"
_APPROVAL = "mcpr_"

_FIELDS = ("name", "description", "parameters")
"""The members of the definition of a function."""

MAXIMUM_FOREIGN = 32
"""Maximum number of tools of other types that a response names as ignored."""


class RequestTools(NamedTuple):
    """The tools of a request."""

    tools: list[dict[str, Any]] | None = None
    """`client_tools` of the run."""

    choice: str | None = None
    """`tool_choice` of the run."""

    one_by_one: bool = False
    """True to hand out one call at a time: `parallel_tool_calls` is false."""


class CallResult(NamedTuple):
    """The result of a call that was handed out, or the answer to an approval request."""

    approval_id: str
    """Its approval; empty if the call was not handed out here."""

    at: str
    """The place in the request, for errors."""

    result: str | None
    """The result as text; None for an answer to an approval request."""

    is_approved: bool = False
    """The answer to an approval request."""

    note: str | None = None
    """The reason for this answer, or None."""


class CallNotFound(RefusedParameter):
    """A result of a call that does not exist, or that the caller does not see (400)."""

    def __init__(self, at: str) -> None:
        super().__init__(
            f"{at}: no call with this id waits for a result of yours", at, "tool_call_not_found"
        )


def read_tools(parameters: OpenAIParameters, *, nested: bool) -> RequestTools:
    """Return the tools of a request and their options.

    Only functions are tools of a caller. Tools of other types are executed by their vendor: they
    are left out, and named as ignored.

    Args:
        nested: True for chat completions, where a tool has its name in a member `function`.
    """
    tools = list[dict[str, Any]]()
    foreign_tools = dict[str, None]()
    for index, item in enumerate(parameters.get("tools", list) or []):
        at = f"tools[{index}]"
        tool = check_type(item, dict, at)
        kind = check_type(tool.get("type", "function"), str, f"{at}.type")
        if kind == "function":
            tools.append(_read_tool(tool, at, nested))
        else:
            foreign_tools[_describe_foreign(kind, tool.get("name"))] = None
    parameters.ignored += list(foreign_tools)[:MAXIMUM_FOREIGN]

    one_by_one = parameters.get("parallel_tool_calls", bool) is False
    choice = parameters.get_any("tool_choice")
    if choice == "none":
        return RequestTools()
    if choice in (None, "auto"):
        return RequestTools(tools or None, None, one_by_one)
    if not tools:
        raise RefusedParameter("tool_choice needs a tool of the type function", "tool_choice")
    return RequestTools(tools, _read_choice(choice, nested), one_by_one)


def _read_choice(choice: object, nested: bool) -> str:
    """Return `required`, or the name of the function that the model has to call."""
    if choice == REQUIRED:
        return REQUIRED

    if isinstance(choice, dict) and choice.get("type") == "function":
        function = choice.get("function") if nested else choice
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str):
            return name

    raise RefusedParameter(
        "tool_choice must be auto, none, required, or name one function; tools of other types"
        " are left out",
        "tool_choice",
    )


def _describe_foreign(kind: str, name: object) -> str:
    """Return `tools.TYPE`, or `tools.TYPE.NAME` for a tool with a name."""
    public_name = get_public_name(name) if isinstance(name, str) else None
    parts = ["tools", get_public_name(kind) or "other"]
    if public_name:
        parts.append(public_name)
    return ".".join(parts)


def _read_tool(tool: Mapping[str, Any], at: str, nested: bool) -> dict[str, Any]:
    function = check_type(tool.get("function"), dict, f"{at}.function") if nested else tool
    known_members = {*_FIELDS, "strict", "type"}

    for name, value in function.items():
        if name not in known_members and value is not None:
            raise RefusedParameter(f"{at} has a member that is not supported", at)

    return {name: function[name] for name in _FIELDS if function.get(name) is not None}


def format_call_id(approval: Mapping[str, Any]) -> str:
    """Return the id of a call that is handed out."""
    return _CALL + _pack(approval)


def _pack(approval: Mapping[str, Any]) -> str:
    return str(approval["approval_id"]).replace("-", "")


def _unpack(text: object, prefix: str, at: str) -> str:
    """Return the id of the approval in the id of a call; CallNotFound if it has another form."""
    packed_id = check_type(text, str, at)
    if not packed_id.startswith(prefix):
        raise CallNotFound(at)

    digits = packed_id.removeprefix(prefix)
    approval_id = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    if not is_unique_id(approval_id):
        raise CallNotFound(at)
    return approval_id


def read_call_result(call_id: object, text: str, at: str) -> CallResult:
    """Return the result of a call."""
    try:
        approval_id = _unpack(call_id, _CALL, at)
    except CallNotFound:
        # The result of a call of another agent, in a history.
        approval_id = ""
    return CallResult(approval_id, at, text)


def read_item_reference(item_id: object, at: str) -> str:
    """Return the id of the approval of an output item `function_call`."""
    return _unpack(item_id, _FUNCTION_ITEM, at)


def read_approval_response(item: Mapping[str, Any], at: str) -> CallResult:
    """Return the answer to an approval request, an item `mcp_approval_response`."""
    where = f"{at}.approval_request_id"
    approve = check_type(item.get("approve"), bool, f"{at}.approve")
    reason = item.get("reason")
    note = None if reason is None else check_type(reason, str, f"{at}.reason")
    approval_id = _unpack(item.get("approval_request_id"), _APPROVAL, where)
    return CallResult(approval_id, where, None, approve, note)


def select_handed(
    waiting: Sequence[Mapping[str, Any]], *, one_by_one: bool, with_approvals: bool
) -> list[Mapping[str, Any]]:
    """Return the approvals that a response can hand to its caller.

    The list is empty if one of the waiting approvals is for another person, or of a kind that the
    interface cannot show: the run would still wait after the caller has answered the rest.

    Args:
        waiting: all approvals that the run waits for.
        one_by_one: True to hand out only the first one.
        with_approvals: True if the interface has requests for approvals.
    """
    kinds = ("external", "approval") if with_approvals else ("external",)
    for approval in waiting:
        if approval["policy"] != "user" or approval["kind"] not in kinds:
            return []
    return list(waiting[:1]) if one_by_one else list(waiting)


def build_tool_calls(approvals: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return `tool_calls` of a message of chat completions."""
    return [
        {
            "id": format_call_id(approval),
            "type": "function",
            "function": {"name": approval["tool_name"], "arguments": _dump_arguments(approval)},
        }
        for approval in approvals
    ]


def build_call_item(approval: Mapping[str, Any]) -> dict[str, Any]:
    """Return the output item of a response that hands out a call."""
    name = approval["tool_name"]
    arguments = _dump_arguments(approval)

    if approval["kind"] == "approval":
        return {
            "id": _APPROVAL + _pack(approval),
            "type": "mcp_approval_request",
            "server_label": APPROVAL_SERVER,
            "name": name,
            "arguments": arguments,
        }

    return {
        "id": _FUNCTION_ITEM + _pack(approval),
        "type": "function_call",
        "status": "completed",
        "call_id": format_call_id(approval),
        "name": name,
        "arguments": arguments,
    }


def _dump_arguments(approval: Mapping[str, Any]) -> str:
    return orjson.dumps(approval["arguments"]).decode()


def read_arguments(text: object, at: str) -> dict[str, Any]:
    """Return the arguments of an earlier call, a JSON text.

    They are an empty object if the text is not a JSON object, or cannot be stored.
    """
    json_text: str = check_type(text or "{}", str, at)
    if find_large_integer(json_text) is not None:
        # The model gets its call as it has sent it.
        return {NOT_AN_OBJECT: replace_unstorable(json_text)}

    try:
        arguments = orjson.loads(json_text)
    except orjson.JSONDecodeError:
        return {}
    if not isinstance(arguments, dict) or find_json_problem(arguments):
        return {}
    return arguments
