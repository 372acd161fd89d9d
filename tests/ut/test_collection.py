"""The collector rests while a kernel is compiled, and never longer."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import superkernel as sk
from superkernel.collection import paused


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_rests_within_and_works_behind() -> None:
    with paused():
        assert not gc.isenabled()
        with paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_ends_the_pause() -> None:
    with pytest.raises(ValueError, match="inside"), paused():
        raise ValueError("inside")
    assert gc.isenabled()


def test_stays_off_where_it_was_off() -> None:
    gc.disable()
    with paused():
        pass
    assert not gc.isenabled()


def test_overlapping_pauses_of_threads() -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with paused():
            inside.set()
            assert leave.wait(10)

    thread = threading.Thread(target=other)
    with paused():
        thread.start()
        assert inside.wait(10)
    assert not gc.isenabled()  # the other one's is not over
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_compiling_leaves_it_as_it_was() -> None:
    b = sk.GraphBuilder("small")
    x = b.input("x", (4,))
    b.output(x + x, "y")
    kernel = sk.compile(b.graph(), threads=1)
    assert gc.isenabled()
    assert np.array_equal(kernel(np.ones(4, np.float32)), np.full(4, 2, np.float32))
    with pytest.raises(sk.UnsupportedError):
        sk.compile(b.graph(), target="nothing")
    assert gc.isenabled()
