"""The sheet of all keys."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

KEYS: tuple[tuple[str, str], ...] = (
    ("1 2 3 4", "runs, sessions, components, workers"),
    ("↑ ↓", "select a row"),
    ("Enter", "show the pane on the whole screen"),
    ("Esc", "go back: from the pane, the filter, another view"),
    ("t", "timeline of the selected run, or its transcript"),
    ("e", "events of the selected run as they happen, or its transcript"),
    ("r", "runs of the selected session or component"),
    ("c", "cancel the selected run, after a question"),
    ("C", "cancel all runs that the filter shows, after their number"),
    ("a", "decide about what the selected paused run waits for"),
    ("/", "filter: agent:ID team:ID workflow:ID user:ID session:ID status:WORD text"),
    ("s", "sort by the next key"),
    ("p", "pause"),
    ("u", "read now; try again now"),
    ("y", "copy the id"),
    ("?", "this help"),
    ("q", "quit; runs continue"),
)


class HelpScreen(ModalScreen[None]):
    """All keys, until a key closes it."""

    CSS = """
    HelpScreen { align: center middle; }
    #help { width: 78; max-width: 98%; height: auto; max-height: 98%; border: round $primary;
            padding: 0 1; background: $surface; }
    #help Static { height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key, "dismiss", "close") for key in ("escape", "question_mark", "q", "enter")
    ]

    def compose(self) -> ComposeResult:
        text = Text()
        for keys, action in KEYS:
            text.append(f"{keys:8} ", "bold").append(f"{action}\n", "none")
        text.rstrip()
        with VerticalScroll(id="help") as box:
            box.border_title = "keys"
            yield Static(text)
