"""Kernels for sizes that change: the same bits as fresh compilations, how many are kept, and what is refused."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import superkernel as sk
from superkernel.api import resolved
from superkernel.backends import backend_of, kernel_of
from superkernel.compilation.pipeline import compile_graph
from superkernel.compilation.planned import PlanStore
from superkernel.core import collection
from superkernel.core.errors import GraphError, InputError, UnsupportedError
from superkernel.frontends import load_graph
from superkernel.frontends.dynamic import DynamicSource
from superkernel.runtime import dynamic as dynamic_module
from superkernel.runtime.dynamic import DynamicKernel

RNG = np.random.default_rng(4)
WEIGHTS = RNG.standard_normal((8, 8), dtype=np.float32)


def encoder(batch: int, seq: int) -> sk.GraphBuilder:
    """Attention over `seq` rows, a mask of extent seq + 1 beside it."""
    b = sk.GraphBuilder("encoder")
    x = b.input("x", (batch, seq, 8), "f32")
    bias = b.input("bias", (2 * seq + 1,), "f32")
    rows = b.matmul(x, b.constant(WEIGHTS))
    scores = b.softmax(b.matmul(rows, rows, trans_b=True), axis=-1)
    b.output(b.add(b.matmul(scores, rows), b.reduce_sum(bias, axes=(0,), keepdims=True)), name="y")
    return b


def given(batch: int, seq: int) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(batch * 100 + seq)
    return {
        "x": rng.standard_normal((batch, seq, 8), dtype=np.float32),
        "bias": rng.standard_normal(2 * seq + 1, dtype=np.float32),
    }


def dynamic(**options: Any) -> sk.DynamicKernel:
    return sk.compile_dynamic(encoder, {"batch": (1, 4), "seq": (1, 40)}, threads=2, **options)


def test_types_of_inputs_are_found_out() -> None:
    kernel = dynamic()
    assert {name: str(kind) for name, kind in kernel.inputs.items()} == {
        "x": "f32[batch, seq, 8]",
        "bias": "f32[2*seq+1]",
    }
    assert kernel.compiled == []


@pytest.mark.slow
def test_the_same_bits_as_fresh_compilations() -> None:
    kernel = dynamic()
    for _ in range(12):
        batch, seq = int(RNG.integers(1, 5)), int(RNG.integers(1, 41))
        inputs = given(batch, seq)
        fresh = sk.compile(encoder(batch, seq), threads=2)
        np.testing.assert_array_equal(kernel(**inputs), fresh(**inputs))
        np.testing.assert_array_equal(kernel.run(inputs).outputs["y"], fresh(**inputs))


def test_sizes_that_were_met_compile_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = dynamic()
    first = kernel(**given(1, 3))
    made = kernel.at(batch=1, seq=3)
    monkeypatch.setattr(kernel, "_make", None)
    np.testing.assert_array_equal(kernel(**given(1, 3)), first)
    np.testing.assert_array_equal(kernel(given(1, 3)["x"], given(1, 3)["bias"]), first)
    assert kernel.at(batch=1, seq=3) is made


def test_shapes_that_were_met_are_checked_as_ever() -> None:
    kernel = dynamic()
    inputs = given(1, 3)
    for _ in range(2):
        first = kernel(*inputs.values())
    np.testing.assert_array_equal(kernel(inputs["x"].tolist(), inputs["bias"]), first)
    with pytest.raises(InputError, match="missing"):
        kernel(inputs["x"])
    with pytest.raises(InputError, match="wrong element type"):
        kernel(inputs["x"].astype(np.float64), inputs["bias"])
    with pytest.raises(InputError, match="two sizes"):
        kernel(inputs["x"], given(1, 4)["bias"])

    class Odd:
        def __init__(self) -> None:
            self.shape = [1, 3, 8]

    with pytest.raises(InputError):
        kernel(Odd(), inputs["bias"])


def test_those_not_used_for_longest_go() -> None:
    kernel = dynamic()
    kernel.kernels_max = 2
    for seq in (1, 2, 1, 3):
        kernel.at(batch=1, seq=seq)
    assert kernel.compiled == [{"batch": 1, "seq": 1}, {"batch": 1, "seq": 3}]
    kernel.kernels_max = 1
    assert kernel.compiled == [{"batch": 1, "seq": 3}]
    assert "1 compiled" in repr(kernel)
    for wrong in (0, True, 2.0):
        with pytest.raises(InputError, match="not a number of kernels"):
            kernel.kernels_max = wrong  # type: ignore[assignment]


def test_bounds_may_be_integers_of_numpy() -> None:
    kernel = dynamic()
    kernel.kernels_max, kernel.bytes_max = np.int64(3), np.int32(9)  # type: ignore[assignment]
    assert (repr(kernel.kernels_max), repr(kernel.bytes_max)) == ("3", "9")


WIDE = RNG.standard_normal((160, 160), dtype=np.float32)


def wide(rows: int) -> sk.GraphBuilder:
    b = sk.GraphBuilder("wide")
    b.output(b.matmul(b.input("x", (rows, 160), "f32"), b.constant(WIDE)), name="y")
    return b


def test_bytes_that_are_held() -> None:
    kernel = sk.compile_dynamic(wide, {"rows": (1, 99)}, threads=1)
    assert kernel.held_bytes == 0
    kernel.at(rows=8)
    one = kernel.held_bytes
    assert one > 2 * WIDE.nbytes, "as given and as packed"
    kernel.at(rows=9)
    assert one < kernel.held_bytes < one + WIDE.nbytes, "neither again"
    constants = [kernel.at(rows=rows)._compiled.source.constants for rows in (8, 9)]
    assert all(constants[0][name] is array for name, array in constants[1].items())
    kernel.bytes_max = one + 1000
    assert kernel.compiled == [{"rows": 9}]
    kernel.bytes_max = 0
    assert kernel.compiled == [{"rows": 9}], "the last one stays"
    kernel.at(rows=8)
    assert kernel.compiled == [{"rows": 8}]
    kernel.bytes_max = None
    kernel.at(rows=9)
    assert kernel.compiled == [{"rows": 8}, {"rows": 9}]
    for wrong in (-1, 2.5, True):
        with pytest.raises(InputError, match="not a number of bytes"):
            kernel.bytes_max = wrong  # type: ignore[assignment]


def test_launches_of_all_sizes_borrow_the_same_memory() -> None:
    """And nothing of what one of them left there is seen by the next."""
    kernel, largest = sk.compile_dynamic(encoder, {"batch": (1, 4), "seq": (1, 300)}, threads=2), given(4, 300)
    for batch, seq in [(4, 257), (1, 64), (3, 90), (2, 300)]:
        fresh = sk.compile(encoder(batch, seq), threads=2)(**given(batch, seq))
        kernel(**{name: np.full_like(array, np.nan) for name, array in largest.items()})
        np.testing.assert_array_equal(kernel(**given(batch, seq)), fresh)
    made: list[Any] = [kernel.at(**sizes)._compiled for sizes in kernel.compiled]
    workspaces = {id(each.executable.workspace): each.executable.workspace.nbytes for each in made}
    needed = [each.image.arena_bytes + each.image.scratch_bytes * each.cores for each in made]
    (nbytes,) = workspaces.values()
    assert max(needed) <= nbytes < max(needed) + 4096 < sum(needed)
    with ThreadPoolExecutor(4) as pool:
        wanted = {seq: kernel(**given(1, seq)) for seq in (64, 65, 66, 67)}
        for seq, found in pool.map(lambda seq: (seq, kernel(**given(1, seq))), [64, 65, 66, 67] * 8):
            np.testing.assert_array_equal(found, wanted[seq])


def test_constants_that_depend_on_sizes() -> None:
    def scaled(rows: int) -> sk.GraphBuilder:
        b = sk.GraphBuilder()
        b.output(b.matmul(b.input("x", (rows, 160), "f32"), b.constant(WIDE * rows)), name="y")
        return b

    kernel = sk.compile_dynamic(scaled, {"rows": (1, 99)}, threads=1)
    for rows in (2, 3, 2):
        x = np.random.default_rng(rows).standard_normal((rows, 160), dtype=np.float32)
        np.testing.assert_array_equal(kernel(x), sk.compile(scaled(rows), threads=1)(x))


def test_compiled_ahead() -> None:
    kernel = dynamic()
    kernel.prepare({"batch": 1, "seq": 3}, {"batch": 2, "seq": 3})
    assert kernel.compiled == [{"batch": 1, "seq": 3}, {"batch": 2, "seq": 3}]
    with pytest.raises(InputError, match="no such size"):
        kernel.prepare({"batch": 1, "seq": 4}, {"batch": 5, "seq": 3}, wait=False)
    kernel.prepare({"batch": 1, "seq": 5}, {"batch": 1, "seq": 6}, wait=False)
    kernel.prepare(wait=False)
    first = kernel(**given(1, 5))  # which may be under way
    np.testing.assert_array_equal(first, sk.compile(encoder(1, 5), threads=2)(**given(1, 5)))
    assert kernel.at(batch=1, seq=6) is kernel.at(batch=1, seq=6)
    assert len(kernel.compiled) == 4


def test_calls_go_on_while_another_size_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = dynamic()
    kernel(**given(1, 3))
    began, go_on = Event(), Event()
    make = kernel._make

    def slow(*given: Any) -> Any:
        began.set()
        assert go_on.wait(60)
        return make(*given)

    monkeypatch.setattr(kernel, "_make", slow)
    kernel.prepare({"batch": 1, "seq": 4}, wait=False)
    assert began.wait(60)
    kernel(**given(1, 3))
    assert kernel.compiled == [{"batch": 1, "seq": 3}]
    go_on.set()
    kernel(**given(1, 4))


def test_what_goes_wrong_in_the_background_is_raised_by_the_call() -> None:
    def odd(rows: int) -> sk.GraphBuilder:
        b = sk.GraphBuilder()
        x = b.input("x", (rows, 2), "f32")
        b.output(b.reshape(x, shape=(4, rows // 2)) if rows > 2 else x, name="y")
        return b

    kernel = sk.compile_dynamic(odd, {"rows": (1, 9)}, threads=1)
    kernel.prepare({"rows": 3}, {"rows": 4}, wait=False)
    with pytest.raises(GraphError):
        kernel(np.ones((3, 2), np.float32))
    assert kernel(np.ones((4, 2), np.float32)).shape == (4, 2)


def test_a_process_that_ends_compiles_no_further() -> None:
    text = """
import superkernel as sk

def doubled(rows):
    b = sk.GraphBuilder()
    x = b.input("x", (rows, 8), "f32")
    b.output(b.add(x, x))
    return b

kernel = sk.compile_dynamic(doubled, {"rows": (1, 400)}, threads=1)
make, done = kernel._make, []
kernel._make = lambda *given: (done.append(1), print(len(done), flush=True), make(*given))[-1]
kernel.prepare(*({"rows": rows} for rows in range(1, 401)), wait=False)
"""
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300, check=True)
    assert ran.stderr == ""
    assert 1 <= len(ran.stdout.split()) < 400


def test_plans_are_kept_behind_the_call_and_before_the_process_ends(tmp_path: Path) -> None:
    text = """
import threading
import numpy as np
import superkernel as sk
from superkernel.compilation.planned import PlanStore

def doubled(rows):
    b = sk.GraphBuilder()
    x = b.input("x", (rows, 8), "f32")
    b.output(b.add(x, x), name="y")
    return b

kept, keep, go_on = [], PlanStore.keep, threading.Event()

def slow(store, planned):
    go_on.wait(20)
    kept.append(planned)
    keep(store, planned)

PlanStore.keep = slow
kernel = sk.compile_dynamic(doubled, {"rows": (1, 400)}, threads=1)
assert kernel(np.ones((3, 8), np.float32)).sum() == 48
assert kernel.run([np.ones((4, 8), np.float32)]).outputs["y"].sum() == 64
print(*kept, *("place" in made._compiled.stage_ns for made in kernel._kernels.values()))
go_on.set()
"""
    cache = {**os.environ, "SK_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", text]
    first, second = (
        subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, env=cache) for _ in range(2)
    )
    assert (first.stdout, first.stderr) == ("True True\n", "")  # planned, and nothing kept when the calls returned
    assert (second.stdout, second.stderr) == ("False False\n", "")


def test_what_is_done_later_waits_until_no_new_sizes_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither plans are kept nor is garbage looked for between two calls with new sizes, unless much of it waits; nor
    does anything wait for ever behind a call that fails."""
    monkeypatch.setenv("SK_CACHE_DIR", str(tmp_path))
    done = Event()
    monkeypatch.setattr(dynamic_module, "QUIET_S", 3600.0)
    monkeypatch.setattr(dynamic_module, "LATER_MAX", 3)
    monkeypatch.setattr(dynamic_module, "sleep", lambda _: done.wait(60))
    kept: list[Any] = []
    monkeypatch.setattr(PlanStore, "keep", lambda store, planned: kept.append(planned))
    kernel = dynamic()
    kernel(**given(1, 3))
    kernel(**given(1, 4))
    assert not kept
    assert not gc.isenabled()
    kernel(**given(1, 5))  # more than may wait
    done.set()
    assert _within_a_minute(lambda: len(kernel._later) <= 3)
    assert kept
    monkeypatch.setattr(dynamic_module, "QUIET_S", 0.0)
    with pytest.raises(InputError):
        kernel(**{**given(1, 5), "x": given(1, 5)["x"].astype(np.int64)})
    assert _within_a_minute(gc.isenabled)
    assert _within_a_minute(lambda: len(kept) == 3)


def test_the_garbage_collector_rests_for_some_sizes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where new sizes come one after the other, and never is there time, it works all the same."""
    assert _within_a_minute(lambda: not collection._pauses)  # of kernels of other tests
    monkeypatch.setattr(dynamic_module, "RESTED_MAX", 2)
    monkeypatch.setattr(DynamicKernel, "_do_later", lambda kernel: None)
    kernel = dynamic()
    worked = []
    for seq in range(3, 9):
        kernel(**given(1, seq))
        worked.append(gc.isenabled())
    kernel._do_now()
    assert worked == [False, False, True, False, False, True]
    assert gc.isenabled()


def _within_a_minute(holds: Callable[[], bool]) -> bool:
    end = monotonic() + 60
    while not holds() and monotonic() < end:
        sleep(0.001)
    return holds()


def test_plans_of_kernels_made_ahead_are_kept_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SK_CACHE_DIR", str(tmp_path))
    dynamic().at(batch=1, seq=3)
    dynamic().prepare({"batch": 1, "seq": 4})
    again = dynamic()
    assert all("place" not in again.at(batch=1, seq=seq)._compiled.stage_ns for seq in (3, 4))
    assert "place" in again.at(batch=1, seq=5)._compiled.stage_ns


def test_several_threads_share_kernels() -> None:
    kernel = dynamic()
    calls = [(1, 2), (1, 3), (1, 2), (2, 2)] * 4
    wanted = {pair: sk.compile(encoder(*pair), threads=2)(**given(*pair)) for pair in set(calls)}
    with ThreadPoolExecutor(4) as pool:
        for pair, found in zip(calls, pool.map(lambda pair: kernel(**given(*pair)), calls), strict=True):
            np.testing.assert_array_equal(found, wanted[pair])
    assert len(kernel.compiled) == 3


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (given(1, 41), "dimension 'seq' out of its range"),
        ({**given(1, 5), "bias": np.zeros(12, np.float32)}, "not an extent of this form"),
        ({**given(1, 5), "bias": np.zeros(13, np.float32)}, "two sizes of dimension 'seq'"),
        ({**given(1, 5), "bias": np.zeros((1, 11), np.float32)}, "wrong shape"),
        ({"x": given(1, 5)["x"]}, "missing"),
        ({**given(1, 5), "z": 1}, "unknown input 'z'"),
        ({**given(1, 5), "x": np.zeros((1, 5, 9), np.float32)}, "wrong shape"),
    ],
)
def test_inputs_that_contradict(inputs: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        dynamic()(**inputs)


class Foreign:
    """Something with a shape of its own."""

    def __init__(self, shape: Any) -> None:
        self._shape = shape

    @property
    def shape(self) -> Any:
        if isinstance(self._shape, Exception):
            raise self._shape
        return self._shape


@pytest.mark.parametrize(
    "value",
    [[[1.0, 2.0], [3.0]], Foreign(("a", 16)), Foreign(([1], 2)), Foreign(RuntimeError("no sizes")), Foreign((1, 5, 8))],
)
def test_what_has_no_shape_is_no_input(value: Any) -> None:
    kernel, bias = dynamic(), given(1, 5)["bias"]
    with pytest.raises(InputError, match="input 'x'"):
        kernel(value, bias)
    with pytest.raises(InputError, match="input 'x'"):
        kernel.run([value, bias])


@pytest.mark.parametrize("inputs", [3, "x", np.zeros((1, 5, 8), np.float32)])
def test_what_are_no_inputs(inputs: Any) -> None:
    with pytest.raises(InputError, match="inputs are not a mapping"):
        dynamic().run(inputs)


def test_functions_that_do_not_take_the_dimensions() -> None:
    sources: list[tuple[Any, Any]] = [(counting, {"m": (1, 2)}), (counting, {}), (lambda: None, {"n": (1, 2)})]
    for source, dims in sources:
        with pytest.raises(InputError, match="does not take the dimensions by keyword"):
            sk.compile_dynamic(source, dims)
    with pytest.raises(InputError, match="not the name of a dimension"):
        sk.compile_dynamic(counting, {1: (1, 2)})  # type: ignore[dict-item]


def test_copies_are_refused() -> None:
    """They would share the states, and each other's turns."""
    kernel = sk.compile_dynamic(counting, {"rows": (1, 9)}, threads=1)
    for act in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(UnsupportedError, match="cannot be copied or pickled"):
            act(kernel)


@pytest.mark.parametrize("size", ["3", 1.5, True, None, float("nan"), 10**30])
def test_what_is_no_size(size: Any) -> None:
    kernel = sk.compile_dynamic(counting, {"rows": (1, 9)}, threads=1)
    with pytest.raises(InputError, match="no such size"):
        kernel.at(rows=size)
    with pytest.raises(InputError, match="no such size"):
        kernel.prepare({"rows": size}, wait=False)
    with pytest.raises(InputError, match="not a mapping"):
        kernel.prepare(size)


def test_sizes_that_are_none() -> None:
    kernel = dynamic()
    with pytest.raises(InputError, match="no such size") as caught:
        kernel.at(batch=1)
    assert "1 to 40" in str(caught.value)
    with pytest.raises(InputError, match="no dimension 'length'"):
        kernel.at(batch=1, length=2)
    for bad in ({"batch": (0, 4)}, {"batch": 3}, {"batch": (4, 1)}):
        with pytest.raises(InputError, match="not a range"):
            sk.compile_dynamic(encoder, bad)  # type: ignore[arg-type]


def test_a_fixed_dimension_need_not_be_told() -> None:
    def widened(width: int, rows: int) -> sk.GraphBuilder:
        b = sk.GraphBuilder()
        x = b.input("x", (rows, 4), "f32")
        b.output(b.matmul(x, b.constant(np.ones((4, width), np.float32))), name="y")
        return b

    kernel = sk.compile_dynamic(widened, {"width": (3, 3), "rows": (1, 9)}, threads=1)
    assert kernel(np.ones((5, 4), np.float32)).shape == (5, 3)
    with pytest.raises(InputError, match="no input's extent tells the size"):
        sk.compile_dynamic(widened, {"width": (3, 4), "rows": (1, 9)})


def counting(rows: int, width: int = 4, start: float = 0.0) -> sk.GraphBuilder:
    """The sum of all rows that were given so far, beside the rows."""
    b = sk.GraphBuilder("counting")
    x = b.input("x", (rows, width), "f32")
    total = b.state("total", np.full(width, start, np.float32))
    b.update(total, b.add(total, b.reduce_sum(x, axes=(0,), keepdims=False)))
    b.output(b.relu(x), name="y")
    return b


def test_states_survive_a_change_of_sizes() -> None:
    kernel = sk.compile_dynamic(counting, {"rows": (1, 9)}, threads=1)
    kernel.kernels_max = 2
    assert dict(kernel.states) == {}
    want = np.zeros(4, np.float32)
    for rows in (2, 5, 2, 3, 9):  # the first kernel goes on the way
        x = np.random.default_rng(rows).integers(-9, 9, (rows, 4)).astype(np.float32)
        np.testing.assert_array_equal(kernel(x), np.maximum(x, 0))
        want += x.sum(axis=0)
        np.testing.assert_array_equal(kernel.states["total"], want)
    assert len(kernel.compiled) == 2
    kernel.states["total"][...] = 1
    kernel.run({"x": np.ones((2, 4), np.float32)})
    np.testing.assert_array_equal(kernel.states["total"], np.full(4, 3, np.float32))
    assert kernel.at(rows=2).states["total"] is not None
    kernel.reset_states()
    np.testing.assert_array_equal(kernel.at(rows=9).states["total"], np.zeros(4, np.float32))


def test_several_threads_take_turns_on_states() -> None:
    kernel = sk.compile_dynamic(counting, {"rows": (1, 9)}, threads=1)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: kernel(np.ones((i % 3 + 1, 4), np.float32)), range(60)))
    np.testing.assert_array_equal(kernel.states["total"], np.full(4, 20 * (1 + 2 + 3), np.float32))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (lambda rows: counting(rows, width=rows), "a state whose type depends on the sizes"),
        (lambda rows: counting(rows, start=rows), "a state that begins with contents that depend on the sizes"),
        (lambda rows: counting(rows) if rows < 2 else encoder(1, rows), "a state whose type depends on the sizes"),
    ],
)
def test_states_that_depend_on_sizes_are_refused(source: Any, said: str) -> None:
    sizes = iter((1, 2))
    kernel = sk.DynamicKernel(
        DynamicSource({"rows": (1, 9)}, {}, lambda _: load_graph(source(next(sizes)))),
        lambda graph, states, later: kernel_of(
            compile_graph(graph, resolved("host"), sk.Options(), backend_of("cpu"), threads=1, later=later), states
        ),
    )
    kernel.at(rows=1)
    with pytest.raises(UnsupportedError, match=said) as caught:
        kernel.at(rows=2)
    assert "state 'total'" in str(caught.value)
    assert kernel.compiled == [{"rows": 1}]


def test_kernels_on_given_states() -> None:
    total = np.full(4, 2, np.float32)
    made = [sk.compile(counting(rows), threads=1)._compiled for rows in (1, 3)]
    one, other = (kernel_of(compiled, {"total": total}) for compiled in made)
    one(np.ones((1, 4), np.float32))
    other(np.ones((3, 4), np.float32))
    np.testing.assert_array_equal(total, np.full(4, 6, np.float32))
    own = kernel_of(made[0])
    own(np.ones((1, 4), np.float32))
    np.testing.assert_array_equal(own.states["total"], np.ones(4, np.float32))
    np.testing.assert_array_equal(total, np.full(4, 6, np.float32))


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ({"sum": np.zeros(4, np.float32)}, "no state 'sum'"),
        ({"total": np.zeros(5, np.float32)}, "not an array of the state's type"),
        ({"total": np.zeros(4, np.float64)}, "not an array of the state's type"),
        ({"total": np.zeros(8, np.float32)[::2]}, "not an array to keep a state in"),
        ({"total": np.frombuffer(bytes(16), np.float32)}, "not an array to keep a state in"),
    ],
)
def test_arrays_that_no_state_can_be_kept_in(states: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        kernel_of(sk.compile(counting(1), threads=1)._compiled, states)


def test_what_has_no_named_sizes() -> None:
    with pytest.raises(InputError, match="not a source with named sizes"):
        sk.compile_dynamic(encoder(1, 2).graph(), {"batch": (1, 2)})


def onnx_model() -> Any:
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    weights = onnx.numpy_helper.from_array(WEIGHTS, "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["t"]), helper.make_node("Softmax", ["t"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, 1, ["rows", 8]) for name in "xy")
    graph = helper.make_graph(nodes, "rows", [x], [y], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_an_onnx_model_by_its_symbolic_dimensions(tmp_path: Path) -> None:
    model = onnx_model()
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    for source in (model, path, str(path)):
        kernel = sk.compile_dynamic(source, {"rows": (1, 100)}, threads=2)
        for rows in (1, 7):
            x = np.random.default_rng(rows).standard_normal((rows, 8), dtype=np.float32)
            np.testing.assert_array_equal(kernel(x), sk.compile(model, threads=2, dims={"rows": rows})(x))


def test_initialisers_are_read_once_for_all_sizes() -> None:
    kernel = sk.compile_dynamic(onnx_model(), {"rows": (1, 99)}, threads=1)
    first, second = (kernel.at(rows=rows)._compiled.source.constants for rows in (2, 3))
    assert list(first) == list(second) == ["w"]
    assert first["w"] is second["w"]
    assert not first["w"].flags.writeable


def test_dimensions_that_an_onnx_model_does_not_have() -> None:
    with pytest.raises(InputError, match="the model has no dimension 'row'") as caught:
        sk.compile_dynamic(onnx_model(), {"row": (1, 4)})
    assert "did you mean 'rows'" in str(caught.value)
    assert "a dimension without a range" in str(caught.value)
