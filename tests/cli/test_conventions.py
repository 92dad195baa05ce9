"""The 39 conventions of command lines (clig.dev, XDG): the test of each, or its refusal."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cli.conftest import Agentctl
from tests.cli.demo import Demo

ROOT = Path(__file__).parents[2]

CONVENTIONS = {
    "help is on stdout": "report:help_is_on_stdout",
    "a group alone shows its help, exit code 2": "report:a_group_without_a_command_shows_its_help",
    "-h and --help fit a terminal": "help:help_is_that_of_the_reference_and_fits_a_terminal",
    "every option has a help text": "help:every_parameter_has_a_help_text",
    "every help has an example": "help:the_example_is_an_existing_command",
    "the commands have headings": "help:root_help_has_every_command_under_a_heading",
    "a manual page": "common:manual_page_has_every_command",
    "--version is one line": "report:version_is_one_line",
    "a start is quick": "startup:help_and_version_import_nothing_heavy",
    "data on stdout, notes on stderr": "token:only_the_token_is_on_stdout",
    "a table at a terminal, tsv in a pipe": "terminal:a_terminal_gets_a_table_and_a_pipe_gets_tsv",
    "-o json": "fields:fields_in_every_format",
    "an environment variable for the format": "terminal:agentctl_output_selects_the_format",
    "chosen fields": "fields:a_wrong_field_is_refused_with_the_allowed_ones",
    "times in whole seconds for people": "table:times_are_shown_to_the_second",
    "tables fit the terminal": "table:a_table_fits_the_terminal_and_ids_stay_whole",
    "control characters are escaped": "terminal:control_characters_are_escaped",
    "a pager for long text": "transcript:a_long_transcript_goes_to_the_pager",
    "NO_COLOR and --color": "pages:colors_are_used_as_requested",
    "a pipe that is closed early": "runs:a_closed_pipe_is_no_error",
    "a full disk": "wrong_input:output_without_space_is_reported",
    "exit codes by class": "report:every_error_class_has_an_exit_code",
    "error, cause and hint": "report:an_error_has_detail_cause_and_hint",
    "did you mean": "report:an_unknown_option_gets_a_suggestion",
    "no trace of a bug": "report:an_internal_error_hides_its_text",
    "Ctrl-C is exit code 130": "terminal:an_interrupt_at_a_question_is_exit_code_130",
    "- is stdin": "run_input:option_takes_text_file_and_stdin",
    "-- ends the options": "conventions:dashes_end_the_options",
    "a question before a deletion": "sessions_prune:prune_asks_and_rejects_wrong_options",
    "--yes off a terminal": "terminal:off_a_terminal_yes_is_required",
    "--no-input": "terminal:no_input_never_asks",
    "--dry-run": "sessions_prune:dry_run_shows_numbers_and_changes_nothing",
    "--quiet and --verbose": "common:verbose_and_quiet_exclude_each_other",
    "no secret in an argument": "token:a_token_as_an_argument_is_rejected",
    "a bound of --expires-in": "wrong_input:wrong_words_of_local_commands_have_a_remedy",
    "completion in shells": "startup:completion_can_be_installed",
    "--timeout for servers": "common:timeout_ends_the_wait_for_a_silent_server",
    "settings in XDG_CONFIG_HOME": "context:the_file_is_private_and_contains_no_token",
    "data in XDG_DATA_HOME": "refused: the folder of their configuration, not in `XDG_DATA_HOME`",
}
"""Each convention with `MODULE:TEST` of this folder, or the words of docs/cli.md that refuse it."""


def test_every_convention_has_a_test_or_a_refusal() -> None:
    page = " ".join((ROOT / "docs/cli.md").read_text().split())
    assert len(CONVENTIONS) == 39
    for convention, proof in CONVENTIONS.items():
        place, _, name = proof.partition(":")
        if place == "refused":
            assert name.strip() in page, convention
            continue
        source = (Path(__file__).parent / f"test_{place}.py").read_text()
        assert re.search(rf"^(async )?def test_{name}\(", source, re.MULTILINE), convention


def test_dashes_end_the_options(agentctl: Agentctl, demo: Demo) -> None:
    config = ("--config", str(demo.config))
    assert agentctl("agents", "get", *config, "--", "echo").code == 0
    ended = agentctl("agents", "get", *config, "--", "--help")
    assert (ended.code, ended.stdout) == (5, "")
    assert "agent not found: --help" in ended.stderr
