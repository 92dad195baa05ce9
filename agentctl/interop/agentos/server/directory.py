"""The configured components as AgentOS describes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentctl.config import settings as config
from agentctl.records.kinds import KINDS, ComponentKind

_DETAILS = {"is_factory": False, "is_component": False}


class Directory:
    """Names, models and members of the configured components."""

    def __init__(self, settings: config.Settings) -> None:
        self._models = {model.id: model for model in settings.models}
        self._components: dict[
            tuple[ComponentKind, str], config.Agent | config.Team | config.Workflow
        ] = {
            **{("agent", component.id): component for component in settings.agents},
            **{("team", component.id): component for component in settings.teams},
            **{("workflow", component.id): component for component in settings.workflows},
        }

    def get_name(self, kind: ComponentKind, component_id: str) -> str:
        """Return the name of a component, its id if it is not configured any more."""
        component = self._components.get((kind, component_id))
        return component.name if component is not None else component_id

    def get_model(self, kind: ComponentKind, component_id: str) -> tuple[str, str] | None:
        """Return model and provider of a component; None for a component without a model."""
        component = self._components.get((kind, component_id))
        model = self._models.get(getattr(component, "model", ""))
        return None if model is None else (model.model, model.provider)

    def answers_by_model(self, kind: ComponentKind, component_id: str) -> bool:
        """Return True if the component's own model writes the text of a run, not a member."""
        has_model = self.get_model(kind, component_id) is not None
        mode = getattr(self._components.get((kind, component_id)), "mode", None)
        return has_model and mode != "route"

    def get_steps(self, workflow_id: str) -> list[tuple[str, ComponentKind, str]]:
        """Return name, kind and id of the component of each step of a workflow."""
        workflow = self._components.get(("workflow", workflow_id))
        steps: tuple[config.Step, ...] = getattr(workflow, "steps", ())
        return [
            (step.name, "agent" if step.agent else "team", step.agent or step.team)
            for step in steps
        ]

    def describe(self, kind: ComponentKind, component_id: str) -> dict[str, Any]:
        """Return an agent or a team as a member or in a step."""
        component = self._components.get((kind, component_id))
        if component is None:
            return {"id": component_id, **_DETAILS}

        described: dict[str, Any] = {
            "id": component.id,
            "name": component.name,
            "db_id": component.database,
            "description": component.description,
        }

        model = self.get_model(kind, component_id)
        if model is not None:
            name, provider = model
            described["model"] = {"name": name, "model": name, "provider": provider}

        described |= {"sessions": {"session_table": "sessions"}, **_DETAILS}

        mode = getattr(component, "mode", None)
        if mode is not None:
            described["mode"] = mode
            described["members"] = [
                self.describe("agent" if ("agent", member) in self._components else "team", member)
                for member in getattr(component, "members", ())
            ]

        return described

    def build_components(
        self, kind: ComponentKind, records: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """Return the records of components in the shape of AgentOS."""
        return [self.build_component(kind, record) for record in records]

    def build_component(self, kind: ComponentKind, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return the record of a component in the shape of AgentOS."""
        component = self.describe(kind, record["id"])

        if record.get("tools"):
            component["tools"] = {"tools": record["tools"]}

        if kind == "workflow":
            component["workflow_agent"] = False
            component["steps"] = [
                {"name": name, "type": "Step", step_kind: self.describe(step_kind, component_id)}
                for name, step_kind, component_id in self.get_steps(record["id"])
            ]
            del component["sessions"]

        return component


def get_kind(record: Mapping[str, Any]) -> ComponentKind:
    """Return the kind of component of a run, a session or an event."""
    return next(kind for kind, names in KINDS.items() if record.get(names.id_field) is not None)


def build_config(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the response of `GET /config`."""
    domains = [
        {"db_id": db_id, "domain_config": {"display_name": db_id}, "tables": ["sessions"]}
        for db_id in record["databases"]
    ]

    return {
        "os_id": record["os_id"],
        "name": record["name"],
        # Releases before 3.0 expect texts here, later releases objects: both take an empty list.
        "available_models": [],
        "os_database": record["os_database"],
        "databases": record["databases"],
        "session": {"dbs": domains},
        "agents": [_summarize(component_record) for component_record in record["agents"]],
        "teams": [_summarize(component_record) for component_record in record["teams"]],
        "workflows": [{**component_record, **_DETAILS} for component_record in record["workflows"]],
        "interfaces": [],
    }


def _summarize(entry: Mapping[str, Any]) -> dict[str, Any]:
    model = entry["model"]
    summary = {name: value for name, value in entry.items() if name != "model"}
    if model is not None:
        summary["model"] = {"id": model["model"], "provider": model["provider"]}
    return summary
