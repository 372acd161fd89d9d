"""The collector rests while a kernel is compiled, and never longer."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from time import monotonic, sleep

import numpy as np
import pytest
from interrupts import each_line

import superkernel as sk
from superkernel.core import collection
from superkernel.core.collection import Rest, paused


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    """Behind the pauses of others: threads of kernels of other tests may still have to end theirs."""
    end = monotonic() + 60
    while collection._pauses and monotonic() < end:
        sleep(0.001)
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


def test_an_interrupt_of_its_beginning_or_end_ends_the_pause() -> None:
    def work() -> None:
        with paused():
            pass

    def ended(line: int) -> None:
        assert (collection._pauses, gc.isenabled()) == ({}, True), line

    watched = (collection._begin, collection._end, collection._enable_again, Rest.__init__, Rest.end)
    assert each_line(work, {function.__code__ for function in watched}, ended) > 10


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
            assert leave.wait(60)

    thread = threading.Thread(target=other)
    with paused():
        thread.start()
        assert inside.wait(60)
    assert not gc.isenabled()  # the other one's is not over
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_a_forked_child_leaves_the_pauses_of_other_threads_behind() -> None:
    """And their lock. Its own goes on: it is in the middle of it."""
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with paused(), collection._lock:
            inside.set()
            leave.wait(60)

    def enabled_in_child() -> list[bool]:
        reader, writer = os.pipe()
        if (child := os.fork()) == 0:
            found = [gc.isenabled()]
            with paused():
                found.append(gc.isenabled())
            os.write(writer, bytes([*found, gc.isenabled()]))
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writer)
        with open(reader, "rb") as file:
            return [bool(byte) for byte in file.read()]

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(60)
    assert enabled_in_child() == [True, False, True]
    leave.set()
    thread.join()
    with paused():
        assert enabled_in_child() == [False, False, False]
    gc.disable()
    assert enabled_in_child() == [False, False, False]


def test_compiling_leaves_it_as_it_was() -> None:
    b = sk.GraphBuilder("small")
    x = b.input("x", (4,))
    b.output(x + x, "y")
    kernel = sk.compile(b.graph(), threads=1)
    assert gc.isenabled()
    assert np.array_equal(kernel(np.ones(4, np.float32)), np.full(4, 2, np.float32))
    with pytest.raises(sk.InputError):
        sk.compile(b.graph(), target="nothing")
    assert gc.isenabled()


def test_another_thread_ends_a_rest() -> None:
    with paused():
        rest = Rest()
    assert not gc.isenabled()
    thread = threading.Thread(target=rest.end)
    thread.start()
    thread.join()
    assert gc.isenabled()
    with paused():
        rest.end()  # it has ended: another's pause goes on
        assert not gc.isenabled()
    assert gc.isenabled()
