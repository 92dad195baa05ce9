"""The gain of a user from each row of the table of `make bench`."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["find_gain"]


class Gain(NamedTuple):
    """A sentence for the rows of some work."""

    work: str
    """The beginning of the name of the work."""

    sentence: str

    against: str = ""
    """The beginning of the name of the other side; empty for any."""


_SERVES_OTHERS = "A read costs little beside HTTP itself, so that readers do not slow down runs."
_GROWS = "A conversation does not become slower as it grows."
_STREAMS = "One core streams to more people at once before words are late."
_FAST = "Fast models are not slowed down, and an answer costs the server little."
_SMALL = "The service fits a smaller machine, or more services fit the same one."
_HOSTED = "The same graph streams to more people at once, and its runs are stored."
_CANCELLED = "A hung run stops at once, and stops costing money."
_COMMAND = "A command is there before one has to wait for it, also in scripts."
_LOCAL = "A local read costs little beside the check of the configuration."

GAINS = (
    Gain("session detail, 10,000 runs", "The longest conversation is sent as fast as a short one."),
    Gain("session detail, 1 run, 2 workers", "A second core serves more readers of one service."),
    Gain("session detail, 1 run", _SERVES_OTHERS, "FastAPI"),
    Gain("session detail, 1 run", _SERVES_OTHERS, "bare ASGI"),
    Gain("session detail, 1 run", "More people read their conversations from one server."),
    Gain("session detail", "A long conversation opens without a wait."),
    Gain("teams", _SERVES_OTHERS, "FastAPI"),
    Gain("teams", "Clients may ask what they can start as often as they like."),
    Gain("list 20", "The list of conversations appears at once, also beside other work."),
    Gain("row in a list", "Long conversations do not make the list slower."),
    Gain("cancel of a hung call", _CANCELLED),
    Gain("cancel", "A cancel is answered at once, also if very many arrive."),
    Gain("runs, plain, one at a time", "The server adds less to the time of a single answer."),
    Gain("runs, plain, 2 workers", "A second core executes more runs of one service."),
    Gain("runs", "One server executes more runs before a second one is needed."),
    Gain("memory of a run that waits", "Thousands of runs may wait for models in one process."),
    Gain("memory of an idle server", _SMALL),
    Gain("memory", _SMALL),
    Gain("first word", "The first word appears sooner: this is what the server adds to the model."),
    Gain("1,000th run, 5 earlier", "A conversation that sends a window of itself costs the same."),
    Gain("1,000th run", _GROWS),
    Gain("10,000th run", _GROWS),
    Gain("the same of", "For comparison: the same conversation on the other server."),
    Gain("start to the first answer", "A restart or an upgrade is a shorter interruption."),
    Gain("1,000 streams at once: first event", "In a rush, everybody sees that their run begins."),
    Gain("1,000 streams at once", "A thousand people can follow their answers on one core."),
    Gain("CPU of an idle server", "A service that nobody uses leaves the machine to others."),
    Gain("agentctl", _LOCAL, "bare Typer that reads"),
    Gain("agentctl", _COMMAND),
    Gain("40 streams", _STREAMS),
    Gain("10 streams", _FAST),
    Gain("streams of 50 tokens/s", "The number of people that one core serves without a delay."),
    Gain("graph with ChatOpenAI: runs", "The same graph answers more people on the same machine."),
    Gain("graph with a configured model: runs", "The same graph answers more people."),
    Gain("graph with ChatOpenAI: memory", _SMALL),
    Gain("graph with a configured model: memory", _SMALL),
    Gain("graph with ChatOpenAI: start", "A change of a graph is there after a shorter restart."),
    Gain("graph with a configured model: start", "A change of a graph is there after a restart."),
    Gain("graph", _HOSTED),
    Gain("chat completions, plain", "Programs that speak OpenAI's API share one small gateway."),
    Gain("chat completions", "Programs that speak OpenAI's API stream through one small gateway."),
    Gain("verification", "Every request is checked, and a check costs next to nothing."),
    Gain("point read", "The store leaves most of the speed of its database."),
)
"""The first row that fits counts."""


def find_gain(work: str, against: str) -> str:
    """Return the sentence for a row.

    Args:
        work: the name of the work.
        against: the name of the other side; empty for a figure without comparison.

    Raises:
        LookupError: no sentence fits: a new kind of row needs one.
    """
    for gain in GAINS:
        if work.startswith(gain.work) and against.startswith(gain.against):
            return gain.sentence
    raise LookupError(f"bench.gains has no sentence for: {work}")
