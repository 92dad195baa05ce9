"""`agentctl audit`: the group with its commands, each in a module of its name."""

from __future__ import annotations

from agentctl.cli.commands.audit.export import export_audit
from agentctl.cli.commands.audit.heads import list_heads
from agentctl.cli.commands.audit.list import list_audit
from agentctl.cli.commands.audit.tail import tail_audit
from agentctl.cli.commands.audit.verify import verify_audit
from agentctl.cli.commands.audit.verify_export import verify_export
from agentctl.cli.help import CommandApp

app = CommandApp(
    help="Search, follow, export and verify the audit log.",
    epilog="Example: agentctl audit list --outcome denied --since 1d",
)
for command, words in (
    (list_audit, "list --outcome denied --since 1d"),
    (tail_audit, "tail --outcome denied"),
    (export_audit, "export --since 30d --to-file audit.jsonl"),
    (list_heads, "heads --limit 5"),
    (verify_audit, "verify --key keys/audit.pub.pem"),
    (verify_export, "verify-export audit.jsonl --heads heads.jwt --key audit.pub.pem"),
):
    app.command(words.partition(" ")[0], epilog=f"Example: agentctl audit {words}")(command)
