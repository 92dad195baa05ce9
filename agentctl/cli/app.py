"""The entry point of the command line; `--version` is answered before Typer is imported.

Until `main` is called, Ctrl-C ends in a traceback of Python. So this module, and `agentctl` itself,
import only modules that Python has loaded or that load at once.
"""

from __future__ import annotations

import os
import sys

from agentctl import TYPE_CHECKING, __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentctl.cli.io import IO


def main(arguments: Sequence[str] | None = None, io: IO | None = None) -> int:
    """Run a command and return its exit code (docs/contract.md "Command line").

    Args:
        arguments: the words after `agentctl`; None for the words of this process, which the call
            ends if work of tools would delay its exit.
        io: the streams to use; None for the streams of this process.
    """
    try:
        if arguments is None:
            _open_closed_streams()
            _drop_unreadable_notes()
            _collect_rarely()
        code = _run_command(arguments, io)
    except KeyboardInterrupt:
        code = 130
    if arguments is None:
        _finish_output()
    if arguments is None and "asyncio" in sys.modules:
        from agentctl.work.event_loop import finish_process

        finish_process(code)
    return code


def _collect_rarely() -> None:
    from agentctl.cli.garbage import collect_rarely

    collect_rarely()


def _open_closed_streams() -> None:
    """Open the null device for each standard stream that the caller has closed.

    stdin is at its end then, and texts for stderr are dropped. Data must not be lost
    without an error: stdout is open for reading only, so that each write fails. Without this, the
    next file that the command opens gets the number of the stream.
    """
    streams = (
        ("stdin", os.O_RDONLY, "r"),
        ("stdout", os.O_RDONLY, "w"),
        ("stderr", os.O_WRONLY, "w"),
    )
    for name, flags, mode in streams:
        if getattr(sys, name) is None:
            # The system gives the lowest free number: the number of the stream.
            number = os.open(os.devnull, flags)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def _drop_unreadable_notes() -> None:
    """Drop texts for stderr that cannot be written, as those for a closed one.

    A note would otherwise end a command between two of its effects.
    """
    from agentctl.work.lost_output import drop_lost_writes

    sys.stderr = drop_lost_writes(sys.stderr)


def _finish_output() -> None:
    """Leave no text that Python could not write at its exit, which would make the exit code 120.

    A command has flushed its data, and reported a failure. The rest is, for example, what code of
    the user has printed.
    """
    from agentctl.work.lost_output import flush_or_drop

    flush_or_drop(sys.stdout)


def _run_command(arguments: Sequence[str] | None, io: IO | None) -> int:
    import functools
    from contextlib import redirect_stderr, redirect_stdout, suppress

    words = sys.argv[1:] if arguments is None else list(arguments)
    if words == ["--version"]:
        # If this fails, the root command fails in the same way, and reports it.
        with suppress(OSError):
            print(f"agentctl {__version__}", file=io.out if io else sys.stdout, flush=True)
            return 0
    try:
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
    return 0
