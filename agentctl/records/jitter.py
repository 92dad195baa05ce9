"""Random parts of pauses, so that processes and clients do not act all at once."""

from __future__ import annotations

from random import SystemRandom

# Not the generator of the module `random`: code of users in this process may seed that one, and
# then all servers would pause for the same times.
_generator = SystemRandom()


def jitter(low: float, high: float) -> float:
    """Return a random number between two numbers, such as a factor or seconds."""
    return _generator.uniform(low, high)
