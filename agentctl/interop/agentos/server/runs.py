"""Runs, messages and tool calls in the shapes of AgentOS."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from agentctl.interop.agentos.mapping import write_messages, write_tool
from agentctl.interop.agentos.server.directory import Directory, get_kind
from agentctl.interop.agentos.server.pauses import write_pause, write_workflow_pause
from agentctl.interop.agentos.values import Built, to_seconds, write_counters
from agentctl.records.kinds import KINDS
from agentctl.records.times import parse_rfc3339

Run = Mapping[str, Any]

STEP_SUMMARY = ("step_name", "executor_type", "executor_name", "metrics")
"""Members of a step's result that the metrics of a workflow run repeat."""

PREVIEW_CHARACTERS = 200
"""Maximum number of characters of `content_preview`."""

_LISTS = {"image": "images", "audio": "audios"}
"""The lists of files by the first part of their media types; other files are in `files`."""

_NO_MEDIA: Built = {"images": [], "videos": [], "audio": [], "files": []}


def build_content(run: Run) -> Any:
    """Return the content of a run: its result, or the message of its failure."""
    if run["status"] == "ERROR" and run["error"]:
        return run["error"]["detail"]
    if run["output"] is not None:
        return run["output"]
    if run["status"] == "CANCELLED" and not run["content"]:
        return f"Run {run['run_id']} was cancelled"
    return run["content"]


def build_version(version: str) -> Built:
    """Return the member of the metadata of a run with the version of its component."""
    return {"agentctl": {"version": version}}


def _build_metadata(run: Run) -> Built | None:
    version = {} if run["version"] is None else build_version(run["version"])
    return {**(run["metadata"] or {}), **version} or None


def _build_media(run: Run) -> Built:
    """Return the files of the message of a run, as lists of images, sounds and other files."""
    media: Built = {}

    for file in run["files"]:
        kind = file["media_type"].partition("/")[0]
        entry = {
            "id": file["file_id"],
            "url": f"/sessions/{run['session_id']}/media/{file['file_id']}",
            "mime_type": file["media_type"],
            "filename": file["name"],
            "size": file["size"],
        }

        media.setdefault(_LISTS.get(kind, "files"), []).append(entry)

    return media


class RunBuilder:
    """Builds the runs of a tree or of a session.

    Args:
        runs: the records of the contract, each after its parent; background work is left out.
        state: the state of the session, None if it is not known.
        approvals: what the runs wait or waited for.
    """

    def __init__(
        self,
        directory: Directory,
        runs: Iterable[Run],
        state: Any = None,
        approvals: Iterable[Run] = (),
    ) -> None:
        self._directory = directory
        self._runs = [run for run in runs if run["purpose"] is None]
        self._state = state
        self._pending = [approval for approval in approvals if approval["status"] == "pending"]

        self._by_id = {run["run_id"]: run for run in self._runs}
        self._children: dict[str | None, list[Run]] = {}
        for run in self._runs:
            parent = run["parent_run_id"]
            self._children.setdefault(parent if parent in self._by_id else None, []).append(run)

    @property
    def is_starting(self) -> bool:
        """True if there are runs, and every run of the top level is waiting to begin or at work."""
        roots = self._children.get(None, ())
        return bool(roots) and all(run["status"] in ("PENDING", "RUNNING") for run in roots)

    def build_response(self, run: Run) -> Built:
        """Return a run as the response to its start, without members that are null."""
        kind = get_kind(run)
        component_id = run[KINDS[kind].id_field]
        content = build_content(run)

        built: Built = {
            "run_id": run["run_id"],
            KINDS[kind].id_field: component_id,
            f"{kind}_name": self._directory.get_name(kind, component_id),
            "session_id": run["session_id"],
            "user_id": run["user_id"],
            "parent_run_id": run["parent_run_id"],
            "content": content,
            "content_type": "str" if content is None else type(content).__name__,
            "session_state": self._state,
            "created_at": to_seconds(run["created_at"]),
            "status": run["status"],
            "reasoning_content": run["reasoning_content"],
            "metadata": _build_metadata(run),
        }

        if kind == "workflow":
            built |= self._build_steps(run, component_id)
            if self._pending and run["status"] == "PAUSED":
                built |= self._build_workflow_pause(run, built["step_results"])
            built["input"] = run["input"]
            return _drop_null(built) | _NO_MEDIA

        model = self._directory.get_model(kind, component_id)
        if model is not None:
            built["model"], built["model_provider"] = model

        built |= self._build_details(run)

        if self._pending and run["status"] == "PAUSED":
            built |= self._build_pause(run, built["tools"])

        built["input"] = {"input_content": run["input"], **_build_media(run)}
        if kind == "team":
            children = self._children.get(run["run_id"], ())
            built["member_responses"] = [self.build_response(child) for child in children]
        return _drop_null(built)

    def _build_pause(self, run: Run, tools: list[Built]) -> Built:
        pending = [
            approval
            for approval in self._pending
            if self._is_below(approval["run_id"], run["run_id"])
        ]
        pause = write_pause(run["run_id"], pending, self._directory)

        waiting_ids = {tool["tool_call_id"] for tool in pause["tools"]}
        other_tools = [tool for tool in tools if tool["tool_call_id"] not in waiting_ids]
        return pause | {"tools": [*other_tools, *pause["tools"]]}

    def _is_below(self, run_id: str | None, root_id: str) -> bool:
        """Return True for the run `root_id` and the runs below it."""
        while run_id is not None and run_id != root_id:
            run = self._by_id.get(run_id)
            run_id = None if run is None else run["parent_run_id"]
        return run_id == root_id

    def _build_workflow_pause(self, run: Run, results: list[Built]) -> Built:
        children = self._children.get(run["run_id"], ())

        # The step itself waits, unless the run of its component does.
        executor = None
        step = (self._pending[0]["tool_name"], len(children))
        for index, child in enumerate(children):
            if child["status"] == "PAUSED":
                kind = get_kind(child)
                executor = (kind, child[KINDS[kind].id_field], child["run_id"])
                step = (results[index]["step_name"], index)
                break

        return write_workflow_pause(
            run["run_id"], run["session_id"], step, executor, self._pending, self._directory
        )

    def _build_details(self, run: Run) -> Built:
        created = to_seconds(run["created_at"])
        return {
            "metrics": write_counters(run["metrics"])
            | measure_duration(run["created_at"], run["finished_at"]),
            "messages": write_messages(run["run_id"], run["messages"]),
            "tools": [write_tool(tool, created) for tool in run["tools"]],
        }

    def _build_steps(self, run: Run, workflow_id: str) -> Built:
        children = self._children.get(run["run_id"], ())
        names = [name for name, _, _ in self._directory.get_steps(workflow_id)]
        results = [
            self._build_step(names[index] if index < len(names) else f"step {index + 1}", child)
            for index, child in enumerate(children)
        ]

        steps = {row["step_name"]: {name: row[name] for name in STEP_SUMMARY} for row in results}
        metrics: Built = {"steps": steps}

        return {
            "step_results": results,
            "step_executor_runs": [self.build_response(child) for child in children],
            "metrics": metrics | measure_duration(run["created_at"], run["finished_at"]),
        }

    def _build_step(self, name: str, run: Run) -> Built:
        kind = get_kind(run)
        executor = self._directory.get_name(kind, run[KINDS[kind].id_field])
        completed = run["status"] == "COMPLETED"

        return {
            **build_step_result(name, kind, executor, run["run_id"], build_content(run)),
            "metrics": write_counters(run["metrics"]),
            "success": completed,
            "is_paused": run["status"] == "PAUSED",
            "error": None if completed or not run["error"] else run["error"]["detail"],
        }

    def build_items(self) -> list[Built]:
        """Return the items of the runs of a session.

        Members come before their team. The steps of a workflow are part of its run.
        """
        return [self.build_item(run) for run in self._list_items()]

    def build_previews(self) -> list[Built]:
        """Return short forms of the items: ids, status, and the beginning of the content."""
        previews = []

        for run in self._list_items():
            content = build_content(run)
            text = content if isinstance(content, str) else orjson.dumps(content).decode()
            ids = "run_id", "parent_run_id", KINDS[get_kind(run)].id_field, "user_id"
            preview = _build_summary(run, *ids) | {
                "content_preview": None if content is None else text[:PREVIEW_CHARACTERS],
                "created_at": run["created_at"],
            }
            previews.append(preview)
        return previews

    def _list_items(self) -> list[Run]:
        runs = list[Run]()
        for root in self._children.get(None, ()):
            if get_kind(root) == "team":
                runs += self._list_tree(root)
            else:
                runs.append(root)
        return runs

    def _list_tree(self, run: Run) -> Iterator[Run]:
        """Yield a run after all runs below it."""
        for member in self._children.get(run["run_id"], ()):
            yield from self._list_tree(member)
        yield run

    def build_item(self, run: Run) -> Built:
        """Return one run as an item."""
        kind = get_kind(run)
        id_field = KINDS[kind].id_field
        content = build_content(run)

        built: Built = {
            **_build_summary(run, "run_id", id_field, "user_id"),
            "content": content,
            "created_at": run["created_at"],
            "metadata": _build_metadata(run),
            "events": [] if kind == "workflow" else None,
            "reasoning_content": run["reasoning_content"] or "",
            "reasoning_steps": [],
            "references": [],
            "reasoning_messages": [],
            **_NO_MEDIA,
        }

        if kind == "workflow":
            content_type = "str" if content is None else type(content).__name__
            steps = self._build_steps(run, run[id_field])
            return _drop_null({**built, **steps, "content_type": content_type})
        return _drop_null(
            {
                **built,
                "parent_run_id": run["parent_run_id"] or "",
                "run_response_format": "text" if isinstance(content, str) else "json",
                "session_state": run["session_state"],
                **self._build_details(run),
                "input_media": _build_media(run),
            }
        )


def measure_duration(begin: str | None, end: str | None) -> Built:
    """Return `duration`, the seconds between two times; empty while one is not known."""
    if begin is None or end is None:
        return {}
    return {"duration": (parse_rfc3339(end) - parse_rfc3339(begin)) / 1_000_000}


def build_step_result(name: str, kind: str, executor: str, run_id: str, content: Any) -> Built:
    """Return the members of a step's result that do not depend on its end."""
    return {
        "content": content,
        "step_name": name,
        "step_id": run_id,
        "step_type": "Step",
        "executor_type": kind,
        "executor_name": executor,
        "step_run_id": run_id,
        "success": True,
        "error": None,
        "stop": False,
        "is_paused": False,
    }


def _build_summary(run: Run, *names: str) -> Built:
    """Return the named ids of an item, its status and its input; an absent id is an empty text."""
    ids = {name: run[name] or "" for name in names}
    return ids | {"status": run["status"], "run_input": run["input"] or ""}


def select_runs(
    items: Sequence[Built], statuses: Sequence[str], after: int | None, before: int | None
) -> list[Built]:
    """Return the items with one of the statuses, created within the bounds in seconds.

    No statuses, and a bound that is None, select all items.
    """

    def is_selected(item: Built) -> bool:
        if statuses and item["status"] not in statuses:
            return False
        created_at = to_seconds(item["created_at"])
        if after is not None and created_at < after:
            return False
        return before is None or created_at <= before

    return [item for item in items if is_selected(item)]


def _drop_null(built: Built) -> Built:
    return {name: value for name, value in built.items() if value is not None}
