"""Classes of `light_dataclass` behave like those of the standard decorator, except when frozen."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from agentctl import light_dataclass


def define_classes(name: str, dataclass: Any) -> SimpleNamespace:
    """Define classes with a decorator; `name` is that of the returned namespace in this module."""

    @dataclass(frozen=True, slots=True)
    class Point:
        x: int
        y: int = 2
        secret: str = dataclasses.field(default="s", repr=False)
        note: str = dataclasses.field(default="n", compare=False)

    @dataclass(frozen=True, slots=True)
    class Point3(Point):
        z: int = 3

    @dataclass(frozen=True)
    class Empty:
        pass

    @dataclass(slots=True)
    class Mutable:
        items: list[int] = dataclasses.field(default_factory=list)

    @dataclass(frozen=True, slots=True)
    class One:
        x: float

    @dataclass(slots=True, eq=False)
    class Identity:
        x: int = 1

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Own:
        x: int = 1

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, type(self))

    defined = (Point, Point3, Empty, Mutable, One, Identity, Own)
    for each in defined:
        each.__qualname__ = f"{name}.{each.__name__}"  # pickle finds a class by it.
    return SimpleNamespace(**{each.__name__: each for each in defined})


NAN = float("nan")
Light = define_classes("Light", light_dataclass.dataclass)
Standard = define_classes("Standard", dataclasses.dataclass)


class Case(NamedTuple):
    """Something that is done with the classes; the results must be equal."""

    name: str
    work: Callable[[Any], object]


CASES = [
    Case("repr", lambda of: [repr(of.Point(1)), repr(of.Point3(1, z=4)), repr(of.Own())]),
    Case("repr without fields", lambda of: [repr(of.Empty()), repr(of.Mutable([1]))]),
    Case("equality", lambda of: [of.Point(1) == of.Point(1, note="m"), of.Point(1) == of.Point(2)]),
    Case("another class", lambda of: [of.Point(1) == of.Point3(1), of.Point(1) == (1, 2, "s")]),
    Case("equality without fields", lambda of: of.Empty() == of.Empty()),
    Case("equality by identity", lambda of: of.Identity() == of.Identity()),
    Case("equality of NaN", lambda of: of.One(NAN) == of.One(NAN)),
    Case("own equality", lambda of: of.Own(x=1) == of.Own(x=2)),
    Case("equality of lists", lambda of: [of.Mutable([1]) == of.Mutable([1]), of.Mutable() == 1]),
    Case("hash", lambda of: len({of.Point(1), of.Point(1, note="m"), of.Point3(1), of.Point3(1)})),
    Case("hash by fields", lambda of: hash(of.Own(x=1)) == hash(of.Own(x=1))),
    Case("no hash", lambda of: of.Mutable.__hash__),
    Case("hash by identity", lambda of: len({of.Identity(), of.Identity()})),
    Case("replace", lambda of: dataclasses.astuple(dataclasses.replace(of.Point3(1), y=9))),
    Case("asdict", lambda of: dataclasses.asdict(of.Point3(1))),
    Case("fields", lambda of: [field.name for field in dataclasses.fields(of.Point3)]),
    Case("match", lambda of: [of.Point.__match_args__, of.Point3.__match_args__]),
    Case("slots", lambda of: [of.Point.__slots__, of.Point3.__slots__]),
    Case("copy", lambda of: copy.deepcopy(of.Point3(1)) == of.Point3(1)),
    Case("pickle", lambda of: pickle.loads(pickle.dumps(of.Point3(1, note="m"))).note),
    Case("fresh defaults", lambda of: of.Mutable().items is of.Mutable().items),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_class_behaves_like_a_standard_dataclass(case: Case) -> None:
    light, standard = (repr(case.work(of)) for of in (Light, Standard))
    assert light == standard.replace("Standard.", "Light.")
