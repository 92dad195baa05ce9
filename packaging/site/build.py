"""Build the documentation site: `make site`, or `python packaging/site/build.py --out FOLDER`.

The pages are the files of `docs/`, and README.md, CHANGELOG.md, SECURITY.md and CONTRIBUTING.md.
The navigation follows the index, docs/README.md: a section for each heading, a group for each line
that ends with a colon. Beside each HTML page is its Markdown, and `llms.txt` lists all pages, for
programs that read the documentation.

A link that leads nowhere ends the build: to a page, to a heading or to a picture that does not
exist. Links to files of the repository that are no pages, such as a test, become their text.
"""

from __future__ import annotations

import argparse
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]

INDEX = "docs/README.md"

MOVED_PAGES = {
    "README.md": "index.md",
    INDEX: "contents.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""The pages that have another path in the site. The other pages have their path below `docs/`."""

COPIED_ENDINGS = (".md", ".png", ".svg", ".txt", ".json", ".toml", ".py", ".yaml", ".1")
"""The files of `docs/` that a page may link to."""

RECORDS = ("internals/decisions/", "changelog.html")
"""The beginnings of the paths of pages that the search leaves out."""

DESCRIPTION = (
    "agentctl is the server of an agent platform and its admin tool, in one command. It hosts"
    " agents, teams and workflows behind a REST interface with JWT authorization."
)

_LINK = re.compile(
    r"(?P<mark>!?)\[(?P<text>[^\]]*)\]"
    r"\((?P<target>[^)\s]+)(?P<title> +\"[^\"]*\")?\)"
)
_FENCE = re.compile(r"^ *```")
_TITLE = re.compile(r"^# (?P<title>.+)$", re.MULTILINE)


@dataclass
class Section:
    """A part of the navigation: a heading of the index, or a group below one."""

    title: str

    pages: list[str] = field(default_factory=list)
    """The paths of the pages in the site, in the order of the index."""

    groups: list[Section] = field(default_factory=list)


def main() -> None:
    """Build the site into an empty folder.

    Raises:
        SystemExit: the folder is not empty, or the site has a problem, which is printed.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "guide")
    parser.add_argument("--root", type=Path, default=ROOT, help="the folder with README.md")
    options = parser.parse_args()
    folder: Path = options.out.resolve()
    if folder.exists() and any(folder.iterdir()):
        raise SystemExit(f"error: {folder} is not empty\n  hint: remove it: rm -r {folder}")

    build_site(options.root.resolve(), folder)
    print(f"built {folder / 'index.html'}")


def build_site(root: Path, folder: Path) -> None:
    """Build the pages of a repository into a folder, which is created."""
    with tempfile.TemporaryDirectory(prefix="site-") as temporary:
        work = Path(temporary)
        write_pages(root, work / "pages")
        sections = read_sections(root)
        settings = (Path(__file__).parent / "zensical.toml").read_text()
        (work / "zensical.toml").write_text(add_navigation(settings, sections))
        _run_zensical(work)

        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(work / "guide", folder, dirs_exist_ok=True)
        for page in sorted((work / "pages").rglob("*.md")):
            shutil.copyfile(page, folder / page.relative_to(work / "pages"))
        (folder / "llms.txt").write_text(describe_pages(work / "pages", sections))
        index = folder / "search.json"
        index.write_text(leave_out_records(index.read_text(encoding="utf-8")), encoding="utf-8")


def leave_out_records(index: str) -> str:
    """Return the index of the search without pages that record the past.

    The decisions and the change log have the words of every topic: they would come before the
    pages that answer a question. The navigation has them.
    """
    content = json.loads(index)
    content["items"] = [
        entry for entry in content["items"] if not entry["location"].startswith(RECORDS)
    ]
    return json.dumps(content, separators=(",", ":"))


def write_pages(root: Path, folder: Path) -> None:
    """Write the pages of the site, with the links between them, and the files beside them."""
    sources = dict(_list_sources(root))
    for source, path in sources.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith(".md"):
            text = (root / source).read_text(encoding="utf-8")
            target.write_text(rewrite_links(text, source, sources), encoding="utf-8")
        else:
            shutil.copyfile(root / source, target)


def _list_sources(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the files of the site: the path in the repository and the path in the site."""
    for name in MOVED_PAGES:
        yield name, MOVED_PAGES[name]

    for file in sorted((root / "docs").rglob("*")):
        name = file.relative_to(root).as_posix()
        is_tool = name.startswith("docs/pages/") or name == "docs/generate.py"
        if is_tool or "__pycache__" in name or name in MOVED_PAGES:
            continue
        if file.is_file() and file.name.endswith(COPIED_ENDINGS):
            yield name, name.removeprefix("docs/")


def rewrite_links(text: str, source: str, sources: dict[str, str]) -> str:
    """Return a page with the links of the site.

    Args:
        source: the path of the page in the repository.
        sources: the paths in the site of all files, by their paths in the repository.
    """
    here = posixpath.dirname(sources[source])

    def rewrite(link: re.Match[str]) -> str:
        target, mark, anchor = link["target"].partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return link[0]

        place = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if place in sources:
            path = posixpath.relpath(sources[place], here)
            return f"{link['mark']}[{link['text']}]({path}{mark}{anchor}{link['title'] or ''})"
        index = posixpath.join(place, "README.md")
        if index in sources:
            path = posixpath.relpath(sources[index], here)
            return f"[{link['text']}]({path}{mark}{anchor})"
        # A file of the repository that is no page, such as a test.
        return link["text"]

    lines = []
    is_code = False
    for line in _join_broken_links(text).splitlines(keepends=True):
        if _FENCE.match(line):
            is_code = not is_code
        lines.append(line if is_code else _LINK.sub(rewrite, line))
    return "".join(lines)


def _join_broken_links(text: str) -> str:
    """Return a page whose links are not broken over two lines within their text."""
    return re.sub(r"\[([^\]\n]*)\n *([^\]\n]*)\]\(", r"[\1 \2](", text)


def read_sections(root: Path) -> list[Section]:
    """Return the sections of the index, each page once: where the index names it first."""
    sources = dict(_list_sources(root))
    text = _join_broken_links((root / INDEX).read_text(encoding="utf-8"))
    sections: list[Section] = []
    seen = {MOVED_PAGES[INDEX]}
    for line in text.splitlines():
        if line.startswith("## "):
            sections.append(Section(line.removeprefix("## ")))
        elif sections and re.fullmatch(r"[A-Z][^:\[]*:", line):
            sections[-1].groups.append(Section(line.removesuffix(":")))
        elif sections:
            open_section = sections[-1].groups[-1] if sections[-1].groups else sections[-1]
            for path in _list_linked_pages(line, sources):
                if path not in seen:
                    seen.add(path)
                    open_section.pages.append(path)

    rest = [path for path in sources.values() if path.endswith(".md") and path not in seen]
    decisions = [path for path in rest if "decisions/" in path]
    project = [path for path in rest if path not in decisions and path != "index.md"]
    if decisions:
        sections[-1].groups.append(Section("Decisions", decisions))
    sections.append(Section("Project", project))
    return sections


def _list_linked_pages(line: str, sources: dict[str, str]) -> Iterator[str]:
    for link in _LINK.finditer(line):
        target = link["target"].partition("#")[0]
        place = posixpath.normpath(posixpath.join(posixpath.dirname(INDEX), target))
        path = sources.get(place, "")
        if path.endswith(".md"):
            yield path


def add_navigation(settings: str, sections: list[Section]) -> str:
    """Return the settings of the site with the navigation, which belongs above the first table."""
    lines = [
        "nav = [",
        '    {"Start" = "index.md"},',
        *(f"    {_format_section(section)}," for section in sections),
        "]",
    ]
    before, mark, after = settings.partition("\n[project.theme]")
    return before + "\n".join(lines) + "\n" + mark + after


def _format_section(section: Section) -> str:
    pages = [f'"{path}"' for path in section.pages]
    groups = [_format_section(group) for group in section.groups if group.pages]
    return f'{{"{section.title}" = [{", ".join([*pages, *groups])}]}}'


def describe_pages(pages: Path, sections: list[Section]) -> str:
    """Return `llms.txt` (llmstxt.org): each page with its title and its first sentence."""
    lines = ["# agentctl", "", f"> {DESCRIPTION}", ""]
    for section in sections:
        lines += [f"## {section.title}", ""]
        paths = [*section.pages, *(path for group in section.groups for path in group.pages)]
        for path in paths:
            text = (pages / path).read_text(encoding="utf-8")
            title = _TITLE.search(text)
            name = title["title"] if title else path
            lines.append(f"- [{name}]({path}){_read_first_sentence(text)}")
        lines.append("")
    return "\n".join(lines)


def _read_first_sentence(text: str) -> str:
    """Return a colon and the first sentence below the title; empty if there is no prose."""
    prose = text.partition("\n\n")[2].partition("\n\n")[0].replace("\n", " ")
    prose = _LINK.sub(lambda link: link["text"], prose)
    if not re.match(r"[A-Za-z`*]", prose):
        return ""
    sentence = re.match(r".*?[.:](?= |$)", prose)
    return f": {sentence[0].rstrip('.:')}" if sentence else ""


def _run_zensical(work: Path) -> None:
    """Build the site of a folder with zensical.toml; a warning is an error."""
    command = [str(Path(sys.executable).parent / "zensical"), "build", "--clean", "--strict"]
    environment = {**os.environ, "NO_COLOR": "1"}
    done = subprocess.run(
        command, cwd=work, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        # The traceback of the program below its own report tells a writer of pages nothing.
        report = (done.stdout + done.stderr).partition("Traceback")[0]
        raise SystemExit(f"{report}\nerror: the documentation site has problems")


if __name__ == "__main__":
    main()
