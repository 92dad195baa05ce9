"""Numbers of bytes, for people."""

from __future__ import annotations

__all__ = ["spoken_bytes"]


def spoken_bytes(count: int) -> str:
    """`4 kB`, rounded down."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1_000:
            return f"{count:.0f} {unit}"
        count //= 1_000
    return f"{count} TB"
