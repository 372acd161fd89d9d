"""Values of declared types as bytes: the same value comes back, of the same types; nothing else is made; damage of any
kind is a ValueError."""

from __future__ import annotations

import math
import pickle
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import GenericAlias
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from seeds import seeds

from superkernel.core import typed_form
from superkernel.core.typed_form import decode, encode


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = field(default=0, compare=False)


class Shape(ABC):
    @abstractmethod
    def area(self) -> float: ...


@dataclass(frozen=True)
class Circle(Shape):
    radius: float

    def area(self) -> float:
        return self.radius


@dataclass(frozen=True)
class Nothing(Shape):
    def area(self) -> float:
        return 0.0


class Undeclared(Circle):
    """No class that anybody may make."""


@dataclass(frozen=True)
class Drawing:
    title: str
    points: tuple[Point, ...]
    shapes: tuple[Shape, ...]
    colour: Colour | None
    named: Mapping[str, tuple[int | float | bool | str | tuple[int, ...] | tuple[float, ...] | None, ...]]
    sides: tuple[tuple[str, float], ...]
    inside: tuple[str, int] | None
    data: Mapping[str, NDArray[Any]]


WEIGHTS = {"w": np.arange(6, dtype=np.float32)}
CLASSES = {f"{c.__module__}.{c.__qualname__}": c for c in (Circle, Nothing, Point)}
MINE = np.arange(12, dtype=np.int16).reshape(3, 4).T
DRAWING = Drawing(
    title="snow \u2744 \0",
    points=(Point(1, 2), Point(1, 3), Point(-(2**62), 300)),
    shapes=(Circle(1), Nothing(), Circle(-0.0), Circle(math.inf)),
    colour=Colour.BLUE,
    named={"a": (1, 1.0, True, "1", (1, 2), (1, 2.5), (), None), "b": ()},
    sides=(("left", 0.1),),
    inside=("frame", 2),
    data={"w": WEIGHTS["w"], "mine": MINE, "none": np.zeros((0, 3), np.float32)},
)


def _read(data: bytes, kind: Any = Drawing) -> Any:
    return decode(kind, data, WEIGHTS, CLASSES.__getitem__)


def test_all_comes_back_as_it_was() -> None:
    found = _read(encode(Drawing, DRAWING, WEIGHTS))
    assert repr(found).replace("array", "") == repr(DRAWING).replace("array", "")  # types of numbers included
    assert [p.y for p in found.points] == [2, 3, 300], "equal points that differ in what is not compared"
    assert found.data["w"] is WEIGHTS["w"]
    assert found.data["mine"].dtype == np.int16
    assert np.array_equal(found.data["mine"], MINE)
    assert not found.data["mine"].flags.writeable


@dataclass(frozen=True)
class Ring(Circle):
    """Between the fields of its base and of those below it stands one that is given by name alone."""

    width: float = field(default=1.0, kw_only=True)
    colour: Colour


def test_fields_that_are_given_by_name_alone_come_back_too() -> None:
    rings = (Ring(1.0, Colour.RED), Ring(2.0, Colour.BLUE, width=0.5), Ring(3.0, Colour.RED, width=4.0))
    kind = tuple[Ring, ...]
    assert decode(kind, encode(kind, rings, {}), {}, CLASSES.__getitem__) == rings


class Alias:
    """A generic `type NDArray[T] = ...`, as NumPy from 2.5 on declares it where Python has such statements."""

    __value__ = np.ndarray[Any, np.dtype[Any]]


def test_aliases_of_arrays_are_arrays() -> None:
    kind = GenericAlias(Mapping, (str, GenericAlias(Alias, (Any,))))
    found = decode(kind, encode(kind, {"mine": MINE}, {}), {}, CLASSES.__getitem__)
    assert np.array_equal(found["mine"], MINE)


def test_equal_rows_are_one() -> None:
    found = _read(encode(tuple[Point, ...], (Point(1), Point(1), Point(2)), {}), tuple[Point, ...])
    assert found[0] is found[1]
    assert found[0] is not found[2]


@pytest.mark.parametrize(
    "wrong",
    [
        (Point, Point(1.5)),  # type: ignore[arg-type]
        (Point, Point(True)),
        (Point, Point(np.int64(1))),  # type: ignore[arg-type]
        (Point, Point(2**64)),
        (tuple[int, ...], [1, 2]),
        (tuple[int, str], (1, "a", 2)),
        (int | str, 1.5),
        (tuple[str, int] | None, ("a", "b")),
        (tuple[str, int] | None, ("a", 1, 2)),
        (Colour, "red"),
        (Shape, Point(1)),
        (Circle, Undeclared(1.0)),
    ],
    ids=str,
)
def test_what_is_not_of_the_type_is_not_written(wrong: tuple[Any, object]) -> None:
    with pytest.raises((TypeError, OverflowError)):
        encode(*wrong, {})


@pytest.mark.parametrize("other", [Point, tuple[Point, ...], tuple[int, ...], Mapping[str, int], str])
def test_another_type_is_not_read(other: Any) -> None:
    with pytest.raises(ValueError, match="not of the form"):
        _read(encode(Drawing, DRAWING, WEIGHTS), other)


@pytest.mark.parametrize("instead", [Point, Undeclared, Shape, print, None])
def test_only_declared_classes_are_made(instead: Any) -> None:
    """Whatever a name stands for: no dataclass of its own, or none that the declared type allows, is not called."""
    data = encode(tuple[Shape, ...], (Circle(1.0),), {})
    with pytest.raises(ValueError, match="not of the form"):
        decode(tuple[Shape, ...], data, {}, lambda _: instead)
    assert decode(tuple[Shape, ...], data, {}, lambda _: Circle) == (Circle(1.0),)


def test_a_pickle_is_not_read() -> None:
    with pytest.raises(ValueError, match="not of the form"):
        _read(pickle.dumps(DRAWING.points))


def test_only_pipes_to_own_children_carry_pickles() -> None:
    root = Path(typed_form.__file__).parents[1]
    users = [p.relative_to(root).as_posix() for p in root.rglob("*.py") if "import pickle" in p.read_text("utf-8")]
    assert set(users) <= {"codegen/processes.py"}
    assert "import pickle" in (root / "codegen" / "processes.py").read_text("utf-8")


@pytest.mark.parametrize("seed", seeds(1))
def test_damage_is_told(seed: int) -> None:
    """Bits, bytes, cuts and repeats anywhere: what comes is a ValueError or a value of the declared type."""
    rng = np.random.default_rng(seed)
    whole = encode(Drawing, DRAWING, WEIGHTS)
    refused = 0
    for _ in range(600):
        data = bytearray(whole)
        at, other = (int(i) for i in rng.integers(0, len(data), 2))
        match rng.integers(4):
            case 0:
                data[at] ^= 1 << int(rng.integers(8))
            case 1:
                data[at] = int(rng.integers(256))
            case 2:
                del data[at : at + 1 + other % 64]
            case _:
                data[at:at] = data[other : other + 16]
        try:
            found = _read(bytes(data))
        except ValueError:
            refused += 1
        else:
            assert type(found) is Drawing
            assert all(type(p) is Point and type(p.x) is int for p in found.points)
            assert all(type(s) in (Circle, Nothing) for s in found.shapes)
    assert refused > 200
