"""`agentctl top`: the live runs of a server on a full screen; needs the extra `top` (Textual)."""

from agentctl.extensions import AddedCommand, Extension

EXTENSION = Extension(
    "top",
    commands=(
        AddedCommand(
            "top",
            "agentctl.top.command:show_top",
            "Watch live runs on a full screen, and cancel them",
            after="runs",
        ),
    ),
)
