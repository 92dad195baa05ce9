"""The log compared with a formatter of the standard library.

One process writes random records to both. A line of the log has the same message, level, logger,
second and traceback, is one line, and has no control character.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentctl.records.text import replace_unstorable
from agentctl.telemetry.log import MAXIMUM_TEXT_LENGTH
from tests.differential.comparison import Comparison, Outcome

RECORDS = 400
PIECES = (
    "plain", "%s", "%d%%", "é", "\n", "\r\n", "\x00", "\x1b[31m", "\x7f", "\x85", "\u2028", '"',
    "\\", "\ud800", "\U0001f600", '{"level":"error"}', " WARNING agentctl.runs: forged", "x" * 300,
)  # fmt: skip

PROGRAM = """
import json, logging, sys
from agentctl.config.telemetry import Log
from agentctl.telemetry.log import log_to_stderr

log_to_stderr(Log(format=sys.argv[1], level="info"))

class Reference(logging.Handler):
    def emit(self, record):
        trace = self.formatter.formatException(record.exc_info) if record.exc_info else ""
        fields = [self.formatter.format(record).partition("\\0")[0], record.levelname, record.name,
                  record.getMessage(), trace]
        print(json.dumps(fields))

reference = Reference()
reference.setFormatter(logging.Formatter("%(asctime)s\\0", "%Y-%m-%dT%H:%M:%S"))
logging.Formatter.converter = __import__("time").gmtime
logging.getLogger().addHandler(reference)
for name, level, text, arguments, fails in json.loads(open(sys.argv[2]).read()):
    log = logging.getLogger(name)
    try:
        if fails:
            raise ValueError(text)
    except ValueError:
        log.log(level, text, *arguments, exc_info=True)
    else:
        log.log(level, text, *arguments)
"""


def write_records(comparison: Comparison, path: Path) -> int:
    """Write random records as JSON; return their number."""
    chance = comparison.chance
    records = []
    for _ in comparison.rounds(RECORDS):
        text = "".join(chance.choices(PIECES, k=chance.randrange(1, 5)))
        name = chance.choice(("agentctl.runs", "agentctl.access", "agentctl"))
        parts = text.replace("%%", "").split("%")[1:]
        arguments = [7 if part.startswith("d") else "a\nb" for part in parts]
        level = chance.choice((20, 30, 40))
        records.append((name, level, text, arguments, chance.random() < 0.2))
    path.write_text(json.dumps(records))
    return len(records)


def run_program(form: str, path: Path) -> tuple[list[str], list[list[str]]]:
    """Return the lines of the log, and the fields of the reference."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, form, str(path)],
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    return done.stderr.split("\n")[:-1], [json.loads(line) for line in done.stdout.splitlines()]


def test_json_lines_have_the_fields_of_the_standard_library(tmp_path: Path) -> None:
    with Comparison("log, JSON") as comparison:
        count = write_records(comparison, tmp_path / "records")
        lines, records = run_program("json", tmp_path / "records")
        assert len(lines) == len(records) == count
        for line, (second, level, name, message, trace) in zip(lines, records, strict=True):
            assert line.isascii()
            fields = {name: replace_unstorable(text) for name, text in json.loads(line).items()}
            assert fields.pop("time")[:18] == second[:18]
            expected = {"level": level.lower(), "logger": name, "message": message}
            if trace:
                expected["exception"] = trace
            reference = {key: replace_unstorable(value) for key, value in expected.items()}
            comparison.compare(
                line, Outcome(sorted(fields.items())), Outcome(sorted(reference.items()))
            )


def test_readable_lines_are_one_line_for_each_record(tmp_path: Path) -> None:
    with Comparison("log, readable") as comparison:
        write_records(comparison, tmp_path / "records")
        lines, records = run_program("text", tmp_path / "records")
        heads = [line for line in lines if not line.startswith("    ")]
        assert len(heads) == len(records)
        for head, (_, level, name, *_) in zip(heads, records, strict=True):
            words = head.split(" ")[1:3]
            comparison.compare(head, Outcome(words), Outcome([level, f"{name}:"]))
            assert head.isprintable()


@pytest.mark.parametrize("form", ["json", "text"])
def test_long_message_and_traceback_are_cut(form: str, tmp_path: Path) -> None:
    text = "x" * 1_000_000
    (tmp_path / "records").write_text(json.dumps([("agentctl", 30, text, [], True)]))
    lines, _ = run_program(form, tmp_path / "records")
    written = "\n".join(lines)
    assert "ValueError: xxx" in written
    assert written.replace("\\u2026", "…").count("…") == 2
    assert len(written) < 2 * MAXIMUM_TEXT_LENGTH + 2_000
