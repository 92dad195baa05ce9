"""The four lists of the lab: each scenario names entries that exist."""

from __future__ import annotations

from importlib import import_module

from tests.lab.crashes import DISTURBED
from tests.lab.disturbances import DISTURBANCES
from tests.lab.scenarios import IN_PROCESS, SCENARIOS
from tests.lab.starts import CASES
from tests.lab.world import DEPLOYMENTS


def test_scenarios_have_a_command_and_known_deployments() -> None:
    for scenario in SCENARIOS.values():
        module = import_module(scenario.module)
        assert callable(module.add_options)
        assert callable(module.run)
        assert {*scenario.deployments} <= {*DEPLOYMENTS, IN_PROCESS}, scenario


def test_each_disturbance_belongs_to_a_scenario() -> None:
    used = {name for scenario in SCENARIOS.values() for name in scenario.disturbances}
    assert DISTURBANCES.keys() - {"none"} <= used
    cases = {case.disturbance for case in CASES.values()} - {"none"}
    assert cases == {*SCENARIOS["starts"].disturbances}
    turns = {name for disturbed in DISTURBED.values() for name, _ in disturbed}
    assert turns == {*SCENARIOS["crashes"].disturbances}
