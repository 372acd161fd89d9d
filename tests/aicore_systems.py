"""Whole programs for the simulated accelerator, for tests: random fused models, and a workbench that rebuilds a
compiled model with something changed (another plan, other data, other kernels) without asking the verifier.

A model is compiled once; a rebuild emits and links again what the change touches, and keeps the kernels that it does
not touch.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import superkernel
from superkernel.backends.aicore.compiled import AicoreCompiled
from superkernel.backends.aicore.executable import SimExecutable, SimRun
from superkernel.builder import GraphBuilder, Tensor
from superkernel.codegen.aicore.code_choice import CodeOptions
from superkernel.codegen.aicore.image import AicoreImage, AicoreImageBuilder, Contents
from superkernel.codegen.aicore.program_spec import ProgramSpec, ranges_of
from superkernel.codegen.cache import ObjectCache
from superkernel.ir.graph import Graph
from superkernel.scheduler.aicore.schedule import AicoreSchedule
from superkernel.sync.aicore.plan import AicorePlan

Array = NDArray[Any]
COLUMNS = (32, 64, 96)
INSTRUCTIONS_MAX = 3_000_000  # a launch of these models takes less than a tenth of it


def fused_model() -> Graph:
    """A convolution, products with epilogues, a table, pieces put together: both types of cores, many boundaries."""
    rng = np.random.default_rng(7)
    b = GraphBuilder("fused")
    image, tokens = b.input("image", (1, 16, 12, 12)), b.input("tokens", (48,), "i32")
    kernel = _constant(b, rng, "kernel", 32, 16, 3, 3)
    features = b.relu(b.conv(image, kernel, pads=(1, 1, 1, 1)))  # [1, 32, 12, 12]
    rows = features.reshape(32, 144).transpose(1, 0)  # [144, 32]
    left = b.silu(rows @ _constant(b, rng, "w0", 32, 64) + _constant(b, rng, "b0", 64))
    table = b.gather(_constant(b, rng, "table", 80, 64), tokens, axis=0)  # [48, 64]
    joined = b.concat(left, table, axis=0)  # [192, 64]
    right = joined @ _constant(b, rng, "w1", 64, 96)
    b.output(b.tanh(right) + right, name="y")
    b.output(b.exp(joined), name="z")
    return b.graph()


def alone_model(product: bool) -> Graph:
    """One sub-operator, small enough for one turn of its buffers on each core: a product, or a chain of elementwise
    operators."""
    rng = np.random.default_rng(3)
    b = GraphBuilder("alone")
    x = b.input("x", (32, 64), "f16")
    made = (
        x @ b.constant((rng.standard_normal((64, 32)) / 8).astype(np.float16), name="w") if product else b.exp(x * 2.0)
    )
    b.output(made, name="y")
    return b.graph()


def random_model(seed: int, operators: int = 9) -> Graph:
    """Products, elementwise operators and movement over matrices of a few sizes; each takes what came before."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    b = GraphBuilder(f"random{seed}")
    rows = rng.choice((48, 80, 160))
    values = [b.input("x", (rows, 64)), b.input("y", (rows, 32))]
    for number in range(operators):
        x = rng.choice(values[-4:])
        kind = rng.choice(("product", "product", "unary", "binary", "concat", "rows", "gather"))
        if kind == "product":
            width = rng.choice(COLUMNS)
            made = x @ _constant(b, numbers, f"w{number}", x.shape[1], width)
            made = b.relu(made) if rng.random() < 0.5 else made
        elif kind == "unary":
            made = rng.choice((b.tanh, b.relu, b.sigmoid, b.abs))(x)
        elif kind == "binary":
            same = [v for v in values if v.shape == x.shape]
            made = rng.choice((b.add, b.maximum))(x, rng.choice(same))
        elif kind == "concat" and x.shape[1] <= 96:
            made = b.concat(x, b.neg(x), axis=1)
        elif kind == "rows":
            made = b.concat(x[x.shape[0] // 2 :], x[: x.shape[0] // 2], axis=0)
        else:
            order = numbers.permutation(x.shape[0]).astype(np.int32)
            made = b.gather(x, b.constant(order, name=f"order{number}"), axis=0)
        values.append(made)
    for number, value in enumerate(values[-4:]):
        b.output(value, name=f"out{number}")
    return b.graph()


def _constant(b: GraphBuilder, rng: np.random.Generator, name: str, *shape: int) -> Tensor:
    fan_in = shape[0] if len(shape) == 2 else int(np.prod(shape[1:]))
    return b.constant(rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(fan_in)), name=name)


class MemoryCache(ObjectCache):
    """Objects by what they were made from, for as long as the test runs."""

    def __init__(self) -> None:
        super().__init__(None)
        self._objects: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        return self._objects.get(key)

    def put(self, key: str, data: bytes) -> None:
        self._objects[key] = data


@dataclass
class Workbench:
    """A compiled model and what is needed to build it again."""

    compiled: AicoreCompiled
    io: list[Array]
    constants: dict[str, Array]
    cache: ObjectCache
    kernels: _Rebuilder
    healthy: list[bytes] = field(default_factory=list)  # outputs and states of the program as it was compiled

    @classmethod
    def of(cls, graph: Graph, target: str = "mini", **options: Any) -> Workbench:
        """Compile a graph and run it once; without preloading, unless the options say so: it takes long to plan."""
        kernel = superkernel.compile(graph, target=target, options={"preload": "none", **options})
        compiled = kernel._compiled
        assert isinstance(compiled, AicoreCompiled)
        assert not compiled.image.host_calls, "a sub-operator without a kernel"
        cache = MemoryCache()
        bench = cls(compiled, kernel._io(list(kernel._random().values())), dict(compiled.grouping.constants), cache,
                    _builder(compiled, cache))  # fmt: skip
        bench.kernels.build(bench.constants)
        bench.healthy = bench.results(bench.run())
        return bench

    def build(
        self,
        plan: AicorePlan | None = None,
        schedule: AicoreSchedule | None = None,
        change: Callable[[AicoreImageBuilder], None] | None = None,
        *,
        fresh: bool = False,
    ) -> SimExecutable:
        """The program with another plan or schedule; `change` may alter the builder. `fresh`: emit the kernels again.
        Nothing is verified."""
        compiled = self.compiled
        plan, schedule = plan or compiled.plan, schedule or compiled.schedule
        builder = _builder(compiled, self.cache, plan, schedule)
        if not fresh:
            builder.kernels = dict(self.kernels.kernels)
            if schedule is compiled.schedule and change is None:
                builder.known = self.kernels.known
        if change is not None:
            change(builder)
        return self.executable(builder.build(self.constants), schedule)

    def executable(self, image: AicoreImage, schedule: AicoreSchedule | None = None) -> SimExecutable:
        """An image ready to run."""
        compiled = self.compiled
        return SimExecutable(
            image, schedule or compiled.schedule, compiled.target, len(compiled.graph.inputs),
            len(compiled.graph.outputs),
        )  # fmt: skip

    def with_data(self, change: Callable[[int, bytearray], None]) -> SimExecutable:
        """The program with other data in its memory: `change(address, bytes)` edits what is written at the start."""
        image = self.compiled.image
        data = []
        for part in image.data:
            new = bytearray(part.data.tobytes())
            change(part.address, new)
            data.append(Contents(part.address, np.frombuffer(new, np.uint8), len(new)))
        return self.executable(replace(image, data=tuple(data)))

    def run(self, executable: SimExecutable | None = None, **options: Any) -> SimRun:
        """A fused run; outputs and states of `io` are overwritten."""
        first = len(self.compiled.graph.inputs)
        for array in self.io[first:]:
            array.reshape(-1).view(np.uint8)[:] = 0
        return (executable or self.compiled.executable).simulate(
            self.io, **{"max_instructions": INSTRUCTIONS_MAX, **options}
        )

    def results(self, run: SimRun) -> list[bytes]:
        """Outputs and states behind a run."""
        assert run.launches
        return [array.tobytes() for array in self.io[len(self.compiled.graph.inputs) :]]


class _Rebuilder(AicoreImageBuilder):
    """Emits the launches of single sub-operators once for all plans of a schedule that run the same ones: they take as
    long as all else that a plan changes, and depend on nothing but the calls and their numbers."""

    known: list[tuple[object, str]]

    def _singles(self, spec: ProgramSpec) -> str:
        ranges = ranges_of(spec.plan, spec.calls)
        for numbers, text in self.known:
            if numbers == ranges:
                return text
        self.known.append((ranges, super()._singles(spec)))
        return self.known[-1][1]


def _builder(
    compiled: AicoreCompiled,
    cache: ObjectCache,
    plan: AicorePlan | None = None,
    schedule: AicoreSchedule | None = None,
) -> _Rebuilder:
    code = CodeOptions(compiled.options.func_align, compiled.options.split, compiled.options.preload)
    builder = _Rebuilder(
        schedule or compiled.schedule, plan or compiled.plan, compiled.target, compiled.image.addresses, cache, code,
    )  # fmt: skip
    builder.known = []
    return builder


def digest(run: SimRun, results: list[bytes]) -> dict[str, str]:
    """SHA-256 of the traces and of the outputs of a run, and its cycles."""
    trace, data = hashlib.sha256(), hashlib.sha256()
    for launch in run.launches:
        assert launch.trace
        trace.update(launch.trace)
    for raw in results:
        data.update(raw)
    cycles = ",".join(str(launch.cycles) for launch in run.launches)
    return {"trace": trace.hexdigest(), "outputs": data.hexdigest(), "cycles": cycles}
