"""The entry point of the command line; `--version` is answered before Typer is imported."""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentctl import __version__

if TYPE_CHECKING:
    from agentctl.cli.io import IO


COLLECTION_THRESHOLD = 100_000
"""Allocations that start a garbage collection. The objects of a start live as long as the process,
so that the collections of the default of 700 took an eighth of its time and found nothing."""


def main(arguments: Sequence[str] | None = None, io: IO | None = None) -> int:
    """Run a command and return its exit code (docs/contract.md "Command line").

    Args:
        arguments: the words after `agentctl`; None: those of this process, which the call ends if
            work of tools would delay its exit.
        io: the streams to use; None: those of this process.
    """
    if arguments is None:
        gc.set_threshold(COLLECTION_THRESHOLD)
    code = _run_command(arguments, io)
    if arguments is None and "asyncio" in sys.modules:
        from agentctl.event_loop import finish_process

        finish_process(code)
    return code


def _run_command(arguments: Sequence[str] | None, io: IO | None) -> int:
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words == ["--version"]:
        print(f"agentctl {__version__}", file=io.out if io else sys.stdout)
        return 0
    try:
        from contextlib import redirect_stderr, redirect_stdout

        from agentctl.cli.io import IO, using_io
        from agentctl.cli.root import app

        streams = io or IO.of_process()
        run = functools.partial(app, words, prog_name="agentctl")
        if os.environ.get("_AGENTCTL_COMPLETE") == "complete_bash":
            from agentctl.cli.completion import complete_in_bash

            run = functools.partial(complete_in_bash, run)
        # Typer writes help and completions to the streams of the process.
        with using_io(streams), redirect_stdout(streams.out), redirect_stderr(streams.err):
            run()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    except KeyboardInterrupt:
        return 130
    return 0
