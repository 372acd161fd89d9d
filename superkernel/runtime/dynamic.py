"""`DynamicKernel`: kernels of one source for whatever sizes arrive, made when they are first needed.

Every kernel is planned and proved for its sizes as any other, and computes the same bits as one that was compiled for
them alone. The machine code of sub-operators that do not change with the sizes is found in the cache, and constants
are shared, as given and as packed; launches of all sizes borrow the memory that they work in from the same blocks, as
many as ran at the same time. What is kept is bounded by number (`kernels_max`) and, where that is asked for, by
bytes (`bytes_max`).

A call with new sizes returns before their plan is in the cache, and before the garbage collector has looked through
what compiling made: a thread does both when no new sizes have come for a while, as it would take turns at the
interpreter with whoever compiles, or when more than LATER_MAX such things wait. A process that ends waits for it. While
new sizes come one after the other, every RESTED_MAX-th call waits for the garbage collector.

With *buckets* (`buckets.py`), calls with new sizes are run by kernels of larger ones instead, where that is proved to
change nothing.

States (a KV cache) belong to the object: all its kernels work on the same arrays, one at a time, so that what they hold
survives a change of sizes. So no state's type or initial contents may depend on the sizes.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from threading import Lock, RLock
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np

from superkernel.core.arrays import NamedArrays, owners, same_contents
from superkernel.core.collection import Rest, paused
from superkernel.core.errors import InputError, SuperKernelError, UnsupportedError, Violation, raise_all
from superkernel.frontends.dynamic import DynamicSource, sizes_of
from superkernel.frontends.dynamic_axes import DynamicInput, Ranges
from superkernel.ir.graph import Graph
from superkernel.runtime.buckets import Bucket, Buckets, BucketSizes, Sizes
from superkernel.runtime.buffers import put_results
from superkernel.runtime.inputs import bind_arguments, inputs_given, inputs_listed, shape_of
from superkernel.runtime.kernel import Array, Kernel
from superkernel.runtime.result import RunReport, RunResult

if TYPE_CHECKING:
    from superkernel.compilation.stages import Later

KERNELS_MAX = 16
QUIET_S = 0.05  # without a call with new sizes: none is expected soon
LATER_MAX = 16
RESTED_MAX = 8  # sizes that are compiled between two looks of the garbage collector
MET_MAX = 4096  # shapes of calls that are remembered; then anew
Make: TypeAlias = "Callable[[Graph, Mapping[str, Array], Later], Kernel]"
"""What compiles a graph, with states in given arrays; those that are not given are new."""


class DynamicKernel:
    """See the module docstring. Made by `superkernel.compile_dynamic`. Several threads may call it.

    Call: `kernel(*arrays, out=None, **named)`, `out` as of `Kernel`; the arrays' shapes tell the sizes, which must lie
    in their ranges, else InputError. The first call with new sizes compiles, unless a bucket's kernel takes them."""

    def __init__(self, source: DynamicSource, make: Make, buckets: BucketSizes | None = None) -> None:
        self._source, self._make = source, make
        self._buckets = Buckets(source, buckets) if buckets else None
        self._kernels: OrderedDict[tuple[Sizes, bool], Kernel] = OrderedDict()
        """By sizes, and whether only a bucket can use it."""
        self._kernels_max = KERNELS_MAX
        self._bytes_max: int | None = None
        self._lock = Lock()  # of the kernels that there are
        self._making = Lock()
        self._background: ThreadPoolExecutor | None = None
        self._later: deque[Callable[[], None]] = deque()  # what puts plans into the cache, and ends rests
        self._waits_for_quiet = False  # whether somebody will do what is to be done later
        self._made_s = 0.0  # when the last kernel was there
        self._rest: Rest | None = None  # of the garbage collector
        self._rested = 0  # kernels that were made since it began
        self._met: dict[tuple[Any, ...] | None, Sizes] = {}  # sizes by the shapes of a call
        self._initial: Mapping[str, Array] | None = None  # of states, by the first graph
        self._reset: Mapping[str, Array] = {}  # the same, by the first kernel
        self._states: dict[str, Array] = {}
        self._turn: AbstractContextManager[Any] = nullcontext()

    @property
    def dims(self) -> Ranges:
        """Dimension -> least and largest size."""
        return self._source.ranges

    @property
    def inputs(self) -> Mapping[str, DynamicInput]:
        """Types of inputs by name, in call order; extents by dimensions."""
        return self._source.inputs

    @property
    def kernels_max(self) -> int:
        """How many kernels are kept; of more, the one that was not used for longest goes. 16 unless it is set."""
        return self._kernels_max

    @kernels_max.setter
    def kernels_max(self, count: int) -> None:
        if not _is_whole(count) or count < 1:
            raise InputError("not a number of kernels", location="kernels_max", expected=">= 1", found=repr(count))
        self._kernels_max = int(count)
        with self._lock:
            self._shrink()

    @property
    def held_bytes(self) -> int:
        """Memory of all kept kernels: constants as given and packed, workspaces, code, states. What several share is
        counted once, what is packed in several ways as often."""
        with self._lock:
            return self._held()

    @property
    def bytes_max(self) -> int | None:
        """Bytes that kernels may hold together; beyond, those that were not used for longest go, but for the last one.
        None, unless it is set: no bound."""
        return self._bytes_max

    @bytes_max.setter
    def bytes_max(self, nbytes: int | None) -> None:
        if nbytes is not None and (not _is_whole(nbytes) or nbytes < 0):
            raise InputError("not a number of bytes", location="bytes_max", expected=">= 0", found=repr(nbytes))
        self._bytes_max = None if nbytes is None else int(nbytes)
        with self._lock:
            self._shrink()

    @property
    def compiled(self) -> list[dict[str, int]]:
        """The sizes that there is a kernel for, those of buckets too; those used last come last."""
        with self._lock:
            return [dict(zip(self.dims, sizes, strict=True)) for sizes, _ in self._kernels]

    def at(self, **sizes: int) -> Kernel:
        """The kernel for given sizes and no others, compiled where there is none: to compile ahead, to report, explain,
        save. Calls of these sizes use it from then on, whatever buckets there are. Raises InputError, and what
        compiling raises."""
        kernel = self._at(self._checked(sizes))
        self._do_now()
        return kernel

    def prepare(self, *sizes: Mapping[str, int], wait: bool = True) -> None:
        """Compile for several choices of sizes, one after the other. Without `wait` in the background: calls go on
        meanwhile, and one that needs what is being compiled waits for it. What goes wrong there is raised by the call
        that needs it; a process that ends compiles no further. Sizes of a bucket make its kernel, others their own.
        Raises InputError, and with `wait` as `at` does."""
        chosen = [self._checked(each) for each in sizes]
        if wait:
            for each in chosen:
                self._at(each, self._bucket(each, each))
                self._do_now()
        elif chosen:
            self._submit(self._prepare, chosen)

    def _prepare(self, chosen: Sequence[Sizes]) -> None:
        """Compile the first in the background, then the others: an executor takes no more when the process ends."""
        with suppress(SuperKernelError):
            self._at(chosen[0], self._bucket(chosen[0], chosen[0]))
            self._do_now()
        if chosen[1:]:
            self._submit(self._prepare, chosen[1:])

    def _submit(self, work: Callable[..., None], *given: Any) -> bool:
        """To be done in the background, unless the process ends."""
        with self._lock:
            if self._background is None:
                self._background = ThreadPoolExecutor(1, "superkernel-prepare")
        try:
            self._background.submit(work, *given)
        except RuntimeError:
            return False
        return True

    def _do_later(self) -> None:
        """Have done in the background what is to be done later."""
        with self._lock:
            waits, self._waits_for_quiet = self._waits_for_quiet, True
        if not waits:
            self._submit(self._do_when_quiet)

    def _do_when_quiet(self) -> None:
        """What is to be done later, one after the other: new sizes and other background work may come in between."""
        try:
            if len(self._later) <= LATER_MAX:
                sleep(self._not_quiet_s())
            if self._not_quiet_s() == 0 or len(self._later) > LATER_MAX:
                self._do_next()
        finally:
            self._waits_for_quiet = bool(self._later)
            if self._waits_for_quiet and not self._submit(self._do_when_quiet):
                self._do_now()

    def _not_quiet_s(self) -> float:
        """How long it is at least until no new sizes are expected soon."""
        if self._making.locked():
            return QUIET_S
        return max(0.0, self._made_s + QUIET_S - monotonic())

    def _go_on_resting(self) -> None:
        """Once more, a kernel was made: the garbage collector rests until there is time, but not for ever."""
        self._rested += 1
        if self._rest is None:
            self._rest, self._rested = Rest(), 1
            self._later.append(self._end_rest)
        elif self._rested > RESTED_MAX:
            self._end_rest()

    def _end_rest(self) -> None:
        rest, self._rest = self._rest, None
        if rest is not None:
            rest.end()

    def _do_now(self) -> None:
        """Put the plans that have been made into the cache; end rests."""
        while self._later:
            self._do_next()

    def _do_next(self) -> None:
        try:
            work = self._later.popleft()
        except IndexError:  # another thread was sooner
            return
        with paused():
            work()

    def _checked(self, sizes: Mapping[str, int]) -> Sizes:
        """Sizes in the dimensions' order. Raises InputError."""
        if not isinstance(sizes, Mapping):
            raise InputError("sizes are not a mapping", expected="{name: size}", found=type(sizes).__name__)
        wrong = [Violation(f"no dimension {n!r}", expected=", ".join(self.dims)) for n in sizes if n not in self.dims]
        chosen = {**{name: low for name, (low, high) in self.dims.items() if low == high}, **sizes}
        for name, (low, high) in self.dims.items():
            size = chosen.get(name)
            if size is None or not _is_whole(size) or not low <= size <= high:
                wrong.append(Violation("no such size", f"dimension {name!r}", f"{low} to {high}", repr(size)))
        raise_all(InputError, wrong)
        return tuple(int(chosen[name]) for name in self.dims)

    @property
    def states(self) -> Mapping[str, Array]:
        """The states that all kernels share: live arrays, writable between runs. They come into being with the first
        kernel (`at`); before it, and where the graph has none, this is empty."""
        return NamedArrays(self._states)

    def reset_states(self) -> None:
        """Put every state back to its initial contents."""
        for name, array in self._states.items():
            array[...] = self._reset[name]

    def __call__(self, *args: Any, **named: Any) -> Any:
        out = None if "out" in self.inputs else named.pop("out", None)
        shapes = None if named else _shapes(args)
        sizes = self._met.get(shapes)
        if sizes is None:
            bound = bind_arguments(self.inputs, args, named)
            args = tuple([bound[name] for name in self.inputs])
            sizes = self._sizes(bound)
            if shapes is not None:
                self._met = {**self._met, shapes: sizes} if len(self._met) < MET_MAX else {shapes: sizes}
        bucket = None if self._buckets is None or self._found(sizes) else self._bucket(sizes)
        try:
            if bucket is not None:
                fit, kernel = bucket.fit(sizes), self._at(bucket.sizes, bucket)
                given = dict(zip(self.inputs, args, strict=True))
                with self._turn:
                    if out is not None:
                        return put_results(bucket.run(kernel, fit, sizes, given).outputs, out)
                    return bucket.call(kernel, fit, sizes, given)
            kernel = self._at(sizes)
            with self._turn:
                return kernel(*args) if out is None else kernel(*args, out=out)
        finally:
            if self._later:
                self._do_later()

    def run(self, inputs: Mapping[str, Any] | Sequence[Any] | None = None, **named: Any) -> RunResult[RunReport]:
        """Run once and return outputs by name: `Kernel.run` of the kernel for the inputs' shapes, or of their bucket.
        Inputs: a mapping, a list, or by keyword."""
        bound = inputs_listed(self.inputs, inputs_given(inputs, named))
        sizes = self._sizes(bound)
        bucket = None if self._buckets is None or self._found(sizes) else self._bucket(sizes)
        try:
            if bucket is not None:
                fit, kernel = bucket.fit(sizes), self._at(bucket.sizes, bucket)
                with self._turn:
                    return bucket.run(kernel, fit, sizes, bound)
            kernel = self._at(sizes)
            with self._turn:
                return kernel.run(bound)
        finally:
            if self._later:
                self._do_later()

    def __reduce__(self) -> NoReturn:
        what = "a kernel of changing sizes cannot be copied or pickled"
        raise UnsupportedError(what, hint="make another one of the same source: they share their constants")

    def __repr__(self) -> str:
        ranges = ", ".join(f"{name} {low} to {high}" for name, (low, high) in self.dims.items())
        return f"<DynamicKernel: {ranges}; {len(self._kernels)} compiled>"

    def _sizes(self, bound: Mapping[str, Any]) -> Sizes:
        """What the shapes of inputs tell. Raises InputError."""
        inputs = self.inputs
        shapes = {name: shape_of(value, inputs[name], f"input {name!r}") for name, value in bound.items()}
        sizes = sizes_of(self._source, shapes)
        return tuple(sizes[name] for name in self.dims)

    def _bucket(self, sizes: Sizes, of: Sizes | None = None) -> Bucket | None:
        """The bucket for calls of these sizes, where there is one and it has the sizes `of`."""
        if self._buckets is None:
            return None
        held = self._buckets.holding(sizes)
        return None if held is None or of not in (None, held) else self._buckets.at(held, sizes)

    def _at(self, sizes: Sizes, bucket: Bucket | None = None) -> Kernel:
        """The kernel for these sizes, or, of the same ones, that of a bucket."""
        key = sizes, bucket is not None and bucket.is_guarded
        found = self._found(*key)
        if found is not None:
            return found
        with self._making:
            found = self._found(*key)
            if found is not None:
                return found
            with paused():
                graph = self._source.load(dict(zip(self.dims, sizes, strict=True))) if bucket is None else bucket.graph
                self._check_states(graph)
                kernel = self._make(graph, self._states, self._later.append)
                self._go_on_resting()
            if self._initial is None:
                self._initial, self._reset = graph.states, kernel.initial_states
                self._states.update(kernel.states)
                self._turn = RLock() if self._states else nullcontext()
            with self._lock:
                self._kernels[key] = kernel
                self._shrink()
            self._made_s = monotonic()
            return kernel

    def _found(self, sizes: Sizes, guarded: bool = False) -> Kernel | None:
        with self._lock:
            kernel = self._kernels.get((sizes, guarded))
            if kernel is not None:
                self._kernels.move_to_end((sizes, guarded))
            return kernel

    def _check_states(self, graph: Graph) -> None:
        """Raises UnsupportedError where the graph's states are not those that the other kernels share."""
        if self._initial is None:
            return
        wrong = []
        for name in {**self._initial, **graph.states}:
            one, other = _type(self._initial.get(name)), _type(graph.states.get(name))
            if one != other:
                what = "a state whose type depends on the sizes"
                wrong.append(Violation(what, f"state {name!r}", one, other, "give it the largest extents"))
            elif not same_contents(self._initial[name], graph.states[name]):
                wrong.append(Violation("a state that begins with contents that depend on the sizes", f"state {name!r}"))
        raise_all(UnsupportedError, wrong)

    def _shrink(self) -> None:
        while len(self._kernels) > self._kernels_max or (
            self._bytes_max is not None and len(self._kernels) > 1 and self._held() > self._bytes_max
        ):
            (sizes, _), _ = self._kernels.popitem(last=False)
            if self._buckets is not None:
                self._buckets.forget(sizes)

    def _held(self) -> int:
        held: dict[Hashable, int] = owners(self._states.values())
        for kernel in self._kernels.values():
            held |= kernel.held()
        return sum(held.values()) + (0 if self._buckets is None else self._buckets.nbytes)


def _is_whole(value: Any) -> bool:
    """Python's and NumPy's integers, but no truth values."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _shapes(values: Sequence[Any]) -> tuple[tuple[int, ...], ...] | None:
    """The shapes of arrays; None where not all are."""
    try:
        shapes = [shape for value in values if isinstance(shape := getattr(value, "shape", None), tuple)]
        hash(found := tuple(shapes))
        return found if len(found) == len(values) else None
    except Exception:  # of a foreign object's own code: what it is, is said by who reads it
        return None


def _type(array: Array | None) -> str:
    return "no such state" if array is None else f"{array.dtype}{list(array.shape)}"
