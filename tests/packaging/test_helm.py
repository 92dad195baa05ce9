"""The Helm chart: the objects of the manifests for Kubernetes, with values in place of names."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentctl.cli.files import write_key_pair
from tests.kit.command import run_command
from tests.kit.process import base_environment
from tests.packaging.programs import PACKAGING

CHART = PACKAGING / "helm"
MANIFESTS = PACKAGING / "kubernetes"

_ACTION = re.compile(r"(\s*)\{\{(-?) (.+?) \}\}")

Values = dict[str, Any]


def read_values(**changes: Any) -> Values:
    """Return the values of the chart with changes, and what Helm adds."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    values = {**yaml.safe_load((CHART / "values.yaml").read_text()), **changes}
    return {
        "Values": values,
        "Release": {"Name": "agents"},
        "Chart": {"AppVersion": chart["appVersion"]},
    }


def render(values: Values) -> dict[tuple[str, str], Any]:
    """Return the objects of the chart by kind and name; the part of Helm that the chart uses."""
    objects = list[Any]()
    for template in sorted((CHART / "templates").glob("*.yaml")):
        text = template.read_text()
        condition = re.fullmatch(r"\{\{- if (\S+) \}\}\n(.*)\{\{- end \}\}\n", text, re.DOTALL)
        if condition is not None:
            if not look_up(condition[1], values):
                continue
            text = condition[2]
        objects += yaml.safe_load_all(_ACTION.sub(lambda action: _replace(action, values), text))
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


def _replace(action: re.Match[str], values: Values) -> str:
    head, *functions = action[3].split(" | ")
    value: Any
    if head.startswith("toYaml "):
        value = yaml.safe_dump(look_up(head.removeprefix("toYaml "), values)).strip()
    else:
        value = look_up(head, values)

    for function in functions:
        name, _, argument = function.partition(" ")
        if name == "default":
            value = value or look_up(argument, values)
        elif name == "quote":
            value = f'"{value}"'
        elif name == "sha256sum":
            value = hashlib.sha256(value.encode()).hexdigest()
        else:
            assert name == "nindent", function
            indent = "\n" + int(argument) * " "
            value = indent + indent.join(str(value).splitlines())

    space = "" if action[2] else action[1]
    return f"{space}{value}"


def look_up(path: str, values: Values) -> Any:
    found: Any = values
    for name in path.removeprefix(".").split("."):
        found = found[name]
    return found


def read_manifests() -> Iterator[Mapping[str, Any]]:
    for name in ("agentctl.yaml", "migrate.yaml"):
        yield from yaml.safe_load_all((MANIFESTS / name).read_text())


@pytest.fixture(scope="module")
def objects() -> dict[tuple[str, str], Any]:
    return render(read_values())


def test_pods_are_those_of_the_manifests(objects: dict[tuple[str, str], Any]) -> None:
    manifest = {each["kind"]: each for each in read_manifests()}
    for kind, name in (("Deployment", "agents"), ("Job", "agents-migrate")):
        (here,) = objects[kind, name]["spec"]["template"]["spec"]["containers"]
        (there,) = manifest[kind]["spec"]["template"]["spec"]["containers"]
        assert here == there

        own = objects[kind, name]["spec"]["template"]["spec"]
        other = manifest[kind]["spec"]["template"]["spec"]
        assert own["securityContext"] == other["securityContext"]
        assert own["automountServiceAccountToken"] is False

    strategy = objects["Deployment", "agents"]["spec"]["strategy"]
    assert strategy == manifest["Deployment"]["spec"]["strategy"]


def test_every_object_of_the_manifests_is_in_the_chart(objects: dict[tuple[str, str], Any]) -> None:
    # Helm creates the namespace.
    kinds = {each["kind"] for each in read_manifests()} - {"Namespace"}
    assert {kind for kind, _ in objects} == kinds


def test_selectors_name_the_pods_of_the_release_only(objects: dict[tuple[str, str], Any]) -> None:
    labels = objects["Deployment", "agents"]["spec"]["template"]["metadata"]["labels"]
    assert objects["Service", "agents"]["spec"]["selector"] == labels
    assert labels["app.kubernetes.io/instance"] == "agents"
    for kind, path in (
        ("Deployment", "selector"),
        ("PodDisruptionBudget", "selector"),
        ("NetworkPolicy", "podSelector"),
    ):
        spec = objects[kind, "agents"]["spec"]
        assert (spec[path].get("matchLabels") or spec[path]) == labels


def test_configuration_of_the_chart_is_valid(
    objects: dict[tuple[str, str], Any], tmp_path: Path
) -> None:
    text = objects["ConfigMap", "agents"]["data"]["agentctl.toml"]
    assert text == objects["ConfigMap", "agents-migrate"]["data"]["agentctl.toml"]
    keys = tmp_path / "keys"
    write_key_pair(keys / "signing.pem", "RS256")
    file = tmp_path / "agentctl.toml"
    file.write_text(text.replace("/etc/agentctl/keys", str(keys)))
    words = ("config", "check", "--config", str(file))
    checked = run_command(*words, environment=base_environment(), folder=tmp_path)
    assert checked.code == 0, checked.stderr


def test_values_change_the_objects() -> None:
    changed = read_values(
        ingress={"enabled": False},
        image={"repository": "example.org/own", "tag": "7"},
        config="[server]\n",
    )
    objects = render(changed)
    assert ("Ingress", "agents") not in objects
    pod = objects["Deployment", "agents"]["spec"]["template"]
    assert pod["spec"]["containers"][0]["image"] == "example.org/own:7"
    # A changed configuration starts new pods.
    before = render(read_values())["Deployment", "agents"]["spec"]["template"]
    assert pod["metadata"]["annotations"] != before["metadata"]["annotations"]


def test_helm_renders_the_same_objects(objects: dict[tuple[str, str], Any]) -> None:
    helm = shutil.which("helm")
    if helm is None:
        pytest.skip("needs helm: https://helm.sh/docs/intro/install")
    done = subprocess.run(
        [helm, "template", "--kube-version", "1.31.0", "agents", str(CHART)],
        capture_output=True,
        check=True,
        text=True,
    )
    rendered = [each for each in yaml.safe_load_all(done.stdout) if each]
    assert {(each["kind"], each["metadata"]["name"]): each for each in rendered} == objects
