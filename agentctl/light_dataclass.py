"""`dataclass`, as the standard library has it, for a third of its time and memory.

The standard decorator compiles six methods for a frozen class. A command creates 260 classes at its
start, a server 320. Here it compiles `__init__` alone, and all classes share the other methods
(docs/decisions/0127).

Type checkers see the standard decorator, and verify that fields of frozen classes are not assigned.
At run time nothing does: classes of the public interface use the standard decorator.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        cls: type | None = None, /, *, eq: bool = True, frozen: bool = False, **options: Any
    ) -> Any:
        """Turn a class into a dataclass; the arguments are those of the standard decorator."""
        if cls is None:
            return partial(dataclass, eq=eq, frozen=frozen, **options)
        own = vars(cls)
        # Without a docstring the standard decorator builds one from the signature, which is slow.
        cls.__doc__ = cls.__doc__ or cls.__name__
        made = dataclasses.dataclass(cls, eq=False, repr=False, **options)
        shared: dict[str, Any] = {"__repr__": _represent}
        if eq:
            names = [field.name for field in dataclasses.fields(made) if field.compare]
            # A single value is compared in a tuple too: NaN is then equal to itself.
            made.__compared__ = attrgetter(*names, *names[:1]) if names else type
            shared |= {"__eq__": _are_equal, "__hash__": _hash if frozen else None}
        for name, method in shared.items():
            if own.get(name) is None:
                setattr(made, name, method)
        return made


def _represent(self: Any) -> str:
    shown = (field.name for field in dataclasses.fields(self) if field.repr)
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
    return f"{type(self).__qualname__}({values})"


def _are_equal(self: Any, other: Any) -> Any:
    if type(self) is not type(other):
        return NotImplemented
    compared = self.__compared__
    return self is other or compared(self) == compared(other)


def _hash(self: Any) -> int:
    return hash(self.__compared__(self))
