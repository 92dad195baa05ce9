"""`python -m tests.differential.dataclass_twins`: a standard twin of every light dataclass.

The decorator of `agentctl.light_dataclass` is wrapped before anything of the package is imported.
Each class that it makes is compared with the class that the standard decorator makes of the same
body: signature, fields, slots, and for random values representation, equality, hash and copies.
The process prints a line for each difference, and the numbers at the end.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
import importlib.util
import inspect
import sys
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

PACKAGE = Path(__file__).parents[2] / "agentctl"
TWINS: dict[Any, Any] = {}
"""The twins of the classes that the light decorator made."""

VALUES: list[Any] = [
    None, True, 1, 1.0, 2, -0.0, float("nan"), "", "a", b"a", (), (1, "a"), [], [1], {}, {"a": [1]},
    frozenset({1}), Random, 1 << 70,
]  # fmt: skip


def wrap(light: Any) -> Any:
    """Return a decorator that creates a class and its twin."""

    def dataclass(cls: type | None = None, /, **options: Any) -> Any:
        if cls is None:
            return partial(dataclass, **options)
        body = {
            name: copy.copy(value) if isinstance(value, dataclasses.Field) else value
            for name, value in vars(cls).items()
            if name not in ("__dict__", "__weakref__")
        }
        bases = tuple(TWINS.get(base, base) for base in cls.__bases__)
        twin = type(cls)(cls.__name__, bases, body)
        made = light(cls, **options)
        TWINS[made] = dataclasses.dataclass(twin, **options)
        return made

    return dataclass


def import_package() -> None:
    """Import every module that uses the decorator, which is wrapped."""
    name = "agentctl.light_dataclass"
    spec = importlib.util.spec_from_file_location(name, PACKAGE / "light_dataclass.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.dataclass = wrap(module.dataclass)  # type: ignore[attr-defined]
    sys.modules[name] = module
    for path in sorted(PACKAGE.rglob("*.py")):
        found = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        if "light_dataclass import" in path.read_text(encoding="utf-8"):
            importlib.import_module(found.removesuffix(".__init__"))


def describe(cls: Any) -> object:
    """Return everything about a class that does not need an instance."""
    fields = [
        (
            field.name,
            repr(field.type),
            field.default,
            field.default_factory,
            field.init,
            field.repr,
            field.compare,
            field.hash,
            field.kw_only,
        )
        for field in dataclasses.fields(cls)
    ]
    signature = [
        (parameter.name, parameter.kind, parameter.default is inspect.Parameter.empty)
        for parameter in inspect.signature(cls.__init__).parameters.values()
    ]
    slots = vars(cls).get("__slots__"), cls.__match_args__, cls.__hash__ is None
    return fields, signature, slots


def build(cls: Any, values: list[Any]) -> Any:
    cls.__abstractmethods__ = frozenset()
    made = object.__new__(cls)
    for field, value in zip(dataclasses.fields(cls), values, strict=True):
        object.__setattr__(made, field.name, value)
    return made


def examine(cls: Any, pairs: list[tuple[list[Any], list[Any]]]) -> list[object]:
    """Return what instances with these values do."""
    found: list[object] = []
    fields = dataclasses.fields(cls)
    for first, second in pairs:
        one = build(cls, first)
        other = build(cls, second)
        found += [repr(one), one == other, one != other, one == one, one == 1, other == one]
        try:
            found += [
                hash(one) == hash(build(cls, first)),
                one != other or hash(one) == hash(other),
            ]
        except TypeError:
            found.append("no hash")
        found += [copy.copy(one) == one, repr(copy.copy(one))]
        if not hasattr(cls, "__post_init__") and all(field.init for field in fields):
            found.append(repr(dataclasses.replace(one)))
            found.append(repr(cls(**{field.name: getattr(one, field.name) for field in fields})))
    return found


def compare(chance: Random, rounds: int) -> tuple[int, list[str]]:
    """Compare each pair; return the number of comparisons, and the differences."""
    count = 0
    differences = []
    for light, twin in TWINS.items():
        twin.__qualname__ = light.__qualname__
        size = len(dataclasses.fields(light))
        pairs = []
        for _ in range(rounds):
            first = chance.choices(VALUES, k=size)
            second = [value if chance.random() < 0.8 else chance.choice(VALUES) for value in first]
            pairs.append((first, second))
        sides = [(describe(cls), examine(cls, pairs)) for cls in (light, twin)]
        count += 1 + len(pairs)
        if repr(sides[0]) != repr(sides[1]):
            differences.append(f"{light.__module__}.{light.__qualname__}: {sides}")
    return count, differences


if __name__ == "__main__":
    import_package()
    number, found = compare(Random(int(sys.argv[1])), int(sys.argv[2]))
    print(*found, sep="\n")
    print(f"{len(TWINS)} {number} {len(found)}")
