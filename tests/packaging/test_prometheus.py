"""The rules of Prometheus and the dashboard of Grafana: valid, and about metrics that exist."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.packaging.programs import PACKAGING, require_program

FOLDER = PACKAGING / "prometheus"
METRIC = re.compile(r"\bagentctl_\w+")
QUANTILE = re.compile(r"_(bucket|count|sum)$")
LABEL = re.compile(r'(\w+)\s*(?:=~|!=|=)\s*"|by \(([\w, ]+)\)')
OF_PROMETHEUS = {"job", "instance", "le", "worker", "severity"}


def read_page() -> dict[str, set[str]]:
    """Return the labels of each metric of the page, by name."""
    page = (PACKAGING.parent / "docs/observability.md").read_text()
    rows = re.findall(r"^\| `(agentctl_\w+)` \| \w+ \| ([^|]*) \|", page, re.MULTILINE)
    return {name: set(re.findall(r"\w+", labels)) for name, labels in rows}


def list_expressions() -> list[tuple[str, str]]:
    """Return a name and the expression of each alert and of each line of a panel."""
    rules = (FOLDER / "rules.yml").read_text()
    rule = re.compile(r"- alert: (\w+)\n\s+expr: (.*?)\n\s+(?:for|labels):", re.DOTALL)
    panels = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
    shown = [(panel["title"], target["expr"]) for panel in panels for target in panel["targets"]]
    found = [(name, text.removeprefix("|").strip()) for name, text in rule.findall(rules)]
    return [*found, *shown]


@pytest.mark.parametrize(("name", "expression"), list_expressions())
def test_expression_uses_metrics_of_the_page(name: str, expression: str) -> None:
    page = read_page()
    used = {QUANTILE.sub("", metric) for metric in METRIC.findall(expression)}
    assert used or expression.startswith("up{"), name
    assert used <= page.keys(), name
    labels = {
        label
        for single, several in LABEL.findall(expression)
        for label in ([single] if single else re.findall(r"\w+", several))
    }
    assert labels - OF_PROMETHEUS <= set().union(*(page[metric] for metric in used)), name


def test_rules_alert_when_they_should() -> None:
    program = require_program("promtool", "prometheus")
    for command in (
        ["check", "rules", "rules.yml"],
        ["check", "config", "scrape.yml"],
        ["test", "rules", "rules_test.yml"],
    ):
        done = subprocess.run([program, *command], cwd=FOLDER, capture_output=True, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr).decode()


def test_queries_of_the_dashboard_are_valid(tmp_path: Path) -> None:
    """promtool reads the expressions of panels as rules."""
    program = require_program("promtool", "prometheus")
    lines = ["groups:", "  - name: dashboard", "    rules:"]
    for number, (_, expression) in enumerate(list_expressions()):
        text = expression.replace("$__rate_interval", "5m")
        lines += [f"      - record: panel:{number}", f"        expr: {json.dumps(text)}"]
    (tmp_path / "rules.yml").write_text("\n".join(lines) + "\n")
    command = [program, "check", "rules", str(tmp_path / "rules.yml")]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
