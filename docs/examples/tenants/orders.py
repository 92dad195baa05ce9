"""Tools for several companies: the server passes the caller, the model cannot choose one."""

import sqlite3
from pathlib import Path

from agentctl import RunContext

DATABASE = Path(__file__).with_name("orders.db")


def list_orders(context: RunContext, limit: int = 10) -> list[str]:
    """List the newest orders of the company."""
    with connect() as database:
        rows = database.execute(
            "SELECT article, placed_by FROM orders WHERE tenant = ? ORDER BY rowid DESC LIMIT ?",
            (tenant_of(context), limit),
        )
        return [f"{article}, placed by {user}" for article, user in rows]


def place_order(context: RunContext, article: str) -> str:
    """Place an order for the company."""
    with connect() as database:
        database.execute(
            "INSERT INTO orders VALUES (?, ?, ?)", (tenant_of(context), context.user_id, article)
        )
    context.state["placed"] = [*context.state.get("placed", []), article]
    return f"ordered {article}"


def tenant_of(context: RunContext) -> str:
    """Return the company in the caller's token; the model cannot choose another one."""
    tenant = context.claims.get("tenant")
    if not isinstance(tenant, str):
        raise PermissionError("the token names no tenant")
    return tenant


def connect() -> sqlite3.Connection:
    database = sqlite3.connect(DATABASE)
    database.execute(
        "CREATE TABLE IF NOT EXISTS orders (tenant TEXT, placed_by TEXT, article TEXT)"
    )
    return database
