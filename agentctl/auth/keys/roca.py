"""The mark of RSA keys made by a faulty chip library (ROCA, CVE-2017-15361).

Its primes are of the form `k * M + 65537 ** a mod M`, with M a product of small primes; so the
modulus is a power of 65537 by every one of those primes. A sound modulus is that by chance once in
more than a hundred million.
"""

from __future__ import annotations

from functools import cache

__all__ = ["has_roca_mark"]

_GENERATOR = 65537
_LARGEST_PRIME = 167


def has_roca_mark(modulus: int) -> bool:
    """Whether an RSA modulus was most likely made by the faulty library, and can be factored."""
    return all(modulus % prime in powers for prime, powers in _subgroups())


@cache
def _subgroups() -> tuple[tuple[int, frozenset[int]], ...]:
    """Every odd prime up to the largest in M, with the powers of 65537 modulo it."""
    odd = range(3, _LARGEST_PRIME + 1, 2)
    primes = [n for n in odd if all(n % divisor for divisor in range(3, int(n**0.5) + 1, 2))]
    return tuple(
        (prime, frozenset(pow(_GENERATOR, power, prime) for power in range(prime - 1)))
        for prime in primes
    )
