"""The table of programs in docs/reference/programs.md, from the stored results of the suite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from compat.openai_suite import PROGRAMS, read_results
from compat.page import wrap

NO_FILES = "files need `sessions:write`, which the key of these programs does not have"
NO_MODEL = "the server has agents, and no models for embeddings, speech, moderation or plain text"
ONE_ANSWER = "a run has one answer, without probabilities of its tokens"

DECIDED = {
    "openai-python": {
        "chat: image": NO_FILES,
        "chat: log_probabilities": ONE_ANSWER,
        "chat: several_answers": ONE_ANSWER,
        "chat: with_a_workflow": "workflows are not models: they have no conversation",
        "responses: other_completions": NO_MODEL,
        "responses: other_embeddings": NO_MODEL,
        "responses: other_files": NO_FILES,
        "responses: other_moderations": NO_MODEL,
        "responses: log_probabilities": ONE_ANSWER,
        "responses: stored_fork_of_an_older_response": "a session is one line of conversation",
    },
    "open-webui": {"embeddings": NO_MODEL, "image": NO_FILES, "speech": NO_MODEL},
}
"""Operations that are refused by decision, by program, with the reason."""


SHOWN = ("first_message", "streaming", "tools", "cancel")
"""The operations of the first columns; most programs have operations with these names."""

NAMED = {
    "openai-python": (
        "chat: answer", "chat: stream_text", "tools: chat_round",
        "chat: stream_closed_cancels_the_run",
    ),
    "openai-node": ("chat", "chat_stream", "chat_run_tools", "abort_cancels_the_run"),
    "vercel-ai": (
        "responses_text", "responses_stream", "responses_tools", "responses_abort_cancels_the_run",
    ),
    "llm": ("prompt_without_stream", "prompt", "functions_as_tools", ""),
    "langchain": ("invoke", "stream", "tools", "closed_stream_cancels_the_run"),
    "pydantic-ai": ("chat_run", "chat_stream", "chat_tool", ""),
    "litellm": ("completion", "completion_stream", "tool_round", ""),
    "instructor": ("default_mode", "", "", ""),
    "openai-agents": ("run", "run_streamed", "tool", ""),
    "aider": ("first_message_without_stream", "first_message", "", ""),
    "codex": (
        "first_message", "first_message", "task_with_a_tool_of_the_agent_and_one_of_codex",
        "interrupt_cancels_the_run",
    ),
    "open-webui": ("message", "message_with_usage", "tools_of_the_program", "stop_generating"),
}  # fmt: skip
"""Those of other programs, in the order of the columns; empty for none."""

MARKS = {"right": "✓", "refused": "refused", "": ""}


def build_table() -> str:
    """Return the table, its sum and the reasons of the refusals."""
    results = read_results()
    reasons = list[str]()
    total = Counter[str]()
    heads = ["program", *SHOWN, "tried", "right", "due errors", "refused"]
    lines = [f"| {' | '.join(heads).replace('_', ' ')} |", "| --- " * len(heads) + "|"]
    for name, program in PROGRAMS.items():
        found = results[name]
        counts = Counter(found.values())
        total += counts
        numbers = set[int]()
        for operation in _list_refused(found):
            reason = DECIDED[name][operation]
            reasons += [reason] if reason not in reasons else []
            numbers.add(reasons.index(reason) + 1)
        notes = f" ({', '.join(map(str, sorted(numbers)))})" if numbers else ""
        cells = [MARKS[found.get(operation, "")] for operation in NAMED.get(name, SHOWN)]
        cells += [_link(str(counts.total()), program.scripts, "")]
        cells += [str(counts["right"]), str(counts["due"])]
        refused = ", ".join(_list_refused(found))
        cells.append(_link(str(counts["refused"]), program.scripts, refused) + notes)
        lines.append(f"| {program.title} | {' | '.join(cells)} |")
    sums = [total.total(), total["right"], total["due"], total["refused"]]
    lines += [f"| sum |{' |' * len(SHOWN)} {' | '.join(map(str, sums))} |", ""]
    for number, reason in enumerate(reasons, 1):
        lines += wrap(f"{number}. {reason[0].upper()}{reason[1:]}.", 3)
    return "\n".join(lines)


def _list_refused(results: dict[str, str]) -> Iterator[str]:
    return (operation for operation, outcome in results.items() if outcome == "refused")


def _link(text: str, scripts: tuple[str, ...], title: str) -> str:
    """Return a link to the script with the operations of a cell, or to the folder of several."""
    script = scripts[0] if len(scripts) == 1 else ""
    shown = f' "{title}"' if title else ""
    return f"[{text}](../../compat/openai_programs/{script}{shown})"
