"""An application of a user: routes of each kind of access, middleware, and a lifespan."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from pydantic import BaseModel
from starlette.staticfiles import StaticFiles

import agentctl
from agentctl.interface.requests import SessionFilter

HERE = Path(__file__).parent


def note(word: str) -> None:
    with (HERE / "lifespan.txt").open("a") as file:
        file.write(f"{word} {os.getpid()}\n")


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
    note("up")
    yield {"stock": "full"}
    note("down")


app = agentctl.create_app(HERE / "agentctl.toml", title="Shop", lifespan=lifespan)


@app.middleware("http")
async def add_mark(
    request: Request, call_next: Callable[[Request], Awaitable[Response]]
) -> Response:
    response = await call_next(request)
    response.headers["X-Shop"] = request.method
    return response


class RunRecord(BaseModel):
    """A body whose name is that of a schema of agentctl."""

    amount: int


class ShopError(Exception):
    pass


@app.exception_handler(ShopError)
async def explain(request: Request, error: ShopError) -> Response:
    return Response("closed", 409)


User = Annotated[agentctl.Principal, Depends(agentctl.current_user)]


@app.get("/shop")
@agentctl.public
def get_page(request: Request) -> dict[str, str]:
    return {"stock": request.state.stock}


@app.get("/shop/me")
async def get_me(user: User) -> dict[str, Any]:
    return {"subject": user.subject, "scopes": sorted(user.scopes)}


@app.get("/shop/plain")
async def get_plain() -> str:
    return "plain"


@app.get("/shop/maybe")
@agentctl.public
async def get_maybe(user: User) -> str:
    return "known"


orders = APIRouter(prefix="/shop/orders", tags=["Shop"])


@orders.post("/{number}", dependencies=[Depends(agentctl.require("sessions:read"))])
def create_order(number: int, body: RunRecord) -> RunRecord:
    return body


@orders.get("/of/{agent_id}", dependencies=[Depends(agentctl.require("agents:{agent_id}:read"))])
def get_orders(agent_id: str) -> str:
    return agent_id


@orders.get("/sessions")
async def get_sessions(request: Request) -> Any:
    return (await agentctl.operations(request).sessions.list(SessionFilter())).value


@orders.get("/session/{session_id}")
async def get_session(request: Request, session_id: str) -> Any:
    return (await agentctl.operations(request).sessions.get(session_id)).value


app.include_router(orders)


@app.get("/shop/fails")
def fail() -> None:
    raise KeyError("a secret of the shop")


@app.get("/shop/closed")
def close() -> None:
    raise ShopError


@app.get("/shop/exits")
async def leave() -> None:
    sys.exit(3)


@app.get("/shop/teapot")
def refuse() -> None:
    raise HTTPException(418, "no tea")


@app.get("/shop/blocks")
def block() -> str:
    """Block a thread until a file exists."""
    while not (HERE / "released").exists():
        time.sleep(0.02)
    return "waited"


@app.post("/shop/upload")
async def upload(request: Request) -> int:
    return len(await request.body())


app.mount("/assets", agentctl.public(StaticFiles(directory=HERE / "public")))
app.mount("/private", StaticFiles(directory=HERE / "public"))
