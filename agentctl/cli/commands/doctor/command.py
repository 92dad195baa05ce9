"""`agentctl doctor`: the command, which chooses what to check."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from agentctl.cli.commands.doctor.databases import check_databases
from agentctl.cli.commands.doctor.installation import examine_installation, examine_server
from agentctl.cli.commands.doctor.runs import examine_runs
from agentctl.cli.commands.doctor.workers import list_workers
from agentctl.cli.options import (
    ContextName,
    InsecureHttp,
    LocalConfig,
    Timeout,
    TokenFile,
    Url,
    Yes,
)
from agentctl.cli.parameters import argument, flag, option
from agentctl.cli.show.output import CommandOutput
from agentctl.cli.target import TargetOptions
from agentctl.errors import UsageError

EXAMPLE = "agentctl doctor --config agentctl.toml"

HELP = """Check the installation, or a server, and suggest fixes.

Checks configuration, keys, databases and network exposure, and changes nothing. Large databases are
sampled, and the report says so; --db and --runs read them completely. With --url or --context it
checks that the server is ready and, for an administrator, its workers, databases and free space.

--db checks the integrity of databases: pages, schema, references, bytes of files. Bytes that no
file names are reported with the last database. Servers continue to work.

--runs finds runs whose worker died, runs in no valid state, runs that contradict their parent or
their approvals, runs without a session, tool calls without a result, and workers that died or have
no heartbeat. --fix repairs them.

--db and --runs work only locally. If one is interrupted, it shows the problems found so far and the
command that continues the check. Exit code 1 if there is a problem, with --fix if problems remain.
Notes do not count as problems.
"""


async def doctor(
    out: CommandOutput,
    db_id: Annotated[
        str | None, argument("DB_ID", "Database id, with --db or --runs (default: all databases)")
    ] = None,
    production: bool = flag("--production", "Also check what a production server needs"),
    backups: Path | None = option(
        "--backups",
        "DIR",
        "With --production: folder with database backups (default: /var/lib/agentctl-backups)",
    ),
    db: bool = flag("--db", "Check the integrity of databases, reading all of them"),
    deep: bool = flag("--deep", "With --db: read the bytes of all files and compare their hashes"),
    runs: bool = flag("--runs", "Find inconsistent runs, reading all runs"),
    fix: bool = flag("--fix", "With --runs: repair the problems that can be repaired"),
    yes: Yes = False,
    cursor: str | None = option("--cursor", "CURSOR", "Continue an interrupted check"),
    workers: bool = flag(
        "--workers", "List the processes that execute runs; for administrators of a server"
    ),
    url: Url = None,
    token_file: TokenFile = None,
    context: ContextName = None,
    insecure_http: InsecureHttp = False,
    timeout: Timeout = None,
    config: LocalConfig = None,
) -> None:
    """Check the installation, or a server; `HELP` has the rest."""
    topics = {"--production": production, "--db": db, "--runs": runs, "--workers": workers}
    topic = _choose_topic(topics)
    given_options = {
        "DB_ID": db_id is not None,
        "--backups": backups is not None,
        "--deep": deep,
        "--fix": fix,
        "--yes": yes,
        "--cursor": cursor is not None,
    }
    _check_uses(topic, given_options)
    options = TargetOptions(url, token_file, context, insecure_http, timeout, config)

    if workers:
        await list_workers(out, options)
    elif runs:
        await examine_runs(out, options, db_id, fix=fix, yes=yes, cursor=cursor or "")
    elif db:
        _reject_server(options, topic)
        await check_databases(out, options.config, db_id, deep=deep, cursor=cursor)
    elif options.url is not None or options.context is not None:
        _reject_production(options, production=production)
        await examine_server(out, options)
    else:
        if options.token_file is not None or options.insecure_http or options.timeout is not None:
            raise UsageError("--token-file, --insecure-http and --timeout need --url")
        await examine_installation(out, options.config, production=production, backups=backups)


_USES = {
    "DB_ID": ("--db", "--runs"),
    "--backups": ("--production",),
    "--deep": ("--db",),
    "--fix": ("--runs",),
    "--yes": ("--runs",),
    "--cursor": ("--db", "--runs"),
}
"""The topics with which an argument or an option has an effect."""


def _choose_topic(topics: Mapping[str, bool]) -> str:
    """Return the flag of the topic; empty for the installation or a server."""
    chosen_flags = [name for name, is_given in topics.items() if is_given]
    if len(chosen_flags) > 1:
        raise UsageError(f"{chosen_flags[0]} and {chosen_flags[1]} cannot be used together")
    return chosen_flags[0] if chosen_flags else ""


def _check_uses(topic: str, given_options: Mapping[str, bool]) -> None:
    """Reject an argument or an option that has no effect with the topic."""
    for name, is_given in given_options.items():
        if is_given and topic not in _USES[name]:
            raise UsageError(f"{name} needs {' or '.join(_USES[name])}")


def _reject_server(options: TargetOptions, topic: str) -> None:
    server_names = ("url", "context", "token_file", "insecure_http", "timeout")
    options.reject(server_names, f"{topic} reads the database, with --config FILE")


def _reject_production(options: TargetOptions, *, production: bool) -> None:
    server_flag = "--url" if options.url is not None else "--context"
    if production:
        raise UsageError(
            f"{server_flag} and --production cannot be used together",
            hint="run it on the machine of the server, as its user",
        )
    if options.config is not None:
        raise UsageError(f"{server_flag} and --config cannot be used together")
