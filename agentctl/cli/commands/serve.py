"""`agentctl serve`: the server. What serving is, is in `agentctl.server`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentctl import __version__
from agentctl.cli.durations import spoken
from agentctl.cli.mismatch import naming
from agentctl.cli.options import Config
from agentctl.cli.terminal import note
from agentctl.errors import UsageFailed

if TYPE_CHECKING:
    from agentctl.config.settings import Settings

__all__ = ["EXAMPLE", "serve"]

EXAMPLE = "agentctl serve --config agentctl.toml --port 8080"

DEMO_FOLDER = Path(".agentctl-demo")


def serve(
    config: Config = None,
    host: Annotated[
        str | None, typer.Option("--host", metavar="HOST", help="Listen on this address")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", metavar="PORT", min=0, max=65535, help="Listen on this port, 0: any free one"
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", metavar="N", min=1, max=64, help="Serve with so many processes"),
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Serve an offline demo with its own folder and keys")
    ] = False,
    demo_dir: Annotated[
        Path | None,
        typer.Option("--demo-dir", metavar="DIR", help=f"Folder of the demo, else {DEMO_FOLDER}"),
    ] = None,
    insecure_no_auth: Annotated[
        bool,
        typer.Option("--insecure-no-auth", help="Ask nobody for a token: everybody may do all"),
    ] = False,
) -> None:
    """Serve what is configured over HTTP, until Ctrl-C."""
    if demo_dir is not None and not demo:
        raise UsageFailed("--demo-dir goes with --demo")
    if demo and config is not None:
        raise UsageFailed("--demo has its own configuration", hint="leave out --config, or --demo")
    from agentctl.cli.demo import prepare_demo
    from agentctl.config import load, require_keys

    file = prepare_demo(demo_dir or DEMO_FOLDER) if demo else config
    settings = _overridden(load(file), host, port, workers, insecure_no_auth)
    _check_openness(settings, insecure_no_auth)
    require_keys(settings)
    if settings.server.workers == 1:
        from agentctl.server.serve import serve as serve_settings
    else:
        from agentctl.server.workers import serve as serve_settings
    metrics = list[str]()
    with naming(config):
        serve_settings(
            settings,
            announce=lambda url: _announce(settings, url, metrics, demo=demo),
            announce_stop=lambda runs: _announce_stop(settings, runs),
            announce_metrics=metrics.append,
        )
    note("stopped")


def _overridden(
    settings: Settings,
    host: str | None,
    port: int | None,
    workers: int | None,
    insecure_no_auth: bool,
) -> Settings:
    server = settings.server
    if host is not None:
        server = replace(server, host=host)
    if port is not None:
        server = replace(server, port=port)
    if workers is not None:
        server = replace(server, workers=workers)
    authorization = settings.authorization
    if insecure_no_auth:
        authorization = replace(authorization, enabled=False)
    return replace(settings, server=server, authorization=authorization)


def _check_openness(settings: Settings, insecure_no_auth: bool) -> None:
    """Without authorization a server is for this machine, unless that was said on purpose.

    Raises:
        UsageFailed: it would be open to the network.
    """
    from agentctl.config.hosts import is_loopback

    if settings.authorization.enabled or insecure_no_auth or is_loopback(settings.server.host):
        return
    raise UsageFailed(
        f"authorization is off and {settings.server.host} is open to other machines",
        hint="set enabled = true in [authorization], or say --insecure-no-auth",
    )


def _announce(settings: Settings, url: str, metrics: list[str], *, demo: bool) -> None:
    from agentctl.cli.demo import lines_to_paste

    note(f"agentctl {__version__} listens on {url}, configured by {settings.path}")
    if settings.authorization.enabled:
        note(f"authorization: jwt, {settings.authorization.algorithm}")
    else:
        note("authorization: none, whoever can reach it is an administrator")
    if settings.server.workers > 1:
        note(f"workers: {settings.server.workers} processes")
    for shown in metrics:
        note(f"metrics: {shown}")
    if demo and settings.path is not None:
        lines = lines_to_paste(settings.path, url)
        for line in ("", "to try it, paste this into another terminal:", "", *lines, ""):
            note(line)


def _announce_stop(settings: Settings, runs: int | None) -> None:
    """Say for how many runs a stop waits; None: not every process has said how many it has."""
    if runs == 0:
        note("stopping")
        return
    work = {None: "runs", 1: "1 run"}.get(runs, f"{runs} runs")
    most = spoken(settings.server.drain_seconds)
    note(f"stopping: waits for {work}, {most} at most; Ctrl-C again cancels what is left")
