"""A compiled kernel: what `superkernel.compile` returns. `Kernel` checks what it is given and is the same for all
targets; each backend has a kind of its own that adds how it is run, measured, explained and saved.

Callable with arrays by position or name; one launch per call. Holds its plan, its certificate and the reasons behind
every decision. Inputs are never written. Several threads may call the same kernel: launches take turns.

Calls whose arguments are arrays of exactly the declared types never come to this file: the base class, in C++, checks
them, makes the outputs and launches. All others come to `_call_checked`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from superkernel import _core
from superkernel.core.arrays import NamedArrays
from superkernel.core.collection import paused
from superkernel.core.dtypes import DType
from superkernel.core.errors import InputError, MachineError, UnsupportedError, Violation, raise_all
from superkernel.core.tensor import TensorType
from superkernel.display import notebook
from superkernel.runtime.buffers import check_aliasing, outputs_in
from superkernel.runtime.inputs import as_inputs, bind_arguments, inputs_given, inputs_listed, results_like
from superkernel.runtime.result import RunReport, RunResult

if TYPE_CHECKING:
    from superkernel.compilation.compiled import AnyCompilation, Executable, Proof
    from superkernel.display.tracing import Trace
    from superkernel.registry.manifest import Manifest
    from superkernel.runtime.decisions import Decisions

Array = NDArray[Any]
Io = Sequence[Array]
"""The table of a launch: inputs, outputs, states."""
Reconstructor = tuple[Callable[..., "AnyCompilation"], tuple[Any, ...]]

REFERENCE = "reference"
ROUNDS_MAX = 10_000_000  # what a measurement keeps is 16 bytes per round
DELAYS_MAX = 2**32 - 1  # the simulator's largest seed


class Kernel(_core.DirectCall):
    """See the module docstring. Made by `superkernel.compile` and `superkernel.load`, not directly.

    Call: `kernel(*arrays, **named)` runs once. Arrays by position or by name, of exactly the declared dtype and shape.
    Returns the output array, or a tuple of them in graph order. Raises InputError on anything else, WatchdogError where
    the watchdog option fires."""

    def __init__(self, compiled: AnyCompilation, states: Mapping[str, Array] | None = None) -> None:
        """`states`: arrays to keep states in, by name, as kernels of one model share them: of the state's type, dense,
        writeable. They are used as they are; what stands in them stays. States that are not named there are the
        kernel's own. Kernels that share a state are not to run at the same time. Raises InputError."""
        self._compiled = compiled
        graph = compiled.graph
        self._input_types: dict[str, TensorType] = dict(graph.inputs)
        types = dict(zip(compiled.output_names, (graph.types[o] for o in graph.outputs), strict=True))
        source = compiled.source
        self._returned = len(source.returned)  # behind them: counts of elements, and what option `dump` adds
        self._output_types = dict(list(types.items())[: self._returned])
        self._states = _state_arrays(graph.states, states or {})
        self._shown_states = NamedArrays(self._states)
        self._makers = tuple((t.shape, t.dtype.numpy) for t in types.values())
        slots = {value: slot for slot, value in enumerate(source.outputs)}
        named = [(slot, row) for slot, value in enumerate(source.returned) for row in source.extents.get(value, ())]
        self._counted = [(slot, axis, slots[count]) for slot, (axis, count) in named]
        self._executable: Executable = compiled.executable

    # What each kind does in its own way -------------------------------------------------------------------------------

    def _launch(self, io: Io) -> RunReport | None:
        """One launch; outputs and states are written in place. The report where a launch makes one anyway."""
        self._executable.run(io)
        return None

    def _launch_late(self, io: Io, seed: int) -> RunReport | None:
        """As `_launch`, with delays: see `run`."""
        raise self._unsupported("delays")

    def _measure(self, io: Io, rounds: int, warm: bool) -> RunReport:
        """See `report`; states change."""
        raise self._unsupported("reports")

    def _times(self, io: Io, rounds: int) -> NDArray[np.int64]:
        """See `time`; states change."""
        raise self._unsupported("measured times")

    def _traced(self, io: Io) -> Trace:
        """See `trace`; states change."""
        raise self._unsupported("traces")

    def _run_on(self, executor: str, arrays: Mapping[str, Array], delays: int) -> dict[str, Array]:
        """Outputs, computed by one of the further `executors`."""
        if delays:
            raise InputError("nothing can be late", location="argument 'delays'", found=f"executor {executor!r}")
        return self._reference(arrays)

    def _require_times(self) -> None:
        """Raises UnsupportedError where runs have no times, so that there are no reports."""

    def _reconstructor(self) -> Reconstructor:
        """What makes the kernel again in another process: a function of a module and its arguments."""
        raise self._unsupported("pickled kernels")

    def _unsupported(self, what: str) -> UnsupportedError:
        return UnsupportedError(f"no {what} on this kind of target", location=f"kernel {self.name!r}")

    # What it is -------------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The graph's name."""
        return self._compiled.graph.name

    @property
    def inputs(self) -> Mapping[str, TensorType]:
        """Input types by name, in call order."""
        return self._input_types

    @property
    def outputs(self) -> Mapping[str, TensorType]:
        """Output types by name, in return order; with the largest extents where they are data."""
        return self._output_types

    @property
    def states(self) -> Mapping[str, Array]:
        """The state tensors (KV caches, ...): live arrays that runs update; writable between runs. On an accelerator
        they have the type that the kernel computes with (option `precision`)."""
        return self._shown_states

    @property
    def threads(self) -> int:
        """Cores the kernel was compiled for."""
        return self._compiled.cores

    @property
    def executor(self) -> str:
        """What runs it unless told otherwise: "host", or "sim" for an accelerator."""
        return self._compiled.executor

    @property
    def plan(self) -> str:
        """The synchronisation plan as text: per core its straight line of steps."""
        return str(self._compiled.plan)

    @property
    def certificate(self) -> Proof:
        """What the independent verifier checked."""
        return self._compiled.certificate

    @property
    def initial_states(self) -> Mapping[str, Array]:
        """What the states begin as; read-only arrays."""
        return self._compiled.graph.states

    def held(self) -> dict[Hashable, int]:
        """Bytes of the memory that it keeps, states aside, by what is the same where kernels share it."""
        return self._compiled.held()

    def reset_states(self) -> None:
        """Put every state back to its initial contents."""
        for name, initial in self.initial_states.items():
            self._states[name][...] = initial

    # Running ----------------------------------------------------------------------------------------------------------

    def _call_checked(self, *args: Any, **named: Any) -> Any:
        """A call that the base class cannot do as it is: names, conversions, inputs in a state's memory, `out`,
        errors."""
        out = None if "out" in self._input_types else named.pop("out", None)
        arrays = as_inputs(self._input_types, bind_arguments(self._input_types, args, named))
        given = {name: self._unaliased(array) for name, array in arrays.items()}
        outputs = self._new_outputs() if out is None else self._outputs_in(out, given)
        self._executable.run([*given.values(), *outputs, *self._states.values()])
        if out is not None:
            return out
        results = results_like([*args, *named.values()], self._counting(outputs))
        return results[0] if self._returned == 1 else tuple(results)

    def bind(self, *args: Any, outputs: Mapping[str, Any] | None = None, **named: Any) -> Any:
        """Fix the buffers of a kernel of the host: see `HostKernel.bind`. Raises UnsupportedError on other targets."""
        raise UnsupportedError(
            "buffers can be bound on the host only", location=f"kernel {self.name!r}", found=self.executor
        )

    def _counting(self, outputs: Sequence[Array]) -> list[Array]:
        """What is returned of a launch's outputs: where extents are data, as many elements as count."""
        found = list(outputs[: self._returned])
        for slot, axis, count in self._counted:
            kept = int(outputs[count][()])
            found[slot] = np.ascontiguousarray(found[slot][(slice(None),) * axis + (slice(kept),)])
        return found

    def _require_fixed_extents(self, what: str) -> None:
        """Raises UnsupportedError where extents of results are data."""
        if self._counted:
            named = ", ".join(sorted(self._compiled.source.extents))
            hint = "take the results that calls return"
            what = f"no {what} for results whose extents are data"
            raise UnsupportedError(what, location=f"kernel {self.name!r}", found=named, hint=hint)

    def _outputs_in(self, out: Any, given: Mapping[str, Array]) -> list[Array]:
        """The memory of `out` and of what option `dump` adds. Raises InputError, UnsupportedError."""
        self._require_fixed_extents("memory of one's own")
        found = outputs_in(self._output_types, out)
        check_aliasing(given, found, self._states)
        return [*found.values(), *(np.empty(shape, dtype) for shape, dtype in self._makers[self._returned :])]

    def _unaliased(self, array: Array) -> Array:
        """The input, copied where it lies in a state's memory, which the run may write before it reads the input."""
        return array.copy() if any(np.may_share_memory(array, s) for s in self._states.values()) else array

    def _new_outputs(self) -> list[Array]:
        try:
            return [np.empty(shape, dtype) for shape, dtype in self._makers]
        except MemoryError as error:
            need = sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in self._makers)
            raise MachineError("not enough memory for the outputs", expected=f"{need} bytes") from error

    def run(
        self,
        inputs: Mapping[str, Any] | Sequence[Any] | None = None,
        *,
        executor: str | None = None,
        profile: bool = False,
        delays: int = 0,
        **named: Any,
    ) -> RunResult[RunReport]:
        """Run once and return outputs by name. Inputs: a mapping, a list, or by keyword (not what an argument here is
        called). `executor`: the kernel's own ("host", or "sim" for an accelerator; default), "qemu" (an accelerator's
        program on an emulator of its harts: outputs only) or "reference" (the NumPy reference; states as the kernel's).
        `profile=True` adds a report of this kernel's synchronisation; a run on the simulator has one anyway, but for
        one of the function only, which has no cycles (option `simulation`).
        `delays`: a seed, 0 to 2^32 - 1; but for 0, cores, engines and signals are late where the seed says so, which
        changes no bit of what a right program computes (docs/reliability.md)."""
        name = executor or self.executor
        if name not in self.executors:
            raise UnsupportedError(
                "unknown executor",
                location=f"kernel {self.name!r} for {self._compiled.summary()['target']}",
                expected=", ".join(self.executors),
                found=repr(executor),
            )
        seed = checked_count("delays", delays, 0, DELAYS_MAX)
        if profile:
            self._require_times()
        arrays = self._arrays(inputs_given(inputs, named))
        if name != self.executor:
            return RunResult(self._run_on(name, arrays, seed), self._profile(arrays, rounds=0) if profile else None)
        results = self._new_outputs()
        io = [*map(self._unaliased, arrays.values()), *results, *self._states.values()]
        report = self._launch_late(io, seed) if seed else self._launch(io)
        outputs = dict(zip(self._output_types, self._counting(results), strict=True))
        dumps = {name: results[slot] for name, slot in self._compiled.dumps.items()}
        more = self._profile(arrays, rounds=0) if profile and report is None else report
        return RunResult(outputs, more, dumps)

    @property
    def executors(self) -> tuple[str, ...]:
        """What can run it: the first is used unless told otherwise."""
        return self.executor, REFERENCE

    def emulate(self, inputs: Mapping[str, Any] | Sequence[Any] | None = None, *args: Any, **named: Any) -> Any:
        """Run an accelerator's program on an emulator: see `AicoreKernel.emulate`. Raises UnsupportedError on other
        targets."""
        raise UnsupportedError("only an accelerator's program can be emulated", location=f"kernel {self.name!r}")

    def _arrays(self, inputs: Mapping[str, Any] | Sequence[Any] | None) -> dict[str, Array]:
        return as_inputs(self._input_types, inputs_listed(self._input_types, inputs))

    def _reference(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        from superkernel.reference import evaluate

        graph = self._compiled.source
        states = {name: array.astype(graph.types[name].dtype.numpy) for name, array in self._states.items()}
        results = evaluate(graph, arrays, states=states)
        for state, contents in results.states.items():
            self._states[state][...] = contents
        return {name: results[value] for name, value in zip(self._output_types, graph.returned, strict=True)}

    # Understanding ----------------------------------------------------------------------------------------------------

    def report(
        self,
        inputs: Mapping[str, Any] | Sequence[Any] | None = None,
        *,
        rounds: int = 100,
        warm: bool = False,
        **named: Any,
    ) -> RunReport:
        """Where the time goes and fused against one by one: on the host medians of profiled runs and `rounds`
        alternating pairs, on the simulator one run of each. States are put back afterwards. Inputs as for `run`;
        without any, random ones of seed 0. `warm`: on the simulator the second of two runs, with L2 as the first one
        left it. Raises UnsupportedError with `warm` on the host, whose runs are warm anyway."""
        self._require_times()
        return self._profile(self._arrays_or_random(inputs, named), checked_count("rounds", rounds, 0), warm)

    def trace(self, inputs: Mapping[str, Any] | Sequence[Any] | None = None, **named: Any) -> Trace:
        """One run as a timeline: what each core did when, on an accelerator each engine of it. `save` it as .html for a
        browser or as .json for Perfetto. On the host a warm launch, on the simulator a cold one; states are put back
        afterwards. Inputs as for `run`; without any, random ones of seed 0."""
        self._require_times()
        arrays = self._arrays_or_random(inputs, named)
        with self._kept_states():
            return self._traced(self._io(list(arrays.values())))

    def critical(self, inputs: Mapping[str, Any] | Sequence[Any] | None = None, **named: Any) -> Any:
        """What the time of an accelerator's run consists of: see `AicoreKernel.critical`. Raises UnsupportedError on
        other targets."""
        hint = "without it `report` says what synchronisation costs here, and `trace` shows who waits for whom"
        where = f"kernel {self.name!r}"
        raise UnsupportedError("only an accelerator's runs have a critical path", location=where, hint=hint)

    def time(
        self, inputs: Mapping[str, Any] | Sequence[Any] | None = None, *, rounds: int = 100, **named: Any
    ) -> NDArray[np.int64]:
        """ns of each of `rounds` launches back to back, without Python in between; simulated ns, all the same, on an
        accelerator. States are put back afterwards."""
        count = checked_count("rounds", rounds, 1)
        self._require_times()
        arrays = self._arrays_or_random(inputs, named)
        with self._kept_states():
            return self._times(self._io(list(arrays.values())), count)

    def _arrays_or_random(
        self, inputs: Mapping[str, Any] | Sequence[Any] | None, named: Mapping[str, Any]
    ) -> dict[str, Array]:
        """The inputs given; random ones of seed 0 where there are none."""
        given = inputs_given(inputs, named)
        return self._random() if given is None else self._arrays(given)

    def _random(self) -> dict[str, Array]:
        from superkernel.reference.random_inputs import random_inputs

        return random_inputs(self._input_types, 0)

    def _io(self, arrays: Sequence[Array]) -> list[Array]:
        """The io table of a launch whose outputs nobody looks at."""
        return [*map(self._unaliased, arrays), *self._new_outputs(), *self._states.values()]

    @contextmanager
    def _kept_states(self) -> Iterator[None]:
        kept = {name: array.copy() for name, array in self._states.items()}
        try:
            yield
        finally:
            for name, array in kept.items():
                self._states[name][...] = array

    def _profile(self, arrays: Mapping[str, Array], rounds: int, warm: bool = False) -> RunReport:
        with self._kept_states():
            return self._measure(self._io(list(arrays.values())), rounds, warm)

    def explain(self, node: str | int) -> Decisions:
        """Everything decided about the sub-operator that computes a node (or has that index): kernel choice with
        rejected candidates, what was joined and why, tiling and placement, and for each wait the form, the reason and
        the witness conflict."""
        raise self._unsupported("explanations")

    def summary(self) -> dict[str, Any]:
        """Counts and sizes, plain data."""
        return self._compiled.summary()

    def stage_text(self, stage: str) -> str:
        """The text form of a stage: graph, simplified, subops, schedule, plan, certificate. Raises InputError on
        another name."""
        return self._compiled.stage_text(stage)

    def manifest(self) -> Manifest:
        """Which kernels the model needs (see docs/registry.md)."""
        return self._compiled.manifest()

    def part_manifests(self) -> dict[str, Manifest]:
        """The same for each part of a model with scopes, by scope; "" is what lies in none."""
        return self._compiled.part_manifests()

    def function_bytes(self) -> dict[str, int]:
        """Bytes of code of each kernel function, by symbol."""
        return dict(self._compiled.function_bytes)

    def commands(self) -> dict[str, frozenset[str]]:
        """The engine commands that each kernel function issues, by its symbol; of an accelerator. Raises
        UnsupportedError."""
        raise self._unsupported("engine commands")

    def firmware_bytes(self, commands: frozenset[str] | None = None) -> int:
        """Bytes of code of the emulator's firmware with some engine commands (None: all). Raises UnsupportedError."""
        raise self._unsupported("firmware")

    def save(self, path: str | PathLike[str]) -> None:
        """Write graph, options and object code to one file that `superkernel.load` reads. Replaces the file
        atomically."""
        raise self._unsupported("saved kernels")

    def __copy__(self) -> Self:
        """The same code and constants, with states of its own, as they are now."""
        return _with_states(type(self)(self._compiled), self._states)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """As `__copy__`: what copies share is never written."""
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as its graph, its states as they are now and, on the host, its object code: loaded on the same kind
        of CPU it is not compiled again."""
        return _again, (type(self), *self._reconstructor(), dict(self._states))

    def _repr_html_(self) -> str:
        """For notebooks: what it takes and returns, what became of the graph, and the plan to unfold."""
        states = {name: TensorType(DType.of(array.dtype), array.shape) for name, array in self._states.items()}
        kinds = {"input": self.inputs, "output": self.outputs, "state": states}
        rows = [(kind, name, str(t)) for kind, types in kinds.items() for name, t in types.items()]
        found = self.summary()
        counts = (
            f"{found['nodes']} nodes in {found['sub_operators']} sub-operators; {found['constant_bytes']:,} bytes of "
            f"constants, {found['code_bytes']:,} of code; compiled in {sum(found['stage_ms'].values()):,.0f} ms"
        )
        return notebook.shown(
            f"kernel {self.name!r} for {self._place()}",
            notebook.table(("", "name", "type"), rows),
            notebook.lines([counts, str(self.certificate)]),
            notebook.folded("plan", self.plan),
        )

    def _place(self) -> str:
        """What it runs on."""
        return f"{self._compiled.summary()['target']}, {self.threads} {self._compiled.cores_are}"

    def __repr__(self) -> str:
        ins = ", ".join(f"{n}: {t}" for n, t in self._input_types.items())
        outs = ", ".join(f"{n}: {t}" for n, t in self._output_types.items())
        return f"<superkernel.Kernel {self.name!r} ({ins}) -> ({outs}), {self._place()}>"


AnyKernel = TypeVar("AnyKernel", bound=Kernel)


def _again(kind: type[AnyKernel], build: Callable[..., Any], arguments: tuple[Any, ...], states: Any) -> AnyKernel:
    """A kernel out of a pickle."""
    with paused():
        return _with_states(kind(build(*arguments)), states)


def _state_arrays(initial: Mapping[str, Array], given: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays of all states: those given, else new ones with their initial contents. Raises InputError."""
    wrong = [Violation(f"no state {name!r}", expected=", ".join(initial)) for name in given if name not in initial]
    for name in initial.keys() & given.keys():
        want, array = initial[name], given[name]
        if (array.dtype, array.shape) != (want.dtype, want.shape):
            expected, found = (f"{a.dtype}{list(a.shape)}" for a in (want, array))
            wrong.append(Violation("not an array of the state's type", f"state {name!r}", expected, found))
        elif not (array.flags.c_contiguous and array.flags.aligned and array.flags.writeable):
            wrong.append(Violation("not an array to keep a state in", f"state {name!r}", "dense, writeable"))
    raise_all(InputError, wrong)
    # Views: an array that owns its memory could be resized in place, under the kernel's feet.
    return {n: given[n][...] if n in given else np.array(array, order="C")[...] for n, array in initial.items()}


def _with_states(kernel: AnyKernel, contents: Mapping[str, Array]) -> AnyKernel:
    """The kernel, new, with these contents of its states."""
    for name, array in kernel._states.items():
        array[...] = contents[name]
    return kernel


def checked_count(name: str, value: Any, least: int, most: int = ROUNDS_MAX) -> int:
    """A count that somebody gave, checked."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not least <= value <= most:
        expected = f"an integer, {least} to {most}"
        raise InputError("bad count", location=f"argument {name!r}", expected=expected, found=repr(value))
    return int(value)
