"""The start of a run from a request: its input and its limits (docs/contract.md "Runs")."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import orjson

from agentctl.auth.principal import Principal
from agentctl.config.settings import Limits, Model
from agentctl.errors import InvalidConfiguration, NotFound, TooLarge, ValidationFailed
from agentctl.interface.requests import MAXIMUM_RUN_FILES, EarlierMessage, RunRequest
from agentctl.records.files import FileReference
from agentctl.records.run_spec import RunSpec
from agentctl.records.strict import find_object
from agentctl.records.text import (
    check_json,
    check_session_id,
    check_text,
    check_texts,
    dump_checked_json,
    new_id,
)
from agentctl.records.times import now_in_seconds
from agentctl.runs.life.admission import Admission, Idempotency, Submission
from agentctl.runs.life.live import LiveRun
from agentctl.runtime.component import Component
from agentctl.runtime.components.catalog import Catalog
from agentctl.runtime.components.versions import find_version
from agentctl.runtime.files import dump_references, find_kind, list_references
from agentctl.runtime.pauses import InputSchema, WrongInput
from agentctl.service.audit_log import AuditedCall
from agentctl.service.family import OperationFamily, find_repeated
from agentctl.service.hosting import Hosting
from agentctl.service.reads.family import Lookups
from agentctl.store.database import Database
from agentctl.store.repositories import files

_log = logging.getLogger("agentctl.runtime")


class RunInput(NamedTuple):
    """The message and the object that a component gets."""

    message: str
    """The message. If the request has none, the JSON text of the object."""

    object: str | None


async def read_run_input(
    catalog: Catalog, component: Component, request: RunRequest, limits: Limits, *, has_files: bool
) -> RunInput:
    """Return the checked message and object of a request.

    If the agent needs an object and the request has a message alone, the object is read from the
    JSON text of the message.

    Args:
        has_files: True if the message has files that the request does not name. With files the text
            of a message may be empty.

    Raises:
        ValidationFailed: both are missing, one of them has a problem, or the component takes no
            object, another object, or no dependencies.
        TooLarge: one is larger than its limit.
    """
    value = request.input
    if component.spec.durable and request.dependencies is not None:
        raise ValidationFailed(
            f"dependencies are not stored, so a durable {component.kind} cannot have them",
            hint="send what the run needs as metadata or in its input",
        )

    has_files = has_files or bool(request.files)
    message = _read_message(request, limits.message_bytes, has_files=has_files)
    text = dump_checked_json("input", value, limits.state_bytes)
    agent = catalog.find_input_agent(component)
    if agent is None:
        if value is not None:
            raise ValidationFailed(
                f"input is for agents in code: the {component.label} takes a message"
            )
        assert message is not None
        return RunInput(message, None)

    schema = await _open_schema(catalog, agent, with_input=value is not None)
    if schema is not None:
        if value is not None:
            await _check("input", schema, value)
        elif schema.is_required:
            assert message is not None
            text = await _read_object(schema, message, agent.id, limits.state_bytes)

    if message is None:
        assert text is not None
        message = text
    return RunInput(message, text)


async def read_files(
    lookups: Lookups,
    component: Component,
    request: RunRequest,
    earlier: Sequence[EarlierMessage],
    hosting: Hosting,
) -> tuple[list[str], Sequence[FileReference]]:
    """Return the files of a request, and their ids: of its message, then of earlier messages.

    The transaction of the run gives them to its session.

    Raises:
        NotFound: a file is not visible.
        ValidationFailed: there are too many files, or no model takes one of them.
        TooLarge: together the files are larger than `files.run_bytes`.
    """
    earlier_ids = dict.fromkeys(file_id for message in earlier for file_id in message.files)
    new_ids = [file_id for file_id in earlier_ids if file_id not in request.files]
    file_ids = [*request.files, *new_ids]
    if not file_ids:
        return file_ids, ()

    if len({*file_ids}) < len(file_ids) or len(file_ids) > MAXIMUM_RUN_FILES:
        raise ValidationFailed(f"files must be at most {MAXIMUM_RUN_FILES} different ids of files")
    check_texts(**{f"files[{at}]": file_id for at, file_id in enumerate(file_ids)})

    work = files.get_all(file_ids, lookups.visibility)
    rows = await lookups.database(component.database).read(work)
    references = {row.file_id: row.build_reference() for row in rows}

    if len(references) < len(file_ids):
        raise NotFound("File not found")

    limit = hosting.settings.files.run_bytes
    if sum(reference.size for reference in references.values()) > limit:
        raise TooLarge(f"The files of a run must have at most {limit} bytes together")

    check_files(hosting.catalog, component, references.values())
    return file_ids, [references[file_id] for file_id in file_ids]


def check_files(
    catalog: Catalog, component: Component, references: Iterable[FileReference]
) -> None:
    """Check that a model of the component takes each file of the message of a run.

    Code takes all files. The members of a team get the files of the team as well, so one of them
    may take a file that its leader does not take.

    Raises:
        ValidationFailed: no model takes a file; the error names both.
    """
    kinds = {find_kind(file.media_type): file.name for file in references}

    if component.kind == "workflow":
        component = catalog.steps(component)[0][1]

    workers = [component]
    if component.kind == "team":
        workers += catalog.members(component).values()

    if any(map(catalog.is_hosted, workers)):
        return

    models = [_list_models(catalog, worker) for worker in workers]
    for kind, name in kinds.items():
        is_taken = any(all(kind in model.takes for model in models_of) for models_of in models)
        if kind != "text" and not is_taken:
            refusing = next(model.id for model in models[0] if kind not in model.takes)
            raise ValidationFailed(
                f"files: the model {refusing} of the {component.label} does not take {name}, a file"
                f' of the kind {kind}. If its provider does, add "{kind}" to takes of the model in'
                " the configuration"
            )


def _list_models(catalog: Catalog, component: Component) -> list[Model]:
    """Return the model of an agent or of a team's leader, with its fallbacks."""
    model = catalog.model(component)
    return [model, *filter(None, map(catalog.find_model, model.fallbacks))]


async def dump_request_tools(
    catalog: Catalog, component: Component, request: RunRequest
) -> str | None:
    """Return the JSON text of the checked tools of the caller; None if it has none.

    Raises:
        ValidationFailed: a tool is not valid, has the name of a tool of the component, the
            component takes no such tools, or the tool choice names none of them.
        TooLarge: they are larger than their limit.
    """
    if request.client_tools is None and request.tool_choice is None:
        return None

    from agentctl.runtime.tools.external import (
        check_tool_choice,
        dump_client_tools,
        find_taken_name,
    )

    text = await dump_client_tools(request.client_tools)
    check_tool_choice(request.tool_choice, text)
    if text is None:
        return None

    try:
        names = catalog.find_tool_names(component)
    except InvalidConfiguration:
        # The run itself reports this error.
        return text

    name = f"the {component.label}"
    if names is None:
        raise ValidationFailed(
            f"client_tools are for agents and teams with a configured model and for agents of"
            f" pydantic-ai: {name} takes none"
        )

    if request.tool_choice is not None and catalog.is_hosted(component):
        raise ValidationFailed(
            f"tool_choice is for agents and teams with a configured model: {name} has its own"
        )

    taken_name = find_taken_name(text, names)
    if taken_name is not None:
        raise ValidationFailed(
            f"client_tools: {name} has a tool {taken_name}, or its MCP server can have one:"
            " rename yours"
        )

    return text


def _read_message(request: RunRequest, limit: int, *, has_files: bool) -> str | None:
    """Return the checked message of a request; None if it has only an object."""
    message = request.message
    if message is None:
        if request.input is not None:
            return None
        if not has_files:
            raise ValidationFailed("message is required")
        return ""

    # Providers refuse a message without a letter.
    if not (has_files or message.strip()):
        raise ValidationFailed("message must not be empty")

    check_text("message", message)
    if len(message.encode()) > limit:
        raise TooLarge(f"message must be at most {limit} bytes")
    return message


async def _open_schema(
    catalog: Catalog, agent: Component, *, with_input: bool
) -> InputSchema | None:
    """Return the schema of an agent; None also if it cannot be opened: its run reports that."""
    if with_input:
        try:
            return (await catalog.open_runner(agent)).input_schema
        except Exception:
            return None
    return catalog.find_input_schema(agent)


async def _check(name: str, schema: InputSchema, value: dict[str, Any]) -> None:
    try:
        # A copy: the code of the type may change it.
        await schema.check(orjson.loads(orjson.dumps(value)))
    except WrongInput as wrong:
        raise ValidationFailed(f"{name}{wrong.place} {wrong.problem}") from None
    except Exception:
        _log.warning("the type of an input failed: its run reports that", exc_info=True)


async def _read_object(schema: InputSchema, message: str, agent_id: str, limit: int) -> str:
    value = find_object(message)
    if value is None:
        raise ValidationFailed(
            f"input is required: the agent {agent_id} takes an object, or its JSON text as message"
        )
    text = dump_checked_json("message", value, limit)
    assert text is not None
    await _check("message", schema, value)
    return text


def build_neutral_messages(
    earlier: Sequence[EarlierMessage], files: Sequence[FileReference]
) -> tuple[dict[str, Any], ...]:
    """Return messages of a request in the stored form (`runtime.transcript.transcript`).

    `files` has the files of the messages, and may have further files.
    """
    if not earlier:
        return ()
    at = now_in_seconds()
    by_id = {file.file_id: file for file in files}
    return tuple(_build_neutral_message(message, at, by_id) for message in earlier)


def _build_neutral_message(
    message: EarlierMessage, at: int, files: Mapping[str, FileReference]
) -> dict[str, Any]:
    check_text("message", message.content)
    neutral: dict[str, Any] = {"role": message.role, "content": message.content, "created_at": at}
    if message.calls:
        check_json("message", list(message.calls))
        neutral["tool_calls"] = list(message.calls)
    if message.role == "tool":
        check_texts(tool_call_id=message.call_id, tool_name=message.tool_name)
        neutral |= {"tool_call_id": message.call_id, "tool_name": message.tool_name}
    if message.files:
        neutral["files"] = list_references(files[file_id] for file_id in message.files)
    return neutral


async def check_start(
    hosting: Hosting, principal: Principal, database: Database, submission: Submission
) -> bool:
    """Pass the gate with a start, and count it. A repeated request starts nothing.

    Returns:
        True if the run has to wait until a halt ends.

    Raises:
        Halted: a halt refuses the run.
        BudgetExceeded: a budget is used up.
        RateLimited: the caller has started too many runs.
    """
    gate = hosting.gate
    has_halts = False
    if not gate.halts.is_clear:
        await gate.halts.learn()
        has_halts = bool(gate.halts.active)
    if not (gate.budgets.budgets or hosting.run_limit.per_minute or has_halts):
        return False
    if await find_repeated(database, submission.idempotency):
        return False
    if principal.via == "http":
        hosting.run_limit.take(principal.identity)
    return await gate.check_start(submission.spec.user_id, submission.component)


def _describe_earlier(message: EarlierMessage) -> list[Any]:
    """Return what two equal earlier messages have in common, as JSON values."""
    parts: list[Any] = [message.role, message.content]
    if message.is_of_tools:
        parts += [message.calls, message.call_id]
    return parts


Preparation: TypeAlias = Callable[[Submission], AbstractAsyncContextManager[Submission]]
"""Prepares a start, and undoes it if the run is refused in the block."""


class RunStarts(OperationFamily):
    """The part of the run operations that builds and starts a run from a request."""

    def _outlives_caller(self, request: RunRequest) -> bool:
        """Return True if the run continues when its client disconnects.

        A run with an idempotency key does, so that a repeat of the request finds its result. A
        local run ends with its process.
        """
        detaches = self.hosting.settings.server.on_disconnect == "detach"
        keeps = detaches or request.idempotency_key is not None
        return request.background or (keeps and self.principal.via == "http")

    async def submit(
        self,
        call: AuditedCall,
        database: Database,
        submission: Submission,
        *,
        is_full: bool,
        prepare: Preparation | None = None,
    ) -> LiveRun | Admission:
        """Start a run; its audit entry is part of the transaction of its row.

        Args:
            prepare: writes what the run needs, when no budget and no rate limit refuses it.
        """
        call.add_resource("session", submission.spec.session_id)
        call.add_created("run", submission.spec.run_id)
        note = await self.prepare_keyed_entry(call, database, submission.idempotency)
        is_held = await check_start(self.hosting, self.principal, database, submission)
        await self.hosting.versions.store((submission.component,))
        if prepare is None:
            prepare = nullcontext
        async with prepare(submission) as prepared:
            with call.change():
                submission = replace(prepared, extra_write=note)
                return await self.hosting.engine.submit(submission, is_full=is_full or is_held)

    async def build_submission(
        self,
        component: Component,
        request: RunRequest,
        earlier: Sequence[EarlierMessage],
        *,
        stream: bool,
        identity: Idempotency | None = None,
        has_files: bool = False,
    ) -> Submission:
        """Check a request as far as possible without the database.

        Args:
            identity: its identity, if it differs from a start with the same fields.
            has_files: True if its message has files that the request does not name.
        """
        hosting = self.hosting
        session_id = request.session_id
        if session_id is None:
            session_id = self.principal.session_id
        session_id = new_id() if session_id is None else check_session_id(session_id)

        component = hosting.catalog.choose_side(component, session_id)
        run_input = await read_run_input(
            hosting.catalog, component, request, hosting.settings.limits, has_files=has_files
        )

        metadata = self._dump_object("metadata", request.metadata)
        session_state = self._dump_object("session_state", request.session_state)
        user_id = self.lookups.resolve_owner(request.user_id)
        file_ids, given_files = await read_files(self.lookups, component, request, earlier, hosting)

        if identity is None:
            identity = self._build_idempotency(
                component, request, earlier, given_files, stream=stream
            )

        outlives_caller = self._outlives_caller(request)
        limits = hosting.settings.runs

        spec = RunSpec(
            run_id=new_id(),
            session_id=session_id,
            component_type=component.kind,
            component_id=component.id,
            user_id=user_id,
            input=run_input.message,
            input_object=run_input.object,
            background=request.background,
            recorded=stream or request.background,
            survives_disconnect=outlives_caller or identity is not None,
            time_limit=limits.timeout_seconds,
            tool_timeout=limits.tool_timeout_seconds,
            metadata=metadata,
            session_state=session_state,
            output_schema=await self._dump_output_schema(component, request.output_schema),
            client_tools=await dump_request_tools(hosting.catalog, component, request),
            tool_choice=request.tool_choice,
            stop=request.stop,
            session_history=request.session_history,
            dependencies=self._dump_object("dependencies", request.dependencies),
            claims=self.principal.claims.decode() if self.principal.claims else None,
            earlier_messages=build_neutral_messages(earlier, given_files),
            request_id=self._request_id,
            actor=self.principal.actor,
            durable=component.spec.durable,
            version=find_version(hosting.catalog, component),
            files=dump_references(given_files[: len(request.files)]),
        )

        return Submission(
            spec,
            component,
            visibility=self.lookups.run_visibility(request.user_id),
            outlives_caller=outlives_caller,
            idempotency=identity,
            files=file_ids,
        )

    async def _dump_output_schema(
        self, component: Component, schema: dict[str, Any] | None
    ) -> str | None:
        from agentctl.runtime.models.structured_output import check_output_schema

        text = self._dump_object("output_schema", schema)
        if schema is None:
            return None
        if not self.hosting.catalog.takes_output_schema(component):
            raise ValidationFailed("output_schema is for agents and teams whose own model answers")
        await check_output_schema(schema)
        return text

    def _dump_object(self, name: str, value: dict[str, Any] | None) -> str | None:
        if value is None:
            return None
        return dump_checked_json(name, value, self.hosting.settings.limits.state_bytes)

    def _build_idempotency(
        self,
        component: Component,
        request: RunRequest,
        earlier: Sequence[EarlierMessage],
        files: Sequence[FileReference],
        *,
        stream: bool,
    ) -> Idempotency | None:
        if request.idempotency_key is None:
            return None

        fields = [
            component.kind,
            component.id,
            request.message,
            request.session_id,
            request.user_id,
        ]

        objects = {
            "metadata": request.metadata,
            "session_state": request.session_state,
            "output_schema": request.output_schema,
            "dependencies": request.dependencies,
            "input": request.input,
            "client_tools": request.client_tools,
            "tool_choice": request.tool_choice,
            "earlier": [_describe_earlier(message) for message in earlier] or None,
            # A repeated request may have stored the same bytes again.
            "files": [[file.name, file.sha256] for file in files] or None,
            "session_history": None if request.session_history else False,
            "stop": request.stop or None,
        }

        parts = [[name, value] for name, value in objects.items() if value is not None]
        body = [*fields, request.background, stream, *parts]
        return self.build_idempotency(request.idempotency_key, body)
