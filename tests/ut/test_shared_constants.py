"""Packed constants: kernels of one process share them; what differs is its own; they go with the last kernel."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from runtime_ir import make_kernel

import superkernel as sk
from superkernel.backends.host.compiled import HostCompiled
from superkernel.codegen.host import constants
from superkernel.codegen.host.constants import SHARED_BYTES_MIN, ConstantPlaces, HostConstants
from superkernel.codegen.host.entry_spec import BasePointer, EntrySpec, Location
from superkernel.codegen.host.image import ImageBuilder
from superkernel.core.arrays import contents_digest, interned, is_immutable, same_contents
from superkernel.core.errors import InputError, InternalError, VerificationError
from superkernel.scheduler.schedule import ConstantSlot, PackedConstants

WIDTH = 160  # a factor of this width is shared, its bias is not
RNG = np.random.default_rng(8)
FACTORS = [RNG.standard_normal((WIDTH, WIDTH), dtype=np.float32) for _ in range(2)]


def layers(rows: int, factors: list[NDArray[Any]] = FACTORS) -> sk.Graph:
    b = sk.GraphBuilder("layers")
    x = b.input("x", (rows, WIDTH), "f32")
    for factor in factors:
        x = b.relu(x @ b.constant(factor) + b.constant(factor[0]))
    b.output(x, name="y")
    return b.graph()


def blocks(kernel: sk.HostKernel) -> HostConstants:
    compiled = kernel._compiled
    assert isinstance(compiled, HostCompiled)
    return compiled.image.constants


def compiled(graph: sk.Graph) -> sk.HostKernel:
    return sk.compile(graph, threads=2)


def rows_of(count: int) -> NDArray[np.float32]:
    return np.random.default_rng(count).standard_normal((count, WIDTH), dtype=np.float32)


def test_kernels_of_one_model_share() -> None:
    one, other = compiled(layers(3)), compiled(layers(4, [factor.copy() for factor in FACTORS]))
    for left, right in zip(blocks(one).shared, blocks(other).shared, strict=True):
        assert left is right
        assert not left.flags.writeable
    assert len(blocks(one).shared) == 2
    packed, given = sum(block.nbytes for block in blocks(one).shared), sum(factor.nbytes for factor in FACTORS)
    alone, both = (sum(held.values()) for held in (one.held(), one.held() | other.held()))
    assert packed + given < alone < both < alone + given
    for kernel, count in ((one, 3), (other, 4)):
        want = rows_of(count)
        for factor in FACTORS:
            want = np.maximum(want @ factor + factor[0], 0)
        np.testing.assert_allclose(kernel(rows_of(count)), want, rtol=1e-4, atol=1e-3)


def test_what_differs_in_a_byte_is_not_shared() -> None:
    changed = [factor.copy() for factor in FACTORS]
    changed[1].reshape(-1).view(np.uint8)[7] ^= 1  # none of the bytes that are looked at first
    one, other = compiled(layers(3)), compiled(layers(3, changed))
    assert blocks(one).shared[0] is blocks(other).shared[0]
    assert blocks(one).shared[1] is not blocks(other).shared[1]
    assert not np.array_equal(blocks(one).shared[1], blocks(other).shared[1])


def test_what_is_packed_in_another_way_is_not_shared() -> None:
    def made(trans_b: bool) -> sk.HostKernel:
        b = sk.GraphBuilder()
        b.output(b.matmul(b.input("x", (3, WIDTH), "f32"), b.constant(FACTORS[0]), trans_b=trans_b), name="y")
        return compiled(b.graph())

    (one,), (other,) = blocks(plain := made(False)).shared, blocks(turned := made(True)).shared
    assert one is not other
    np.testing.assert_allclose(plain(rows_of(3)), rows_of(3) @ FACTORS[0], rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(turned(rows_of(3)), rows_of(3) @ FACTORS[0].T, rtol=1e-4, atol=1e-3)


def test_they_go_with_the_last_kernel() -> None:
    factors = [RNG.standard_normal((WIDTH, WIDTH), dtype=np.float32)]
    gc.collect()
    before = len(constants._shared)
    one, other = compiled(layers(3, factors)), compiled(layers(4, factors))
    want = other(rows_of(4))
    assert len(constants._shared) == before + 1
    del one
    gc.collect()
    assert len(constants._shared) == before + 1
    np.testing.assert_array_equal(other(rows_of(4)), want)
    del other
    gc.collect()
    assert len(constants._shared) == before


def test_a_source_that_is_gone_is_not_missed() -> None:
    array = RNG.standard_normal((WIDTH, WIDTH), dtype=np.float32)
    slots = (ConstantSlot("w", None, 0, array.nbytes),)
    one = HostConstants(slots, {"w": array})
    equal = array.copy()
    del array
    assert HostConstants(slots, {"w": equal}).shared[0] is one.shared[0]


@pytest.mark.parametrize("frozen", [False, True])
def test_an_array_that_was_written_to_is_packed_anew(frozen: bool) -> None:
    owner = RNG.standard_normal((WIDTH, WIDTH), dtype=np.float32)
    view = owner.view()
    view.flags.writeable = not frozen
    slots = (ConstantSlot("w", None, 0, owner.nbytes),)
    one = HostConstants(slots, {"w": view})
    owner.reshape(-1).view(np.uint8)[7] ^= 1  # none of the bytes that are looked at first
    other = HostConstants(slots, {"w": view})
    assert other.shared[0] is not one.shared[0]
    assert other.shared[0].tobytes() == owner.tobytes() != one.shared[0].tobytes()


def test_equal_arrays_are_one_where_nobody_may_write_to_them() -> None:
    one, other = (FACTORS[0].copy() for _ in range(2))
    assert interned(one) is one
    assert interned(other) is other, "somebody may write to the first"
    one.flags.writeable = False
    assert interned(one) is one
    assert interned(other) is one
    assert interned(FACTORS[1]) is FACTORS[1]
    changed = one.copy()
    changed.reshape(-1).view(np.uint8)[7] ^= 1
    changed.flags.writeable = False
    assert interned(changed) is changed
    small = np.zeros(4)
    small.flags.writeable = False
    assert interned(small.copy()) is not small


def test_what_is_immutable() -> None:
    array = np.zeros(4)
    view = array[1:]
    view.flags.writeable = False
    assert not is_immutable(array)
    assert not is_immutable(view)
    array.flags.writeable = False
    assert is_immutable(array)
    assert is_immutable(view)
    assert is_immutable(np.frombuffer(bytes(8)))
    assert not is_immutable(np.frombuffer(memoryview(bytearray(8)).toreadonly()))


def test_places() -> None:
    sizes = [40, SHARED_BYTES_MIN, 0, 100, SHARED_BYTES_MIN + 4, 8]
    offsets = [0, 64, 64 + sizes[1], 64 + sizes[1], 192 + sizes[1], 256 + sizes[1] + sizes[4] // 64 * 64]
    slots = tuple(ConstantSlot(str(i), None, o, n) for i, (o, n) in enumerate(zip(offsets, sizes, strict=True)))
    places = ConstantPlaces(slots)
    assert [s.value for s in places.shared] == ["1", "4"]
    found = [places.find(offset) for offset in offsets]
    assert found == [(None, 0), (0, 0), (None, 64), (None, 64), (1, 0), (None, 192)]
    assert [places.offset(*place) for place in found] == offsets
    assert places.find(offsets[4] + 20) == (1, 20)
    assert places.offset(1, 20) is places.offset(2, 0) is places.offset(None, 32) is None
    assert places.own_bytes == 256
    arrays = {slot.value: RNG.integers(0, 256, slot.nbytes, np.uint8) for slot in slots}
    packed = HostConstants(slots, arrays)
    whole = np.frombuffer(b"".join(packed.image()), np.uint8)
    for slot in slots:
        np.testing.assert_array_equal(whole[slot.offset :][: slot.nbytes], arrays[slot.value])
        np.testing.assert_array_equal(packed.at(slot.offset)[: slot.nbytes], arrays[slot.value])
    for blob in (whole, np.frombuffer(b"." + whole.tobytes(), np.uint8)[1:]):  # as it lies in a file, and badly
        again = HostConstants(slots, PackedConstants(arrays, blob, dict))
        assert b"".join(again.image()) == whole.tobytes()
        assert all(block.ctypes.data % 64 == 0 for block in (again.own, *again.shared))
    with pytest.raises(InternalError, match="packed constants are not whole"):
        HostConstants(slots, PackedConstants(arrays, whole[: places.nbytes - 1], dict))


def emitting(monkeypatch: pytest.MonkeyPatch, change: Callable[[Location], Location]) -> None:
    honest = ImageBuilder._entry_spec

    def faulty(self: ImageBuilder, symbols: Any) -> EntrySpec:
        spec = honest(self, symbols)
        return replace(spec, tasks=tuple(replace(t, operands=tuple(map(change, t.operands))) for t in spec.tasks))

    monkeypatch.setattr(ImageBuilder, "_entry_spec", faulty)


@pytest.mark.parametrize(
    "change",
    [
        lambda place: replace(place, slot=5 - place.slot) if place.slot >= 2 else place,  # the other factor
        lambda place: replace(place, offset=64) if place.slot == 2 else place,
        lambda place: replace(place, slot=4) if place.slot == 3 else place,  # behind the last one
        lambda place: replace(place, offset=64 - place.offset) if place.space is BasePointer.CONSTANTS else place,
    ],
)
def test_the_wrong_block_is_refused(change: Callable[[Location], Location], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SK_CACHE_DIR", "off")
    emitting(monkeypatch, change)
    with pytest.raises(VerificationError):
        compiled(layers(3))


@pytest.mark.parametrize("given", [b"bytes", np.zeros(128, np.uint8)[1:], np.zeros((8, 64), np.uint8)[:, ::2]])
def test_what_the_runtime_refuses(given: Any) -> None:
    with pytest.raises(InputError, match="argument shared, number 0"):
        make_kernel(shared=[given])


@pytest.mark.parametrize("options", [{"debug": "races"}, {"deny": ("*matmul*",), "fallback": "allow"}])
def test_however_it_is_run(options: dict[str, Any], tmp_path: Path) -> None:
    """Watched, late, by NumPy inside the kernel, bound, profiled, and out of a file."""
    want = compiled(layers(5))(rows_of(5))
    kernel = sk.compile(layers(5), threads=2, options=options)
    assert len(blocks(kernel).shared) == 2
    np.testing.assert_allclose(kernel(rows_of(5)), want, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(kernel.run([rows_of(5)], delays=7).outputs["y"], want, rtol=1e-4, atol=1e-3)
    bound = kernel.bind(rows_of(5))
    bound.run()
    np.testing.assert_allclose(bound.outputs["y"], want, rtol=1e-4, atol=1e-3)
    assert kernel.report(rounds=1).text()
    kernel.save(tmp_path / "kernel.skm")
    loaded = sk.load(tmp_path / "kernel.skm")
    np.testing.assert_array_equal(loaded(rows_of(5)), kernel(rows_of(5)))


def test_in_a_forked_child() -> None:
    with constants._lock:
        child = os.fork()
        if child == 0:
            made = compiled(layers(2, [FACTORS[1]]))
            os._exit(0 if len(blocks(made).shared) == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_digests_and_comparison() -> None:
    array = RNG.standard_normal((5, 6))
    assert same_contents(array, array.copy())
    assert same_contents(array.T, array.copy().T)
    assert not same_contents(array, array.astype(np.float32))
    assert not same_contents(array, array.reshape(6, 5))
    assert not same_contents(np.zeros(3), -np.zeros(3))
    digest = contents_digest(array)
    array[0, 0] += 1
    assert contents_digest(array) != digest, "somebody may write to it"
    assert contents_digest(array.T) == contents_digest(np.ascontiguousarray(array.T))
    assert contents_digest(np.zeros(())) == contents_digest(np.zeros(1))
