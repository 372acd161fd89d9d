"""Copies of kernels: in this process, by a pickle in another one, and of what they hand out."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import tempfile
import threading
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import superkernel as sk
from superkernel import Report, SimReport

X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 8)
OTHER_PROCESSES = ("spawn", "forkserver")
COPIES = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": lambda kernel: pickle.loads(pickle.dumps(kernel))}


def summing(target: str = "host", **options: Any) -> sk.Kernel:
    """A state of sums, and a weight too large for the head of a saved graph."""
    b = sk.GraphBuilder("summing")
    x = b.input("x", (1, 8), "f32")
    sums = b.state("sums", np.zeros((1, 8), np.float32))
    total = b.add(sums, x, name="total")
    b.update(sums, total)
    b.output(b.matmul(total, b.constant(np.eye(8, 300, dtype=np.float32))), name="y")
    return sk.compile(b.graph(), target, threads=2 if target == "host" else None, options=options)


@pytest.fixture(scope="module")
def kernels() -> dict[str, sk.Kernel]:
    return {"host": summing(), "mini": summing("mini", scopes=("one:total",))}


@pytest.mark.parametrize("target", ["host", "mini"])
@pytest.mark.parametrize("how", COPIES)
def test_a_copy_goes_its_own_way(kernels: dict[str, sk.Kernel], how: str, target: str) -> None:
    kernel = kernels[target]
    kernel.reset_states()
    kernel(X)
    other = COPIES[how](kernel)
    assert repr(other) == repr(kernel)
    assert other.plan == kernel.plan
    assert other.summary()["options_without_effect"] == kernel.summary()["options_without_effect"]
    first, second = other(X), other(X)
    assert first.tobytes() == kernel(X).tobytes(), "states come along"
    assert second.tobytes() == kernel(X).tobytes(), "and are changed by nobody else"
    other.reset_states()
    assert not other.states["sums"].any()
    assert kernel.states["sums"].any()


def test_what_a_pickle_holds_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SK_CACHE_DIR", "off")
    kernel = summing()
    assert not kernel.summary()["from_cache"]
    assert pickle.loads(pickle.dumps(kernel)).summary()["from_cache"]


def called(kernel: sk.Kernel, x: Any) -> tuple[str, bytes]:
    return repr(kernel), kernel(x).tobytes()


@pytest.mark.parametrize("method", OTHER_PROCESSES)
def test_a_pool_of_processes_runs_kernels(kernels: dict[str, sk.Kernel], method: str) -> None:
    kernel = copy.copy(kernels["host"])
    kernel.reset_states()
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
        found = list(pool.map(partial(called, kernel), [X, X]))
    expected = repr(kernel), kernel(X).tobytes()
    assert found == [expected, expected], "each call sends the kernel with its states"


def test_what_a_kernel_hands_out_may_be_pickled(kernels: dict[str, sk.Kernel]) -> None:
    for kernel in kernels.values():
        why, report = kernel.explain("y"), kernel.report(rounds=1)
        for item in (why, report, kernel.certificate, kernel.trace()):
            for other in (pickle.loads(pickle.dumps(item)), copy.deepcopy(item)):
                assert str(other) == str(item)
        if isinstance(report, SimReport):  # the page simulates once more, with the kernel that a copy does not hold
            with pytest.raises(sk.UnsupportedError, match="without a timeline"):
                copy.deepcopy(report).html()
        elif isinstance(report, Report):
            assert copy.deepcopy(report).html() == report.html()
        for other in (pickle.loads(pickle.dumps(why)), copy.deepcopy(why)):
            assert other.to_json() == why.to_json()
        states = copy.deepcopy(kernel.states)
        assert {name: array.tobytes() for name, array in states.items()} == {
            name: array.tobytes() for name, array in kernel.states.items()
        }
        assert not np.shares_memory(states["sums"], kernel.states["sums"])


def test_saved_kernels_need_no_place_for_temporary_files(
    kernels: dict[str, sk.Kernel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk under /tmp may be full where the file itself has room."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    kernel = copy.copy(kernels["host"])
    kernel.save(tmp_path / "k.skm")
    again = sk.load(tmp_path / "k.skm")
    kernel.reset_states()
    assert again(X).tobytes() == kernel(X).tobytes()


def test_a_child_forked_while_another_thread_compiles_compiles_too() -> None:
    """llvmlite's lock, taken by the other thread at the time, is free in the child."""
    from llvmlite.binding import ffi

    kernel = summing()
    entered, forked = threading.Event(), threading.Event()

    def inside_llvm() -> None:
        with ffi.lib._lock:
            entered.set()
            forked.wait(0.2)  # longer than the other thread takes to ask for its fork

    thread = threading.Thread(target=inside_llvm)
    thread.start()
    entered.wait()
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=compiled_result, args=(sender,))
    child.start()
    forked.set()
    thread.join()
    try:
        assert receiver.poll(60), "the child hangs"
        assert receiver.recv() == kernel(X).tobytes()
    finally:
        child.kill()
        child.join()


def compiled_result(sender: Any) -> None:
    os.environ["SK_CACHE_DIR"] = "off"
    sender.send(summing()(X).tobytes())
