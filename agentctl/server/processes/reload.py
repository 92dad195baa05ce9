"""`agentctl serve --reload`: a server for development that restarts when its files change.

A supervisor with one worker. After a change it starts another worker on the same socket; when that
one is ready, the previous worker accepts no more connections, waits for its live runs and ends. If
the new one cannot start, the previous one continues.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentctl.config.extras import build_extra_command
from agentctl.config.settings import Settings
from agentctl.errors import AgentctlError, InternalError, UsageError
from agentctl.server.processes.listener import Announcements, open_listeners
from agentctl.server.processes.supervisor import (
    COUNT_SECONDS,
    Supervisor,
    WorkerHandle,
    prepare_databases,
    start_error,
)
from agentctl.telemetry.log import log_to_stderr

DEBOUNCE_MILLISECONDS = 200
"""Changes within this time are one: editors write a file in several steps."""

SHOWN_FILES = 3


def serve_with_reload(
    load: Callable[[], Settings],
    settings: Settings,
    announcements: Announcements,
    app: str | None = None,
    *,
    report: Callable[[str], None],
) -> None:
    """Serve with one process until a stop signal, and replace it after each change of its files.

    The files are the configuration, and below its folder every Python module and every file of a
    package; with `app` also the modules and packages below the current folder. The address of the
    server does not change.

    Args:
        load: reads the configuration again, as `settings` was read.
        report: receives a line about each reload.

    Raises:
        UsageError: the package that watches files is missing, or the system cannot watch them; and
            the errors of `supervisor.serve_with_workers`.
    """
    if find_spec("watchfiles") is None:
        raise UsageError(
            "--reload needs a package that is not installed: watchfiles",
            hint=build_extra_command("reload"),
        )
    log_to_stderr(settings.log, with_process_id=True)
    with open_listeners(settings, announcements) as (listener, metrics):
        supervisor = _ReloadingSupervisor(
            settings, listener, metrics, announcements, app, load=load, report=report
        )
        asyncio.run(supervisor.run())


class _ReloadingSupervisor(Supervisor):
    """A supervisor that replaces its worker when files change; see `serve_with_reload`."""

    def __init__(
        self, *values: Any, load: Callable[[], Settings], report: Callable[[str], None]
    ) -> None:
        super().__init__(*values)
        self._load = load
        self._report = report
        self._started = asyncio.Event()
        self._ends: set[asyncio.Task[None]] = set()

    async def _serve(self) -> None:
        watching = asyncio.create_task(self._watch())
        # It watches from here on, before the first process reads the files.
        await asyncio.sleep(0)
        try:
            current = await self._start_worker()
            await current.wait_until_ready()
            if not self._signals and not current.is_ready:
                raise start_error([current])

            self._replace_current(current)
            self._started.set()
            if not self._signals:
                self._announce_start()

            if await self._wait_unless_stopped(asyncio.shield(watching)):
                # The watch ends only with an error.
                watching.result()
            await self._announce_live_runs()
            await asyncio.gather(*(worker.wait_until_ended() for worker in self._workers))
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _watch(self) -> None:
        """Reload after each change."""
        from watchfiles import awatch

        config = self._settings.path
        folders = [] if config is None else [config.parent]
        if self._app is not None:
            folders.insert(0, Path.cwd())
        folder = folders[0]

        try:
            async for changes in awatch(
                *folders,
                watch_filter=_build_filter(config),
                debounce=DEBOUNCE_MILLISECONDS,
                ignore_permission_denied=True,
            ):
                await self._started.wait()
                paths = sorted({os.path.relpath(path, folder) for _, path in changes})
                await self._reload(paths)
        except OSError as error:
            raise UsageError(
                f"the files in {folder} cannot be watched",
                cause=os.strerror(error.errno).lower() if error.errno else None,
                hint="set WATCHFILES_FORCE_POLLING=true, or serve without --reload",
            ) from None

    async def _reload(self, paths: list[str]) -> None:
        more = len(paths) - SHOWN_FILES
        names = ", ".join(paths[:SHOWN_FILES]) + (f" and {more} more" if more > 0 else "")
        self._report(f"reload: {names} changed")
        try:
            settings = self._load()
            await prepare_databases(settings)
            self._worker_settings = settings
            worker = await self._start_worker()
        except AgentctlError as failure:
            self._report_failure(failure)
            return

        await worker.wait_until_ready()
        if self._signals:
            return
        if not worker.is_ready:
            self._workers.discard(worker)
            self._report_failure(worker.failure or InternalError(f"the process {worker.end}"))
            return

        previous = self._slots[0]
        self._replace_current(worker)
        self._report("reload: new requests are served by the new process")
        if previous not in self._workers:
            # It has ended by itself.
            return

        previous.give_way()
        count = await previous.count_live_runs(COUNT_SECONDS)
        if count:
            runs = "1 live run" if count == 1 else f"{count} live runs"
            seconds = previous.drain_seconds
            self._report(
                f"reload: the previous process waits {seconds:g} s for {runs}, then cancels"
            )

    def _replace_current(self, worker: WorkerHandle) -> None:
        self._slots[0] = worker
        task = asyncio.create_task(self._note_end(worker))
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)

    async def _note_end(self, worker: WorkerHandle) -> None:
        await worker.wait_until_ended()
        self._workers.discard(worker)
        if not self._signals and self._slots[0] is worker:
            self._report(f"reload: the server process {worker.end}; the next change starts another")

    def _report_failure(self, failure: AgentctlError) -> None:
        hint = f" (hint: {failure.hint})" if failure.hint else ""
        self._report(
            f"reload failed, the previous process continues: {failure.detail_with_cause}{hint}"
        )


def _build_filter(config: Path | None) -> Callable[[object, str], bool]:
    from watchfiles import Change, DefaultFilter

    ignored = DefaultFilter()

    def is_watched(change: object, path: str) -> bool:
        assert isinstance(change, Change)
        file = Path(path)
        return file == config or (
            ignored(change, path)
            and (file.suffix == ".py" or (file.parent / "__init__.py").exists())
        )

    return is_watched
