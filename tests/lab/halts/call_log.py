"""The calls of an experiment: the log of the endpoint, and the ledger of the tool."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tests.lab.halts.counting_endpoint import WORK, Call, EndpointClient
from tests.lab.ledger import Ledger


def read_key(text: str) -> tuple[str, int]:
    """Return the path and the number of a message."""
    found = WORK.search(text)
    assert found is not None, text
    return found[1], int(found[2])


class CallLog:
    """All calls of the model and of the tool.

    Args:
        ledger: has an entry for each call of the tool.

    Attributes:
        calls: those that were read so far.
        times: the times of the calls for each message, by its path and number.
    """

    def __init__(self, endpoint: EndpointClient, ledger: Ledger) -> None:
        self.calls: list[Call] = []
        self.times = defaultdict[tuple[str, int], list[float]](list)
        self._endpoint = endpoint
        self._ledger = ledger

    def read(self) -> Sequence[Call]:
        """Read the calls; return those that were not read before.

        A call that is under way may be read next time.
        """
        new_calls = self._endpoint.read_calls()
        for entry in self._ledger.read_new():
            new_calls.append(Call(entry["at"], "tool", *read_key(entry["note"])))
        self.calls += new_calls
        for call in new_calls:
            self.times[call.path, call.number].append(call.at)
        return new_calls
