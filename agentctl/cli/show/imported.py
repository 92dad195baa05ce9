"""The result of an import."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentctl.cli.show.output import Format, show_list
from agentctl.cli.show.table import Column, Columns
from agentctl.cli.show.terminal import note
from agentctl.errors import PartFailed

if TYPE_CHECKING:
    from agentctl.service.imports.store import ImportReport

_COUNTS = [Column("what"), Column("count")]


def report_import(made: ImportReport, form: Format) -> None:
    """Print the numbers of imported and skipped rows, and list the rest with the reasons."""
    from agentctl.records.document import build_document

    rows = [{"what": name, "count": count} for name, count in made.counts.items() if count]
    show_list(build_document(rows), Columns(_COUNTS, _COUNTS), form, id_field="what")
    for text in made.unused:
        note(f"no place for {text}")
    for name, reason in made.left:
        note(f"left out: {name}: {reason}")


def check_complete(made: ImportReport) -> None:
    """Raise PartFailed if something was left out."""
    if made.left:
        raise PartFailed(f"{len(made.left)} sessions, runs or memories were left out")
