"""The documentation site: built strictly from the pages, complete, and served by a server."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import httpx2
import orjson
import pytest

from agentctl.server.app import create_app
from tests.kit.deployment import Deploy
from tests.kit.documents import ROOT, pages
from tests.kit.threaded_server import serve_in_thread

BUILD = ROOT / "packaging/site/build.py"

FOREIGN = re.compile(r"""<(?:script|link|img|iframe)[^>]+(?:src|href)=["'](?:https?:)?//[^"']+""")
"""An element that loads a file of another host."""


def build(folder: Path, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BUILD), "--out", str(folder), "--root", str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of this project."""
    folder = tmp_path_factory.mktemp("site") / "guide"
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_site_has_every_page_as_html_and_markdown(site: Path) -> None:
    for page in pages():
        text = page.text.partition("\n")[0].removeprefix("# ")
        copies = [file for file in site.rglob("*.md") if file.read_text().startswith(f"# {text}\n")]
        assert copies, page.name
        assert all(find_html(file).is_file() for file in copies), page.name


def find_html(file: Path) -> Path:
    """Return the path of the page of a Markdown file; a README is the start of its folder."""
    return file.with_name("index.html") if file.stem == "README" else file.with_suffix(".html")


def test_search_finds_every_page_but_records(site: Path) -> None:
    index = orjson.loads((site / "search.json").read_bytes())
    found_pages = {entry["location"].partition("#")[0] for entry in index["items"]}
    html_pages = {str(file.relative_to(site)) for file in site.rglob("*.html")}
    records = {page for page in html_pages if page.startswith("internals/decisions/")}
    records.add("changelog.html")
    assert html_pages - found_pages - {"404.html", "search.html"} == records


def test_list_for_programs_names_every_page_once(site: Path) -> None:
    text = (site / "llms.txt").read_text()
    listed = re.findall(r"^- \[[^\]]+\]\(([^)]+)\)", text, re.MULTILINE)
    markdown = {str(file.relative_to(site)) for file in site.rglob("*.md")}
    assert sorted(listed) == sorted(markdown - {"index.md", "contents.md"})


def test_developers_pages_have_a_section_of_their_own(site: Path) -> None:
    text = (site / "llms.txt").read_text()
    sections = {part.partition("\n")[0]: part for part in text.split("\n## ")}
    outside = [title for title, part in sections.items() if "(internals/" in part]
    assert outside == ["Internals"]
    assert "(internals/decisions/0079-" in sections["Internals"]


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    foreign = {file.name: FOREIGN.findall(file.read_text()) for file in site.rglob("*.html")}
    assert {name: found for name, found in foreign.items() if found} == {}


def test_links_to_other_files_of_the_repository_become_text(site: Path) -> None:
    text = (site / "survival.md").read_text()
    assert "test_killed_server_keeps_acknowledged_runs" not in text
    assert "../tests/" not in text


def test_a_link_that_leads_nowhere_ends_the_build(tmp_path: Path) -> None:
    root = tmp_path / "project"
    (root / "docs").mkdir(parents=True)
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"):
        (root / name).write_text(f"# {name}\n")
    (root / "docs/README.md").write_text("# Pages\n\n## Build\n\n- [Models](models.md)\n")
    models = root / "docs/models.md"
    models.write_text("# Models\n\n[Retries](#retries)\n\n## Retries\n")
    assert build(tmp_path / "right", root).returncode == 0

    models.write_text("# Models\n\n[Retries](#again)\n\n## Retries\n")
    done = build(tmp_path / "wrong", root)

    assert done.returncode == 1
    assert "models.md" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "wrong").exists()


def test_build_refuses_a_folder_that_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    done = build(tmp_path)
    assert done.returncode == 1
    assert "is not empty" in done.stderr
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_server_shows_the_site_to_everybody(tmp_path: Path, deploy: Deploy) -> None:
    (tmp_path / "index.html").write_text("<h1>agentctl</h1>")
    (tmp_path / "models.html").write_text("<h1>Models</h1>")
    (tmp_path / "models.md").write_text("# Models\n")
    deployment = deploy()
    table = dataclasses.replace(deployment.settings.server, guide=tmp_path)
    settings = dataclasses.replace(deployment.settings, server=table)
    with serve_in_thread(deployment, create_app(settings)) as host:
        moved = host.client.get("/guide")
        start = host.client.get("/guide/")
        page = host.client.get("/guide/models.html")
        source = host.client.get("/guide/models.md")
        absent = host.client.get("/guide/absent.html")
        outside = httpx2.get(f"{host.url}/guide/%2e%2e/%2e%2e/pyproject.toml")

    assert (moved.status_code, moved.headers["location"]) == (307, "/guide/")
    assert start.status_code == 200
    assert "agentctl" in start.text
    assert page.headers["content-type"].startswith("text/html")
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert source.text.startswith("# Models\n")
    assert [absent.status_code, outside.status_code] == [404, 404]


def test_server_has_no_site_by_default(deploy: Deploy) -> None:
    deployment = deploy()
    with serve_in_thread(deployment) as host:
        assert host.client.get("/guide/").status_code == 401
        known = deployment.bearer("me")
        assert host.client.get("/guide/", headers=known).status_code == 404
