"""The configured components as AgentOS describes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentctl.records.kinds import KINDS, ComponentKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentctl.config import settings as config

_DETAILS = {"is_factory": False, "is_component": False}


class Directory:
    """Names, models and members of the configured components.

    Args:
        settings: the configuration.
    """

    def __init__(self, settings: config.Settings) -> None:
        self._models = {model.id: model for model in settings.models}
        self._components: dict[
            tuple[ComponentKind, str], config.Agent | config.Team | config.Workflow
        ] = {
            **{("agent", each.id): each for each in settings.agents},
            **{("team", each.id): each for each in settings.teams},
            **{("workflow", each.id): each for each in settings.workflows},
        }

    def get_name(self, kind: ComponentKind, component_id: str) -> str:
        """Return the name of a component, its id if it is not configured any more."""
        found = self._components.get((kind, component_id))
        return found.name if found is not None else component_id

    def get_model(self, kind: ComponentKind, component_id: str) -> tuple[str, str] | None:
        """Return model and provider of a component; None for one without a model."""
        found = self._components.get((kind, component_id))
        model = self._models.get(getattr(found, "model", ""))
        return None if model is None else (model.model, model.provider)

    def answers_by_model(self, kind: ComponentKind, component_id: str) -> bool:
        """Return True if the text of a run is that of the component's model, not of a member."""
        found = self._components.get((kind, component_id))
        has_model = self.get_model(kind, component_id) is not None
        return has_model and getattr(found, "mode", None) != "route"

    def get_steps(self, workflow_id: str) -> list[tuple[str, ComponentKind, str]]:
        """Return name, kind and id of the component of each step of a workflow."""
        found = self._components.get(("workflow", workflow_id))
        steps: tuple[config.Step, ...] = getattr(found, "steps", ())
        return [
            (step.name, "agent" if step.agent else "team", step.agent or step.team)
            for step in steps
        ]

    def describe(self, kind: ComponentKind, component_id: str) -> dict[str, Any]:
        """Return an agent or a team as a member or in a step."""
        found = self._components.get((kind, component_id))
        if found is None:
            return {"id": component_id, **_DETAILS}
        described = {
            "id": found.id,
            "name": found.name,
            "db_id": found.database,
            "description": found.description,
            **self._describe_model(kind, component_id),
            "sessions": {"session_table": "sessions"},
            **_DETAILS,
        }
        mode, members = getattr(found, "mode", None), getattr(found, "members", ())
        if mode is None:
            return described
        return {
            **described,
            "mode": mode,
            "members": [self.describe(self._get_kind(each), each) for each in members],
        }

    def _get_kind(self, member_id: str) -> ComponentKind:
        return "agent" if ("agent", member_id) in self._components else "team"

    def _describe_model(self, kind: ComponentKind, component_id: str) -> dict[str, Any]:
        model = self.get_model(kind, component_id)
        if model is None:
            return {}
        return {"model": {"name": model[0], "model": model[0], "provider": model[1]}}

    def build_component(self, kind: ComponentKind, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return the record of a component in the shape of AgentOS."""
        built = self.describe(kind, record["id"])
        if record.get("tools"):
            built["tools"] = {"tools": record["tools"]}
        if kind == "workflow":
            built["workflow_agent"] = False
            built["steps"] = [
                {"name": name, "type": "Step", step_kind: self.describe(step_kind, component_id)}
                for name, step_kind, component_id in self.get_steps(record["id"])
            ]
            del built["sessions"]
        return built


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
        # Releases before 3.0 expect texts here and later ones objects: both take an empty list.
        "available_models": [],
        "os_database": record["os_database"],
        "databases": record["databases"],
        "session": {"dbs": domains},
        "agents": [_summarize(each) for each in record["agents"]],
        "teams": [_summarize(each) for each in record["teams"]],
        "workflows": [{**each, **_DETAILS} for each in record["workflows"]],
        "interfaces": [],
    }


def _summarize(entry: Mapping[str, Any]) -> dict[str, Any]:
    model = entry["model"]
    summary = {name: value for name, value in entry.items() if name != "model"}
    if model is not None:
        summary["model"] = {"id": model["model"], "provider": model["provider"]}
    return summary
