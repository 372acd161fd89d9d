"""What is compiled for an image, and what is found: kernels by themselves, as a saved kernel has them, or by the code
that sizes share."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from plan_cases import TARGETS, planned_graph
from random_graphs import GraphMaker

from superkernel.codegen.cache import ObjectCache
from superkernel.codegen.host.image import ImageBuilder

TARGET = "plain"


class Kept(ObjectCache):
    """Objects by key, in memory."""

    def __init__(self, found: dict[str, bytes]) -> None:
        super().__init__(None)
        self.found = found

    def get(self, key: str) -> bytes | None:
        return self.found.get(key)

    def put(self, key: str, data: bytes) -> None:
        self.found[key] = data


@cache
def _planned() -> Any:
    """Two kernels of one code, and one by itself."""
    m = GraphMaker()
    rows = [m.op("tanh", m.input(f"x{n}", n, 1024)) for n in (60, 70)]
    return planned_graph(m.graph(*rows, m.op("argmax", m.input("y", 3, 5), axis=1)), TARGET)


def _built(found: dict[str, bytes], **options: Any) -> tuple[ImageBuilder, dict[str, bytes]]:
    """A builder that has made all objects, and these."""
    made = _planned()
    counts = {name: len(getattr(made.graph, name)) for name in ("inputs", "outputs", "states")}
    builder = ImageBuilder(made.schedule, made.plan, TARGETS[TARGET](), Kept(found), **counts, **options)  # type: ignore[arg-type]
    keys, symbols = builder._kernel_keys()
    assert len(keys) == 3
    return builder, builder._objects(keys, builder._entry_spec(symbols))


@pytest.fixture(scope="module")
def cold() -> tuple[dict[str, bytes], dict[str, bytes]]:
    """What is in the cache behind a first image, and the image's own objects."""
    found: dict[str, bytes] = {}
    builder, objects = _built(found)
    assert builder.compiled == len(found) == 3  # code for two kernels and for one, waits; entries are written
    assert builder.ir_texts == {}
    assert len(objects) == 5
    return found, objects


def _refuse(*_: object) -> None:
    raise AssertionError("nothing is missing")


@pytest.mark.parametrize("saved", [False, True])
def test_what_is_found_is_not_compiled(
    saved: bool, cold: tuple[dict[str, bytes], dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cache by shared code, in a saved kernel by each kernel's own."""
    monkeypatch.setattr(ImageBuilder, "_compile_kernels", _refuse)
    monkeypatch.setattr(ImageBuilder, "_compile_entries", _refuse)
    builder, objects = _built(dict(cold[saved]))
    assert (builder.compiled, objects) == (0, cold[1])


@pytest.mark.parametrize("saved", [False, True])
def test_texts_are_kept_of_what_was_found_too(saved: bool, cold: tuple[dict[str, bytes], dict[str, bytes]]) -> None:
    """And nothing is compiled that the cache has."""
    builder, objects = _built(dict(cold[saved]), keep_ir=True)
    assert (builder.compiled, objects) == (saved, cold[1])
    assert len(builder.ir_texts) == 4
    assert {"waits", "entries"} < {*builder.ir_texts}


def test_what_is_missing_alone_is_compiled(cold: tuple[dict[str, bytes], dict[str, bytes]]) -> None:
    for gone in cold[0]:
        builder, objects = _built({key: data for key, data in cold[0].items() if key != gone})
        assert (builder.compiled, objects) == (1, cold[1])
