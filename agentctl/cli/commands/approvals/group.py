"""`agentctl approvals`: the group with its commands, each in a module of its name."""

from __future__ import annotations

from agentctl.cli.commands.approvals.answer import answer_question
from agentctl.cli.commands.approvals.approve import approve_call
from agentctl.cli.commands.approvals.complete import complete_call
from agentctl.cli.commands.approvals.get import get_approval
from agentctl.cli.commands.approvals.list import list_approvals
from agentctl.cli.commands.approvals.receipt import get_receipt
from agentctl.cli.commands.approvals.reject import reject_call
from agentctl.cli.commands.approvals.retry import retry_call
from agentctl.cli.commands.approvals.verify_receipt import verify_receipt
from agentctl.cli.commands.approvals.watch import watch_approvals
from agentctl.cli.help import CommandApp

app = CommandApp(
    help="List what paused runs wait for, and decide about it.",
    epilog="Example: agentctl approvals list --status pending",
)
for command, words in (
    (list_approvals, "list --status pending"),
    (get_approval, "get APPROVAL_ID"),
    (approve_call, 'approve APPROVAL_ID --note "checked with Ada"'),
    (reject_call, 'reject APPROVAL_ID --note "too much"'),
    (answer_question, "answer APPROVAL_ID --answer left"),
    (complete_call, 'complete APPROVAL_ID --result "the file is open"'),
    (retry_call, "retry APPROVAL_ID"),
    (get_receipt, "receipt APPROVAL_ID --to-file receipt.jwt"),
    (verify_receipt, "verify-receipt receipt.jwt --key keys/audit.pub.pem"),
    (watch_approvals, "watch --component clerk"),
):
    app.command(words.partition(" ")[0], epilog=f"Example: agentctl approvals {words}")(command)
