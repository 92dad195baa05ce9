"""The metrics of several processes as one text: the parent asks each, over a line for that alone.

A question is `number place`, its answer `number length` and so many bytes. A worker that is held up
answers late or not at all, and the next question does not wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

__all__ = ["MetricsChannel", "answer_metrics_requests", "gather_metrics", "merge_metrics"]

MAXIMUM_PENDING_REQUESTS = 8
"""A worker that owes so many answers is not asked again until it gives one."""

RESPONSE_TIMEOUT_SECONDS = 2.0
"""How long a worker may take to answer; what is shown goes without it then."""

_UP = "agentctl_worker_up"
_UP_HEAD = (
    f"# HELP {_UP} Whether the process said what its numbers are in time.\n# TYPE {_UP} gauge\n"
)


class MetricsChannel:
    """The parent's end. Made inside the event loop by `open`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._last = 0
        self._waiting: dict[int, asyncio.Future[str]] = {}
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def open(cls, ours: socket.socket) -> MetricsChannel:
        """The end of a line that this process keeps."""
        return cls(*await asyncio.open_connection(sock=ours))

    async def ask(self, place: int) -> str | None:
        """The worker's metrics, as of that place; None when it does not answer in time."""
        if self._listening.done() or len(self._waiting) >= MAXIMUM_PENDING_REQUESTS:
            return None
        self._last += 1
        answer = self._waiting[self._last] = asyncio.get_running_loop().create_future()
        self._writer.write(b"%d %d\n" % (self._last, place))
        await asyncio.wait([answer], timeout=RESPONSE_TIMEOUT_SECONDS)
        return answer.result() if answer.done() and not answer.cancelled() else None

    def close(self) -> None:
        """Hang up."""
        self._listening.cancel()
        self._writer.close()

    async def _listen(self) -> None:
        with contextlib.suppress(OSError, EOFError, ValueError):
            while True:
                number, length = map(int, (await self._reader.readuntil()).split())
                text = (await self._reader.readexactly(length)).decode()
                if (answer := self._waiting.pop(number, None)) is not None:
                    answer.set_result(text)
        for answer in self._waiting.values():
            answer.cancel()


@contextlib.asynccontextmanager
async def answer_metrics_requests(
    theirs: socket.socket, text: Callable[[int], str]
) -> AsyncIterator[None]:
    """The worker's end: answer what is asked while the block lasts.

    Args:
        theirs: the end of the line that a worker was given.
        text: makes the metrics, for the place of the worker.
    """
    theirs.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=theirs.dup())
    answering = asyncio.create_task(_answer_requests(reader, writer, text))
    try:
        yield
    finally:
        answering.cancel()
        await asyncio.wait([answering])
        writer.close()


async def _answer_requests(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: Callable[[int], str]
) -> None:
    with contextlib.suppress(OSError, EOFError):
        while True:
            number, place = map(int, (await reader.readuntil()).split())
            content = text(place).encode()
            writer.write(b"%d %d\n" % (number, len(content)) + content)
            await writer.drain()


async def gather_metrics(asked: Mapping[int, Callable[[int], Awaitable[str | None]]]) -> str:
    """The metrics of all workers, by their places, with one that says who answered."""
    places = sorted(asked)
    texts = await asyncio.gather(*(asked[place](place) for place in places))
    up = [
        f'{_UP}{{worker="{place}"}} {float(text is not None)}\n'
        for place, text in zip(places, texts, strict=True)
    ]
    return _UP_HEAD + "".join(up) + merge_metrics([text for text in texts if text is not None])


def merge_metrics(texts: list[str]) -> str:
    """Several texts as one, where every family of numbers stands once and whole."""
    families: dict[str, list[str]] = {}
    for text in texts:
        for family in text.split("# HELP ")[1:]:
            head, about, numbers = family.split("\n", 2)
            families.setdefault(f"# HELP {head}\n{about}\n", []).append(numbers)
    return "".join(head + "".join(numbers) for head, numbers in families.items())
