"""`@frozen` is a frozen dataclass to type checkers, and one with equality and hash of its fields to everybody."""

from __future__ import annotations

import copy
import pickle
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path

import pytest
from mypy import api

from superkernel.core.frozen import frozen


@frozen()
class Point:
    x: int
    y: tuple[int, ...] = ()


@frozen(slots=False)
class Cached:
    x: int

    @cached_property
    def twice(self) -> int:
        return 2 * self.x


def test_equality_and_hash_are_those_of_the_fields() -> None:
    assert Point(1) == Point(1, ()) != Point(2)
    assert len({Point(1, (2,)), Point(1, (2,)), Point(1, (3,))}) == 2
    assert Cached(3) == Cached(3)
    assert Cached(3).twice == 6
    assert hash(Cached(3)) == hash(Cached(3))


def test_objects_are_replaced_copied_and_pickled() -> None:
    point = Point(1, (2,))
    assert replace(point, x=5) == Point(5, (2,))
    assert copy.deepcopy(point) == pickle.loads(pickle.dumps(point)) == point
    assert [field.name for field in fields(Point)] == ["x", "y"]
    assert not hasattr(point, "__dict__")


@pytest.mark.slow
def test_type_checkers_refuse_assignments(tmp_path: Path) -> None:
    text = """from superkernel.core.tensor import Region
made = Region(1, 2)
reveal_type(made.start)
made.start = 3
Region("1", 2)
"""
    path = tmp_path / "assigns.py"
    path.write_text(text)
    said, _, status = api.run(["--strict", "--cache-dir", str(tmp_path / "cache"), str(path)])
    assert status == 1
    assert ":4: error" in said
    assert "read-only" in said
    assert ":5: error" in said
    assert "Found 2 errors" in said
