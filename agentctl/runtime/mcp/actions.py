"""Tools of MCP servers as actions of a model."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from agentctl.config.mcp_servers import is_idempotent
from agentctl.light_dataclass import dataclass
from agentctl.runtime.mcp.failures import McpCallFailed, McpUnavailable
from agentctl.runtime.mcp.questions import McpAnswers, build_answers, build_questions
from agentctl.runtime.mcp.results import build_result_text
from agentctl.runtime.mcp.watched import WatchedCall
from agentctl.runtime.pauses import CallOutcome
from agentctl.runtime.transcript.conversation import Conversation
from agentctl.work.event_loop import wait_until_done
from agentctl.work.unstopped import abandon_task

if TYPE_CHECKING:
    from agentctl.records.components import ToolRecord
    from agentctl.runtime.context import RunEnvironment
    from agentctl.runtime.mcp.counters import CallEnd
    from agentctl.runtime.mcp.definitions import McpTool
    from agentctl.runtime.mcp.server import HostedServer
    from agentctl.runtime.mcp.values import McpUser

GRACE_SECONDS = 0.05
"""Time in which a cancelled call notifies the server before it is abandoned."""

STOP_SECONDS = 5.0
"""Time after a cancel in which a late result may arrive. A server that follows the protocol sends
nothing after a cancel, so its work is taken as stopped after this time."""

_log = logging.getLogger("agentctl.mcp")


@dataclass(frozen=True, slots=True)
class McpAction:
    """A tool of an MCP server as an action of a model, for the user of one run."""

    has_effects: ClassVar[bool] = True

    tool: McpTool
    server: HostedServer
    user: McpUser

    @property
    def idempotent(self) -> bool:
        # The hints of the server are not used: it may be wrong about itself, or malicious.
        return is_idempotent(self.server.spec, self.tool.listed_name)

    def record(self) -> ToolRecord:
        return self.tool.record()

    async def perform(
        self, arguments: Mapping[str, Any], conversation: Conversation
    ) -> CallOutcome:
        name, context = self.tool.name, conversation.context
        limit = min(self.server.spec.call_seconds, context.spec.tool_timeout)
        started = time.monotonic()
        end: CallEnd = "failed"
        try:
            kept = conversation.take_state()
            answers = build_answers(kept, context.leg) if kept is not None else None
            result = await self._call(arguments, context, limit, answers)
            if result.get("resultType") == "input_required":
                pause = await build_questions(self.tool, result, kept)
                end = "completed"
                return CallOutcome("", pause=pause)
            text = build_result_text(result, context.limits.tool_result_bytes)
            failed = bool(result.get("isError"))
            end = "failed" if failed else "completed"
            return CallOutcome(text, failed=failed)
        except McpCallFailed as failure:
            return CallOutcome(f"The tool {name} failed: {failure}", failed=True)
        except McpUnavailable as failure:
            end = "unavailable"
            text = f"The MCP server {self.tool.server} is not available: {failure}"
            return CallOutcome(text, failed=True)
        except TimeoutError:
            end = "timeout"
            return CallOutcome(f"The tool {name} did not end within {limit:g} seconds", failed=True)
        except asyncio.CancelledError:
            end = "cancelled"
            raise
        except Exception as error:
            _log.warning("tool %s failed", name, exc_info=error)
            return CallOutcome(f"The tool {name} failed", failed=True)
        finally:
            self.server.counters.count_call(end, time.monotonic() - started)

    async def _call(
        self,
        arguments: Mapping[str, Any],
        context: RunEnvironment,
        seconds: float,
        answers: McpAnswers | None,
    ) -> dict[str, Any]:
        watched = WatchedCall()
        call = self.server.call(self.tool.listed_name, arguments, self.user, watched, answers)
        task = asyncio.create_task(call, name=f"tool {self.tool.name}")
        unstopped = context.transcript.unstopped
        try:
            done, _ = await asyncio.wait({task}, timeout=seconds)
            if not done:
                raise TimeoutError
        except (asyncio.CancelledError, TimeoutError):
            abandon_task(task)
            stopped = watched.expect_stop(STOP_SECONDS)
            try:
                await wait_until_done({task}, GRACE_SECONDS)
            finally:
                unstopped.add(task, self.tool.name)
                if stopped is not None:
                    unstopped.add(stopped, self.tool.name)
            raise
        if task.cancelled():
            raise McpUnavailable("the call was interrupted")
        return task.result()
