"""Which 32 bytes are a sound Ed25519 public key (RFC 8032 5.1).

The arithmetic library takes any 32 bytes. A key that is a point of small order accepts signatures
that nobody made, and a point with two encodings is one key under two names; both are refused when
the key is loaded. Slow and not in constant time, which does not matter for what is public.
"""

from __future__ import annotations

__all__ = ["is_sound_point"]

_PRIME = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, _PRIME) % _PRIME
_ROOT_OF_MINUS_ONE = pow(2, (_PRIME - 1) // 4, _PRIME)

_Point = tuple[int, int, int, int]
_NEUTRAL: _Point = (0, 1, 1, 0)


def is_sound_point(encoded: bytes) -> bool:
    """Whether 32 bytes are the canonical encoding of a point of the large prime order."""
    point = _decoded(encoded)
    return point is not None and not _is_neutral(point) and _is_neutral(_times_order(point))


def _decoded(encoded: bytes) -> _Point | None:
    """RFC 8032 5.1.3; None for what encodes no point, or not in the one way.

    The sign of x is not looked at: a point and its mirror image are of one order, and x is 0 only
    for points of small order.
    """
    y = int.from_bytes(encoded, "little") & (1 << 255) - 1
    x = _x_of(y) if y < _PRIME else None
    return None if x is None else (x, y, 1, x * y % _PRIME)


def _x_of(y: int) -> int | None:
    """A square root of (y^2 - 1) / (d y^2 + 1), or None: `y` is of no point."""
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _PRIME) % _PRIME
    x = pow(square, (_PRIME + 3) // 8, _PRIME)
    if x * x % _PRIME != square:
        x = x * _ROOT_OF_MINUS_ONE % _PRIME
    return x if x * x % _PRIME == square else None


def _times_order(point: _Point) -> _Point:
    total = _NEUTRAL
    for bit in f"{_ORDER:b}":
        total = _sum(total, total)
        if bit == "1":
            total = _sum(total, point)
    return total


def _sum(one: _Point, other: _Point) -> _Point:
    """RFC 8032 5.1.4, which holds for equal points too."""
    a = (one[1] - one[0]) * (other[1] - other[0])
    b = (one[1] + one[0]) * (other[1] + other[0])
    c = 2 * one[3] * other[3] * _D
    d = 2 * one[2] * other[2]
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _PRIME, g * h % _PRIME, f * g % _PRIME, e * h % _PRIME


def _is_neutral(point: _Point) -> bool:
    return point[0] == 0 and point[1] == point[2]
