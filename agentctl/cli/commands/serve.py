"""`agentctl serve`: start the server, with `--demo` from a new directory with keys."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentctl import __version__
from agentctl.cli.demo import DEMO_DIRECTORY, create_demo, find_model, list_demo_steps, use_model
from agentctl.cli.options import Config
from agentctl.cli.parameters import flag, option
from agentctl.cli.show.terminal import note
from agentctl.cli.target import adding_config
from agentctl.errors import UsageError
from agentctl.records.text import format_count
from agentctl.records.times import format_span
from agentctl.work.lost_output import drop_lost_writes

if TYPE_CHECKING:
    from agentctl.config.settings import Settings

EXAMPLE = "agentctl serve --config agentctl.toml --port 8080"


def serve(
    config: Config = None,
    host: str | None = option("--host", "HOST", "Address to listen on"),
    port: int | None = option(
        "--port", "PORT", "Port to listen on (0: any free port)", min=0, max=65535
    ),
    workers: int | None = option("--workers", "N", "Number of worker processes", min=1, max=64),
    app: str | None = option(
        "--app", "MODULE:NAME", "Serve an application of agentctl.create_app with its own routes"
    ),
    demo: bool = flag("--demo", "Serve an offline demo with its own directory and keys"),
    demo_dir: Path | None = option(
        "--demo-dir", "DIR", f"Directory of the demo (default: {DEMO_DIRECTORY})"
    ),
    model: str | None = option(
        "--model",
        "MODEL",
        "Use a real model in the demo: gpt-5.2-mini or PROVIDER/MODEL; set its key, "
        "e.g. OPENAI_API_KEY",
    ),
    reload: bool = flag(
        "--reload", "Restart when the configuration or a module changes (development)"
    ),
    skip_broken: bool = flag(
        "--skip-broken", "Leave out agents and teams whose code cannot be loaded (development)"
    ),
    insecure_no_auth: bool = flag(
        "--insecure-no-auth", "Disable authentication: every caller is an administrator"
    ),
) -> None:
    """Start the server.

    Runs until Ctrl-C. A second Ctrl-C cancels the live runs.
    """
    if demo_dir is not None and not demo:
        raise UsageError("--demo-dir needs --demo")
    if model is not None and not demo:
        raise UsageError(
            "--model needs --demo", hint="the models of a configuration are its [[models]]"
        )
    if demo and config is not None:
        raise UsageError(
            "--demo and --config cannot be used together", hint="the demo has its own configuration"
        )
    if app is not None and (demo or config is not None):
        raise UsageError(
            f"--app and {'--demo' if demo else '--config'} cannot be used together",
            hint="the application names its configuration: agentctl.create_app(PATH)",
        )

    real = None if model is None else find_model(model)
    file = create_demo(demo_dir or DEMO_DIRECTORY) if demo else config

    # A reload reads the settings again, with the same options.
    read = functools.partial(_read_settings, file) if app is None else _read_settings_of(app)
    if real is not None:
        read = functools.partial(use_model, real, read)
    options = {"host": host, "port": port, "workers": workers}
    load = functools.partial(
        _load_settings, read, options, insecure_no_auth, reload=reload, skip_broken=skip_broken
    )
    settings = load()

    serve_settings = _select_server(settings, load if reload else None)
    from agentctl.server.processes.listener import Announcements

    metrics = list[str]()
    # What tools print is no data of the command: without a reader, their calls still succeed.
    printed = drop_lost_writes(sys.stdout)
    with adding_config(config), contextlib.redirect_stdout(printed):
        serve_settings(
            settings,
            Announcements(
                lambda url: _announce(settings, url, metrics, app, demo=demo, reload=reload),
                lambda runs: _announce_stop(settings, runs),
                metrics.append,
            ),
            app,
        )
        printed.flush()

    note("stopped")


def _select_server(
    settings: Settings, reload: Callable[[], Settings] | None
) -> Callable[..., None]:
    if reload is not None:
        from agentctl.server.processes.reload import serve_with_reload

        return functools.partial(serve_with_reload, reload, report=note)
    if settings.server.workers == 1:
        from agentctl.server.processes.serve import serve

        return serve
    from agentctl.server.processes.supervisor import serve_with_workers

    return serve_with_workers


def _read_settings(file: Path | None) -> Settings:
    from agentctl.config import load_settings

    return load_settings(file)


def _read_settings_of(app: str) -> Callable[[], Settings]:
    """Return a reader of the settings of an application.

    It reads their file again, unless the application has changed their values.
    """
    from agentctl.server.app import get_app_state
    from agentctl.server.processes.user_application import load_application

    settings = get_app_state(load_application(app)).settings
    if settings.path is not None and _read_settings(settings.path) == settings:
        return functools.partial(_read_settings, settings.path)
    return lambda: settings


def _load_settings(
    read: Callable[[], Settings],
    options: Mapping[str, Any],
    insecure_no_auth: bool,
    *,
    reload: bool,
    skip_broken: bool,
) -> Settings:
    from agentctl.config import require_verification_key
    from agentctl.records.hosts import is_loopback_host
    from agentctl.server.processes.service_manager import take_socket

    settings = read()

    passed_socket = take_socket()
    if passed_socket is not None:
        if options["host"] is not None or options["port"] is not None:
            raise UsageError(
                "--host and --port exclude a socket of the service manager",
                hint="set the address in the socket unit: ListenStream=127.0.0.1:7777",
            )
        host, port = passed_socket.getsockname()[:2]
        options = {**options, "host": host, "port": port}

    changes = {name: value for name, value in options.items() if value is not None}
    server = replace(settings.server, **changes)

    authorization = settings.authorization
    if insecure_no_auth:
        authorization = replace(authorization, enabled=False)
    elif not authorization.enabled and not is_loopback_host(server.host):
        raise UsageError(
            f"authorization is disabled and other machines can reach {server.host}",
            hint="set enabled = true in [authorization], or pass --insecure-no-auth",
        )

    settings = replace(settings, server=server, authorization=authorization)
    require_verification_key(settings)

    if reload and server.workers > 1:
        raise UsageError(
            f"--reload has one worker process, not {server.workers}",
            hint="pass --workers 1; --reload is for development only",
        )

    return _leave_out_broken(settings) if skip_broken else settings


def _leave_out_broken(settings: Settings) -> Settings:
    from agentctl.server.processes.broken import leave_out_broken

    settings = leave_out_broken(settings)
    for name, problem in settings.left_out.items():
        note(f"LEFT OUT: {name}: {problem}")
    return settings


def _announce(
    settings: Settings, url: str, metrics: list[str], app: str | None, *, demo: bool, reload: bool
) -> None:
    """Write the lines about a server that listens: each names a value that was chosen."""
    note(f"agentctl {__version__} listens on {url}, configured by {settings.path or app}")
    if app is not None:
        note(f"application: {app}, with its own routes")
    if settings.authorization.enabled:
        note(f"authorization: jwt, {settings.authorization.algorithm}")
    else:
        note("authorization: none, every caller is an administrator")

    if settings.console.enabled:
        note(f"console: {url}/console")
        if settings.console.chat:
            note(f"chat: {url}/chat")
    if settings.server.guide is not None:
        note(f"guide: {url}/guide/")

    if settings.server.workers > 1:
        note(f"workers: {settings.server.workers} processes")
    if reload and settings.path is not None:
        note(f"reload: for development, after changes of modules in {settings.path.parent}")
    for address in metrics:
        note(f"metrics: {address}")

    if demo and settings.path is not None:
        for line in list_demo_steps(settings, settings.path, url):
            note(line)


def _announce_stop(settings: Settings, runs: int | None) -> None:
    if runs == 0:
        note("stopping")
        return
    work = "runs" if runs is None else format_count(runs, "run")
    most = format_span(settings.server.drain_seconds)
    note(f"stopping: waiting up to {most} for {work}; press Ctrl-C again to cancel them")
