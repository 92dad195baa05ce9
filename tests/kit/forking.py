"""Processes that run `agentctl` without the start of an interpreter and its imports.

A process, the template, imports the modules of commands and servers once. For each command, a fork
of it gets the words, environment, folder and streams, and then executes what `python -m agentctl`
does, from `__main__` to the end of the interpreter. Such a process has a separate process id,
signals, threads and an exit code. The workers that such a server starts are forks of it. A test of
the start of the program, or of the modules that it loads, starts `tests.kit.process.AGENTCTL`.

Imports take 80% of the CPU time of a short command, and 60% of that of a short server. The template
also builds the operations of a server, and reads the trusted authorities.

For a folder with agents of libraries, also in modules or of providers that its configuration names,
the template has those libraries, and all that earlier servers needed: it is a fork of the template
before it, and imports what is missing. So a run of the suite imports each library once, which takes
one to two CPU seconds. A server without agents of a library is a fork of the first template, which
has none.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import fcntl
import functools
import gc
import importlib
import itertools
import json
import logging
import os
import pkgutil
import re
import runpy
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpcore2
import httpx2

from agentctl import cli
from tests.notices import FORKED, tell

__all__ = [
    "ForkedProcess",
    "define_function",
    "is_forkable",
    "share_templates",
    "share_trust",
    "stop_templates",
]

_FUNCTION = """agentctl() {{
  local as=; if [ "$1" = serve ] && [ "$BASHPID" != "$$" ]; then as=exec; fi
  $as '{python}' -IS '{client}' '{path}' "$@"
}}"""
"""A server in the background is the job itself, which passes the signals of the test on."""

_MODULES = (
    "agentctl.auth.explain.explain", "agentctl.auth.verifier", "agentctl.config",
    "agentctl.remote.client", "agentctl.runtime.components.configured",
    "agentctl.runtime.models.openai_chat", "agentctl.server.app",
    "agentctl.server.processes.serve", "agentctl.admin.doctor.configuration",
    "agentctl.service.service", "agentctl.store.sqlite.database", "agentctl.store.sqlite.schema",
    "asyncpg", "concurrent.futures.thread", "email.parser", "httpcore2", "httpx2",
    "importlib.metadata", "multiprocessing.context", "pydantic.main", "rich.console", "rich.table",
    "uvloop",
)  # fmt: skip
"""The modules that commands import later, from other packages."""

_OF_ONE_PROCESS = "agentctl.store.postgres.connection"
"""A module with a random value for each process."""

_READ_AT_START = ("PYTHON", "LANG", "LC_", "LITELLM_")
"""Beginnings of the names of variables that are read once: by an interpreter, or by a library."""

_READ_BY_WORKERS = "PYTHONFAULTHANDLER"
"""One of them that is only for the programs that a server starts: its workers."""

_ROOT = Path(__file__).parents[2]

_LIBRARY = re.compile(
    r"^ *(?:from|import) "
    r"((?:agents|agno|anthropic|google|langchain\w*|langgraph|mcp|openai|pydantic_ai)\b[\w.]*)",
    re.M,
)  # fmt: skip
"""An import of a library of agents."""

_HOSTED = re.compile(r"\btests(?:\.\w+)+(?=:)")
"""A module of the tests that a configuration names."""

_PROVIDER = re.compile(r'^provider = "(anthropic|bedrock|google|mistral)"', re.M)
"""A provider with a library; the server imports it for the agents of the provider."""

_IMPORTED_LATER = {
    "google.adk.agents": (
        "agentctl.runtime.runners.adk",
        "google.adk.agents.llm_agent",
        "google.adk.agents.loop_agent",
        "google.adk.agents.parallel_agent",
        "google.adk.agents.sequential_agent",
        "google.adk.models.google_llm",
        "google.adk.workflow._workflow",
    ),
    "google.adk.models.lite_llm": (
        "litellm",
        "litellm.responses.mcp.litellm_proxy_mcp_handler",
        "openai.resources",
    ),
}
"""Modules of a library that it imports with its first agent, or with the first call of a model:
some seconds of each server."""

_IMPORTING = frozenset({"check", "serve", "start"})
"""Words of the commands that import the agents of their folder: `config check`, `serve` and `runs
start`."""

_WORKER = "agentctl.server.processes.worker_main"

_OPTIONS = frozenset({"stdin", "stdout", "stderr", "text", "cwd", "start_new_session"})


def is_forkable(environment: Mapping[str, str], options: Mapping[str, Any]) -> bool:
    """Return True if `ForkedProcess` supports these options of `subprocess.Popen`.

    Benchmarks, outside of pytest, measure the program as users start it. A measurement of the
    coverage starts with the interpreter.
    """
    return (
        "PYTEST_VERSION" in os.environ
        and _OPTIONS.issuperset(options)
        and not any(name.startswith("COVERAGE_") for name in environment)
    )


class ForkedProcess(subprocess.Popen[Any]):
    """`python -m agentctl WORDS`, as a fork of the template.

    Args:
        environment: all environment variables.
        module: another module to execute, which `sys.path` of the folder must have.
        python: the interpreter of the template, which may be that of another environment.
        terminal: path of a terminal that becomes the streams and, in a new session, the controlling
            terminal.
        options: arguments of `subprocess.Popen`, see `is_forkable`.
    """

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        *,
        module: str = "agentctl",
        python: str = sys.executable,
        terminal: str | None = None,
        **options: Any,
    ) -> None:
        self._module = module
        self._python = python
        self._terminal = terminal
        super().__init__(["agentctl", *words], env=dict(environment), **options)

    def _execute_child(  # type: ignore[override]
        self,
        args: list[str],
        _program: Any,
        _before: Any,
        _close: Any,
        _pass: Any,
        cwd: Path | str | None,
        env: dict[str, str],
        _start: Any,
        _flags: Any,
        _shell: Any,
        *rest: Any,
    ) -> None:
        pipes = rest[:6]
        start_new_session = rest[11]
        stdin, _, _, stdout, _, stderr = pipes
        request = {
            "module": self._module,
            "words": args[1:],
            "environment": env,
            "folder": os.path.abspath(cwd or "."),  # noqa: PTH100
            "session": start_new_session,
            "terminal": self._terminal,
        }
        streams = [
            n if stream == -1 else stream for n, stream in enumerate((stdin, stdout, stderr))
        ]
        try:
            libraries = _find_libraries(request["folder"], args)
            template = _start_template(env, libraries, self._python)
            self.pid, self._status = _send_request(template, request, streams)
        finally:
            self._close_pipe_fds(*pipes)
        self._child_created = True
        weakref.finalize(self, os.close, self._status)

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        return self.poll()

    def wait(self, timeout: float | None = None) -> int:
        while self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            with self._waitpid_lock:
                if self.returncode is None:
                    code = int(os.read(self._status, 8))
                    tell(FORKED, int(os.read(self._status, 8)) / 1_000)
                    self.returncode = code
        return self.returncode


def _find_libraries(folder: str, words: Sequence[str]) -> tuple[str, ...]:
    """Return the modules of libraries that a command imports in this folder, sorted."""
    if _IMPORTING.isdisjoint(words):
        return ()
    configured = "".join(each.read_text(errors="replace") for each in Path(folder).glob("*.toml"))
    named = {name.replace(".", "/") for name in _HOSTED.findall(configured)}
    sources = [*Path(folder).glob("*.py"), *(_ROOT / f"{name}.py" for name in named)]
    found = {name for source in sources for name in _LIBRARY.findall(source.read_text())}
    found |= {f"pydantic_ai.models.{name}" for name in _PROVIDER.findall(configured)}
    for name in found & _IMPORTED_LATER.keys():
        found |= {*_IMPORTED_LATER[name]}
    return tuple(sorted(found | {"mcp"} if "--demo" in words else found))


def _send_request(path: str, request: Mapping[str, Any], streams: Sequence[int]) -> tuple[int, int]:
    """Send a request to a template; return the new process and where its exit code will arrive."""
    body = json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        socket.send_fds(connection, [b"%8d" % len(body)], streams)
        connection.sendall(body)
        return int(connection.recv(8, socket.MSG_WAITALL)), os.dup(connection.fileno())


_FOLDER = "AGENTCTL_TEST_TEMPLATES"
"""The variable with the folder of the templates: processes that this one starts use them too."""

_Template = tuple[str, list[list[str]], list[str], str]
"""Its interpreter, the variables that it has read, its libraries, and the path of its socket."""

_keepers: list[int] = []
_processes: list[subprocess.Popen[bytes]] = []


def share_templates() -> None:
    """Make the folder of the templates, which live until this process ends or stops them.

    The workers of a parallel run inherit the folder, so all of them use the same templates.
    """
    folder = Path(tempfile.mkdtemp(prefix="agentctl-forks-"))
    (folder / "templates.json").write_text("[]")
    os.mkfifo(folder / "stdin")
    # The templates end when no process has their stdin open for writing any more: this is the only
    # one. Linux opens a FIFO at once for reading and writing, for writing alone it would block.
    _keepers.append(os.open(folder / "stdin", os.O_RDWR))
    os.environ[_FOLDER] = str(folder)


def stop_templates() -> None:
    """Stop the templates, if this process has made their folder."""
    if not _keepers:
        for process in _processes:
            process.returncode = 0  # It ends after this process, and is no leak.
        return
    os.close(_keepers.pop())
    for process in _processes:
        process.wait()
    shutil.rmtree(os.environ.pop(_FOLDER))


def _start_template(
    environment: Mapping[str, str], libraries: Sequence[str] = (), python: str = sys.executable
) -> str:
    """Start a template with these libraries or more, unless one runs; return its socket's path."""
    given = sorted(
        [name, value]
        for name, value in environment.items()
        if name.startswith(_READ_AT_START) and name != _READ_BY_WORKERS
    )
    if _FOLDER not in os.environ:
        share_templates()
    folder = Path(os.environ[_FOLDER])
    file = folder / "templates.json"
    # Another thread or worker that needs a template waits until this one is known.
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        templates: list[_Template] = json.loads(file.read_text())
        alike = [each for each in templates if (each[0], each[1]) == (python, given)]
        if not alike:
            with _listen(folder, len(templates)) as (path, listener):
                _processes.append(_execute_template(python, dict(given), listener))
            alike.append((python, given, [], path))
            file.write_text(json.dumps([*templates, *alike]))
            templates += alike
        if not libraries:
            return alike[0][3]

        largest = alike[-1]
        more = sorted({*libraries} - {*largest[2]})
        if not more:
            return largest[3]
        with _listen(folder, len(templates)) as (path, listener):
            streams = [listener.fileno()] * 3
            os.close(_send_request(largest[3], {"libraries": more}, streams)[1])
        added = (python, given, [*largest[2], *more], path)
        file.write_text(json.dumps([*templates, added]))
        return path


@contextlib.contextmanager
def _listen(folder: Path, number: int) -> Iterator[tuple[str, socket.socket]]:
    """Open the socket of a new template; yield its path too."""
    path = str(folder / f"{number}.socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(100)
        yield path, listener


def _execute_template(
    python: str, environment: dict[str, str], listener: socket.socket
) -> subprocess.Popen[bytes]:
    with Path(os.environ[_FOLDER], "stdin").open("rb") as stdin:
        return subprocess.Popen(
            [python, "-m", __name__, str(listener.fileno())],
            cwd=_ROOT,
            env={"PATH": os.environ["PATH"], **environment},
            stdin=stdin,
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )


def define_function() -> str:
    """Return the definition of a function `agentctl` for a shell, which has a template run it."""
    path = _start_template({"LANG": "C.UTF-8"})
    client = Path(__file__).with_name("forking_client.py")
    return _FUNCTION.format(python=sys.executable, client=client, path=path)


def run_template(listener: socket.socket) -> str:
    """Fork for each request, until stdin is closed. In each fork, return the module to execute."""
    assert _OF_ONE_PROCESS not in sys.modules
    gc.collect()
    gc.freeze()
    while 0 not in select.select([listener, 0], [], [])[0]:
        connection, _ = listener.accept()
        with connection:
            if os.fork() == 0:
                listener.close()
                return _answer(connection)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    os._exit(0)


def share_trust() -> None:
    """Load the trusted authorities once: it takes 25 ms, and every client of a test would do it."""
    load = httpcore2.default_ssl_context
    cached = functools.cache(lambda _names, **options: load(**options))

    def share(**options: bool) -> ssl.SSLContext:
        names = tuple(os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"))
        return cached(names, **options)

    httpcore2.default_ssl_context = share


def _prepare_servers() -> None:
    """Do what every server does in the same way, and keeps: half of the CPU time of its start."""
    from pydantic import TypeAdapter

    from agentctl.config import load_settings
    from agentctl.server.routes import build_all_operations

    share_trust()
    httpx2.create_ssl_context()
    build_all_operations()
    TypeAdapter(int)  # finds the plugins of pydantic
    with contextlib.suppress(ImportError):
        from genai_prices.data_snapshot import get_snapshot

        # The first model of pydantic-ai reads the list of prices. Not every environment has it.
        get_snapshot()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "agentctl.toml")
        file.touch()
        load_settings(file, {})


def _answer(connection: socket.socket) -> str:
    """Become a template with libraries, or the parent of the process of a command.

    Return in that process, with the module to execute.
    """
    message, streams, _, _ = socket.recv_fds(connection, 8, 3)
    request = json.loads(connection.makefile("rb").read(int(message)))
    if "libraries" in request:
        connection.sendall(b"%8d" % os.getpid())
        connection.close()
        for library in request["libraries"]:
            # The server reports a library that is not installed.
            with contextlib.suppress(ImportError):
                importlib.import_module(library)
        return run_template(socket.socket(fileno=streams[0]))
    command = os.fork()
    if command == 0:
        connection.close()
        _become_command(request, streams)
        return str(request.get("module", "agentctl"))
    for stream in streams:
        os.close(stream)
    with contextlib.suppress(BrokenPipeError):
        connection.sendall(b"%8d" % command)
        _, status, usage = os.wait4(command, 0)
        milliseconds = (usage.ru_utime + usage.ru_stime) * 1_000
        connection.sendall(b"%8d%8d" % (os.waitstatus_to_exitcode(status), milliseconds))
    os._exit(0)


def _become_command(request: dict[str, Any], streams: list[int]) -> None:
    encoding = sys.stdout.encoding
    errors = sys.stdout.errors
    if request.get("session"):
        os.setsid()
    if request.get("terminal"):
        # The shell that started the suite may have made it ignore the end of a terminal.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        # The first terminal that the leader of a new session opens is its controlling terminal.
        streams = [os.open(request["terminal"], os.O_RDWR) for _ in range(3)]
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, max(streams) + 1)
    like: dict[str, Any] = {"encoding": encoding, "errors": errors, "closefd": False}
    sys.stdin = sys.__stdin__ = open(0, **like)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", **like)  # noqa: SIM115
    like["errors"] = "backslashreplace"
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, **like)  # noqa: SIM115
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    sys.path[0] = request["folder"]
    sys.argv = ["agentctl", *request["words"]]
    for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
        del sys.modules[name]


def _end_process(code: Any, inherited: Collection[str]) -> None:
    """End as an interpreter does, but for what the template has imported.

    To destroy that, a process would copy all memory of the template: 12,000 pages, 0.1 CPU seconds.
    Return for an ordinary end if there are threads, which may not survive it, or failures.

    Args:
        inherited: the names of the modules of the template.
    """
    if threading.active_count() > 1 or not isinstance(code, int):
        return
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for name in sys.modules.keys() - inherited:
        vars(sys.modules.pop(name)).clear()
    gc.collect()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class _WorkerProcess(subprocess.Popen[Any]):
    """A process of a server: a fork of it if it is a worker, otherwise a new program."""

    inherited: Collection[str]

    def _execute_child(  # type: ignore[override]
        self,
        args: Sequence[str],
        program: Any,
        before: Any,
        close: Any,
        kept: Sequence[int],
        *rest: Any,
    ) -> None:
        if _WORKER not in args:
            super()._execute_child(args, program, before, close, kept, *rest)  # type: ignore[misc]
            return
        ours, theirs = socket.socketpair()
        with ours, theirs:
            socket.send_fds(ours, [b"0"], kept)
            self.pid = os.fork()
            if self.pid == 0:
                # The event loop of the supervisor and its variables stay below, and never go on.
                contextvars.Context().run(_become_worker, args, kept, theirs, self.inherited)
        self._child_created = True
        os.close(rest[5])  # stdin


def _become_worker(
    args: Sequence[str], kept: Sequence[int], channel: socket.socket, inherited: Collection[str]
) -> None:
    """Do what a new interpreter would do for `python -m agentctl...worker_main NUMBERS`.

    Args:
        kept: the file descriptors of the worker.
        channel: has copies of them, because a server closes its sockets in a fork.
    """
    code: Any = 1
    try:
        gc.freeze()
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for copy, number in zip(socket.recv_fds(channel, 1, len(kept))[1], kept, strict=True):
            os.dup2(copy, number)
        ends = [2, *sorted(kept), os.sysconf("SC_OPEN_MAX")]
        for below, number in itertools.pairwise(ends):
            os.closerange(below + 1, number)
        atexit._clear()
        logging.getLogger().handlers.clear()
        for name in sys.modules.keys() - inherited:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if name.startswith("agentctl.") or file.startswith(sys.path[0]):
                del sys.modules[name]
        if "-P" in args:
            del sys.path[0]
        sys.argv = list(args[args.index("-m") + 1 :])
        code = _run_module(_WORKER)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run_module(name: str) -> Any:
    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        return ended.code or 0
    return 0


if __name__ == "__main__":
    commands = [found.name for found in pkgutil.walk_packages(cli.__path__, f"{cli.__name__}.")]
    for module in (*commands, *_MODULES):
        importlib.import_module(module)
    _prepare_servers()
    module_to_execute = run_template(socket.socket(fileno=int(sys.argv[1])))
    _WorkerProcess.inherited = {*sys.modules}
    subprocess.Popen = _WorkerProcess  # type: ignore[misc]
    code = _run_module(module_to_execute)
    _end_process(code, _WorkerProcess.inherited)
    sys.exit(code)
