"""What a user can ask of a compilation. Frozen and hashable: part of what identifies a compiled kernel.

All that is known of an option stands in its declaration here; `option.py` says what a declaration is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from superkernel.core.errors import InputError, Violation, raise_all
from superkernel.core.option import ACCELERATOR, HOST, TARGETS, declared_by, did_you_mean, option

SIMULATION_LIMIT_S: Final = 600.0
"""How long a run on the simulator may take unless told otherwise."""


@dataclass(frozen=True, repr=False)
class Options:
    """Each optimisation can be switched off; the defaults are what one wants for speed. Options that are equal print
    equally. docs/options.md says more of each. Raises InputError with all that is wrong."""

    # fmt: off
    sync: Literal["minimal", "type-range", "full"] = option(
        "minimal", "program",
        "Where cores wait for one another. `minimal` waits only where bytes conflict; `full` puts a barrier of all "
        "cores between any two sub-operators; `type-range` one of the cores that the types of the two kernels name.",
        refused={HOST: {"type-range": "the host has one type of cores"}},
        off="full", steps={"type-range sync": "type-range", "minimal sync": "minimal"},
    )
    early_start: bool = option(
        True, "program",
        "Start a sub-operator before what it waits for is done. On the host: prefetch weights while waiting (see "
        "`weight_prefetch`). On an accelerator: wait ahead of the first access of an operand, signal behind the last "
        "store. Off: wait first, prefetch never, signal behind a drain.",
        off=False, steps={"early start": True},
    )
    preload: Literal["auto", "none", "per-func", "max"] = option(
        "auto", "program",
        "Prefetch code into the instruction cache. Stubs ahead of each kernel call: `none`; `per-func`, the whole "
        "next kernel; `max`, as far ahead as fits beside what is needed sooner; `auto`, what pays.",
        idle={HOST: "a CPU fetches code by itself"}, off="none", steps={"preload": "auto"},
    )
    split: int | Literal["auto"] = option(
        "auto", "program",
        "Copies of the code at different addresses. They are divided among the cores in turn, so that fewer cores ask "
        "for the same line at once; `auto`: as many as pay.",
        low=1, high=64, tried=(1, 3),
        idle={HOST: "cores have their own caches of code, all of it"}, off=1, steps={"split": "auto"},
    )
    weight_prefetch: Literal["auto", "none", "max"] = option(
        "auto", "program",
        "Fetch constants ahead of their use. `none`; `auto`, what pays; `max`, all that there is time and room for. "
        "On an accelerator SDMA tasks bring them into L2 beside other work "
        "([weights](accelerator.md#weight-prefetch)). On the host a worker that waits fetches those of its next task "
        "into its cache; `max` is `auto`.",
        off="none", steps={"weight prefetch": "auto"},
    )
    tiling: Literal["sunk", "host"] = option(
        "sunk", "schedule",
        "Who computes tilings that depend on data. `sunk`: an aicpu hart beside the cores; `host`: NumPy between two "
        "launches ([tilings](accelerator.md#tilings-that-depend-on-data)).",
        idle={HOST: "a worker computes them"}, off="host", steps={"tiling sinking": "sunk"},
    )
    streams: Literal["auto", "off"] = option(
        "auto", "schedule",
        "Independent branches side by side. `auto`: or in turn, whichever is faster by estimate; `off`: in the order "
        "of the graph ([streams](accelerator.md#streams)). A stream that nodes name is an order of issue in both. "
        "True stands for `auto`, False for `off`.",
        idle={HOST: "sub-operators run in the order of the graph"}, off="off", steps={"streams": "auto"},
    )
    locality: Literal["auto", "off"] = option(
        "auto", "schedule",
        "Let groups of cores compute what their own cores read. `auto`: each group for itself where several read the "
        "same, where that is faster by estimate; `off`: all work is cut evenly for all cores "
        "([locality](accelerator.md#locality)). Bits are the same. True stands for `auto`, False for `off`.",
        idle={HOST: "cores have no groups"}, off="off", steps={"locality": "auto"},
    )
    decide: Literal["estimate", "simulate"] = option(
        "estimate", "schedule",
        "How what may gain or lose is decided. `estimate`: by cost models; `simulate`: programs without each of "
        "`locality`, `streams`, `weight_prefetch`, `preload` and `split`, where these are left to the compiler, are "
        "simulated too, and what is fastest stays: six compilations instead of one, kept in the cache "
        "([decisions](accelerator.md#decisions)). The kernel's options say what was decided.",
        idle={HOST: "nothing is simulated; `superkernel tune` measures"},
    )
    launches: Literal["auto", "fused", "single"] = option(
        "auto", "program",
        "How many sub-operators one launch runs. `fused`: those of a scope ([scopes](accelerator.md#scopes); without "
        "scopes: all of them); `single`: one; `auto`: what is predicted to be faster.",
        idle={HOST: "there is one entry, always"},
    )
    func_align: int = option(
        0, "program", "Alignment of functions in bytes. 0 is a line of the instruction cache.",
        high=1 << 16, power_of_two=True, tried=(0, 256), idle={HOST: "functions lie as LLVM aligns them"},
    )
    precision: Literal["auto", "f32", "tf32-like", "f16", "bf16", "int8"] = option(
        "auto", "graph",
        "What f32 values between inputs and outputs may be computed in. `auto` is f32 on the host, but in products "
        "that a model allows less for (codes of GGUF files, `MatMulNBits` of accuracy level 4), and f16 on an "
        "accelerator, whose cube multiplies f16 sixteen times as fast; sums are f32 always. On the host values stay "
        "f32, and `bf16`, `int8` and `tf32-like` (f32 in two bf16 parts) say what products with constant weights "
        "(`bf16`: and attention) may be computed in where that is faster ([numerics](numerics.md)); where none is, "
        "`options_without_effect` says so.",
        refused={
            HOST: {"f16": "not on the host"},
            ACCELERATOR: dict.fromkeys(("tf32-like", "int8"), "not on an accelerator"),
        },
    )
    fuse: bool = option(True, "graph", "Join pointwise chains, prologues, epilogues. Off: one sub-operator per node.")
    simplify: bool = option(True, "graph", "Fold constants, recognise patterns. Off: the graph as given.")
    cost_placement: bool = option(
        True, "schedule",
        "Decide the number of cores per sub-operator by cost. Off: every sub-operator on all cores.",
        idle={ACCELERATOR: "sub-operators are always placed by estimate"},
        off=False, steps={"cost placement": True},
    )
    fallback: Literal["warn", "allow", "forbid"] = option(
        "warn", "graph",
        "What becomes of an operator without a kernel. `warn`: NumPy, with a warning; `allow`: NumPy; `forbid`: an "
        "error.",
    )
    objective: Literal["latency", "size", "memory"] = option(
        "latency", "graph", "What the choice of kernels optimises. `size` is of code, `memory` of workspaces.",
    )
    determinism: Literal["none", "run-to-run", "bitwise"] = option(
        "none", "graph",
        "What two runs on equal inputs must agree in. `run-to-run`: equal bits on one machine with as many cores; "
        "`bitwise`: equal bits for any number of cores. Every kernel says what it promises; NumPy, whose sums go by "
        "the machine's libraries, promises no more than `run-to-run`.",
    )
    tolerance: float | Literal["any"] = option(
        "any", "graph",
        "Relative error that kernels may show. Those whose bound on an output's element type is above it are not "
        "taken ([numerics](numerics.md)); a ToleranceError says which came nearest where none is left.",
        high=1, tried=(0.01,),
    )
    max_workspace_bytes: int | Literal["any"] = option(
        "any", "graph",
        "Working memory that a kernel may use on one core while it runs. What the kernel of a sub-operator uses "
        "beside its operands; kernels are cut so that they keep to it, and a WorkspaceError says what the nearest "
        "would need where none can. Constants packed for a kernel do not count.",
        high=1e12, unit="bytes", tried=(1 << 30,),
    )
    deadline_us: float | Literal["any"] = option(
        "any", "graph",
        "Time that a run may take, by estimate. The plan's own, of kernels and synchronisation on the cores that it "
        "has; a DeadlineError names the estimate and what takes longest. `watchdog_ms` is about runs themselves.",
        high=1e12, unit="microseconds", tried=(1e11,),
    )
    allow: tuple[str, ...] = option(
        (), "graph",
        "Kernels among which to choose. Shell-like patterns of [kernel ids](registry.md); none: all. Every "
        "sub-operator needs one, copies and NumPy (`*.reference`) are kernels like any other.",
    )
    deny: tuple[str, ...] = option(
        (), "graph", "Kernels that must not be taken. Shell-like patterns of [kernel ids](registry.md)."
    )
    pin: tuple[str, ...] = option(
        (), "graph",
        "Kernels that must be taken where they can be. Shell-like patterns of [kernel ids](registry.md); "
        "`options_without_effect` names pins that took no kernel, and why.",
    )
    manifest: tuple[str, ...] = option(
        (), "graph",
        "Hold the kernel to those that manifests list. Files of `superkernel kernels dump`, merged where there are "
        "several: only the kernels listed and the generic ones behind them are taken ([selective "
        "builds](registry.md#selective-builds)); a ManifestError names the key of what is not listed, whatever "
        "`fallback` says.",
        entry="file",
    )
    scopes: tuple[str, ...] = option(
        (), "graph",
        "Put nodes into scopes by name. Entries `scope:pattern`, or a mapping scope -> patterns: nodes whose names "
        "match a pattern, or begin with it, belong to the scope ([scopes](accelerator.md#scopes)). The first that "
        "takes a node decides, and each must take one of its own (checked on the host, too).",
        entry="scope:pattern", idle={HOST: "there is one entry, always"},
    )
    strict_scope: Literal["split", "abort"] = option(
        "split", "program",
        "What an operator without a kernel does to its scope. It splits it, or is refused with an error that names "
        "operator and scope.",
        idle={HOST: "a fallback does not split the kernel"},
    )
    watchdog_ms: float = option(
        0.0, "run",
        "End a launch that takes longer. A WatchdogError says which core waits for whom, for what, and where the chain "
        "of waits ends; so does the error of kind `time_limit` of a run on the simulator. 0: no watchdog on the host, "
        f"{SIMULATION_LIMIT_S:g} s for a run on the simulator, 120 s for a launch on the emulator.",
        high=1e12,  # about 30 years; the runtime counts ns in 64 bits
        unit="milliseconds",
    )
    simulation: Literal["both", "timing", "functional"] = option(
        "both", "run",
        "What a run on the simulator computes. `both`: outputs and cycles, with races checked; `timing`: cycles alone: "
        "reports, times and traces, the same as with data wherever they do not depend on it, and they say where they "
        "may; calls and `run` are errors; `functional`: outputs alone, the same bits; reports, times and traces are "
        "errors ([modes](simulator.md#modes)).",
        idle={HOST: "nothing is simulated"},
    )
    cache: bool = option(
        True, "run", "Keep compiled code and plans on disk. [SK_CACHE_DIR](command-line.md#environment) says where."
    )
    dump: tuple[str, ...] = option(
        (), "graph",
        "Values that a run hands out beside the outputs. Nodes, values, sub-operators or patterns of them: "
        "`superkernel run` prints and writes them, in Python they are `RunResult.dumps`.",
    )
    debug: Literal["off", "races"] = option(
        "off", "run",
        "Watch runs for faults of SuperKernel's own. `races`: each load and store of each run is held to what the "
        "kernels declare, to the waits and sets that are executed, and to what was written before; a RaceError names "
        "sub-operator, element and the wait that is missing. Runs are slow; reports and times are of the plain code.",
        idle={ACCELERATOR: "the simulator finds races by itself, always"},
    )
    debug_sync_all: bool = option(
        False, "program",
        "Synchronise everything, to look for faults. A barrier of all cores behind a drain between any two "
        "sub-operators, no early start, whatever `sync` and `early_start` say: what is wrong with it is no fault of "
        "synchronisation.",
    )
    # fmt: on

    def __post_init__(self) -> None:
        wrong: list[Violation] = []
        for name, each in OPTIONS.items():
            object.__setattr__(self, name, each.check(getattr(self, name), wrong))
        raise_all(InputError, wrong)

    @property
    def sync_level(self) -> str:
        """The level of synchronisation in force."""
        return "full" if self.debug_sync_all else self.sync

    @property
    def starts_early(self) -> bool:
        """Whether Early-Start is in force."""
        return self.early_start and not self.debug_sync_all

    @property
    def weight_strength(self) -> str:
        """The weight prefetch in force: none where everything is to be in order."""
        return "none" if self.debug_sync_all else self.weight_prefetch

    def given(self) -> dict[str, Any]:
        """What differs from the defaults, by name."""
        values = {name: getattr(self, name) for name in OPTIONS}
        return {name: value for name, value in values.items() if value != OPTIONS[name].default}

    def __repr__(self) -> str:
        """What differs from the defaults."""
        return f"Options({', '.join(f'{name}={value!r}' for name, value in self.given().items())})"

    def refused(self, target: str) -> list[Violation]:
        """The values that cannot be had on a kind of target: there they would change results or promises."""
        found: list[Violation] = []
        for name, value in self.given().items():
            each = OPTIONS[name]
            if why := each.refused.get(target, {}).get(value):
                found.append(Violation(why, each.location, ", ".join(each.choices_on(target)), repr(value)))
        return found

    def without_effect(self, target: str) -> tuple[str, ...]:
        """The values given that change nothing on a kind of target: "name=value ...: why", in alphabetical order."""
        return tuple(
            f"{name}={value!r} has no effect on {TARGETS.get(target, target)}: {why}"
            for name, value in sorted(self.given().items())
            if (why := OPTIONS[name].idle.get(target))
        )

    @staticmethod
    def of(given: Options | Mapping[str, Any] | None) -> Options:
        """Options of Options, a mapping of names, or None (defaults). Raises InputError with all that is wrong."""
        if isinstance(given, Options):
            return given
        if given is None:
            return Options()
        if not isinstance(given, Mapping):
            raise InputError(
                "options are not Options", expected="superkernel.Options or a mapping", found=type(given).__name__
            )
        wrong: list[Violation] = []
        if unknown := [str(name) for name in given if name not in OPTIONS]:
            hint = did_you_mean(unknown, OPTIONS)
            wrong.append(Violation("unknown option", "", ", ".join(OPTIONS), ", ".join(unknown), hint))
        known = {name: OPTIONS[name].check(value, wrong) for name, value in given.items() if name in OPTIONS}
        raise_all(InputError, wrong)
        return Options(**known)


OPTIONS: Final = declared_by(Options)
"""All options by name, in the order of their declarations."""


def parse_options(words: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Names and words of the command line as a mapping for `Options.of`: patterns of several words of a name add up."""
    values: dict[str, Any] = {}
    for name, word in words:
        value = OPTIONS[name].parse(word) if name in OPTIONS else word
        values[name] = (*values.get(name, ()), *value) if isinstance(value, tuple) else value
    return values


Options.__doc__ = "\n".join([f"{Options.__doc__}\n", *(f"    {o.name}: {o.effect}" for o in OPTIONS.values())])
