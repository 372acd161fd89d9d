"""What a user can ask of a compilation. Frozen and hashable: part of what identifies a compiled kernel."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from superkernel.core.errors import InputError, Violation, raise_all

_CHOICES: dict[str, tuple[str, ...]] = {
    "preload": ("auto", "none", "per-func", "max"),
    "weight_prefetch": ("auto", "none", "max"),
    "streams": ("auto", "off"),
    "locality": ("auto", "off"),
    "sync": ("minimal", "type-range", "full"),
    "precision": ("auto", "f32", "tf32-like", "f16", "bf16", "int8"),
    "fallback": ("forbid", "warn", "allow"),
    "objective": ("latency", "size", "memory"),
    "launches": ("auto", "fused", "single"),
    "strict_scope": ("split", "abort"),
    "tiling": ("sunk", "host"),
}

_SWITCHES = {True: "auto", False: "off"}  # what a truth value means for choices that are these two

SPLIT_MAX = 64
WATCHDOG_MS_MAX = 1e12  # about 30 years; the runtime counts ns in 64 bits


@dataclass(frozen=True)
class Options:
    """Each optimisation can be switched off; the defaults are what one wants for speed. Options that are equal print
    equally.

    sync: "minimal" waits only where bytes conflict; "full" puts a barrier of all cores between any two sub-operators;
    "type-range" (accelerator) one of the cores that the types of the two kernels name.
    early_start: host: prefetch weights while waiting (see `weight_prefetch`); accelerator: wait ahead of the first
    access of an operand, signal behind the last store. Off: wait first, prefetch never, signal behind a drain.
    precision: of f32 values between inputs and outputs: "auto" is f32 on the host, f16 on the accelerator, whose cube
    multiplies f16 sixteen times as fast; sums are f32 always. On the host values stay f32, and "bf16", "int8" and
    "tf32-like" (f32 in two bf16 parts) say what products with constant weights ("bf16": and attention) may be computed
    in where that is faster (docs/numerics.md); on the accelerator "f16" and "bf16" are the choices.
    func_align: accelerator: alignment of functions in bytes, a power of two; 0 = a line of the instruction cache.
    preload: accelerator: stubs that prefetch code: "none"; "per-func", the whole next kernel; "max", as far ahead as
    fits into the instruction cache; "auto", what pays.
    split: accelerator: copies of the code at different addresses, dealt out to the cores in turn (1 to 64); "auto": as
    many as pay.
    weight_prefetch: constants ahead of their use: "none"; "auto", what pays; "max", all that there is room for.
    Accelerator: SDMA tasks bring them into L2; host: a worker that waits fetches those of its next task into its cache.
    launches: accelerator: the sub-operators of a scope (without scopes: all of them) in one launch: "fused"; each in
    its own: "single"; "auto", what is predicted to be faster. On the host there is one entry always: a launch costs
    nothing between two sub-operators.
    scopes: accelerator: entries "scope:pattern", or a mapping scope -> patterns, that put nodes into scopes by name;
    the first that takes a node decides, and each must take one of its own (checked on the host, too).
    strict_scope: accelerator: an operator without a kernel splits its scope ("split") or is refused ("abort").
    tiling: accelerator: tilings that depend on what the graph computes: "sunk", by an aicpu hart beside the cores;
    "host", between two launches. On the host a worker computes them.
    streams: independent branches side by side or in turn where that is faster by estimate ("auto"), or in the order of
    the graph ("off"). A stream that nodes name is an order of issue in both.
    locality: accelerator: let groups of cores compute what their own cores read, each for itself where several read the
    same, where that is faster by estimate ("auto"), or cut all work evenly for all cores ("off"). Bits are the same.
    For `streams` and `locality` True stands for "auto", False for "off".
    fuse: join pointwise chains, prologues and epilogues; off: one sub-operator per node.
    simplify: run the graph passes (constant folding, pattern fusion); off: the graph as given.
    cost_placement: decide the number of cores per sub-operator by cost; off: every sub-operator on all cores.
    fallback: what to do with an operator that has no kernel: "forbid" (error), "warn" (NumPy, with a warning),
    "allow" (NumPy).
    objective: what kernel selection optimises: "latency", "size" (code) or "memory" (workspace).
    deny, pin: kernel id patterns (fnmatch) that selection must not take, must take where eligible.
    watchdog_ms: a launch that takes longer raises WatchdogError naming the boundary it hangs at; 0 = no watchdog.
    cache: keep compiled objects and plans on disk.
    dump: nodes, values, sub-operators or patterns of them whose values a run hands out too (`RunResult.dumps`).
    debug_sync_all: a barrier of all cores behind a drain between any two sub-operators, no early start, whatever `sync`
    and `early_start` say: what is wrong with it is no fault of synchronisation.
    """

    sync: str = "minimal"
    early_start: bool = True
    precision: str = "auto"
    func_align: int = 0
    preload: str = "auto"
    split: int | str = "auto"
    weight_prefetch: str = "auto"
    streams: str = "auto"
    locality: str = "auto"
    fuse: bool = True
    simplify: bool = True
    cost_placement: bool = True
    fallback: str = "warn"
    launches: str = "auto"
    scopes: tuple[str, ...] = ()
    strict_scope: str = "split"
    tiling: str = "sunk"
    objective: str = "latency"
    deny: tuple[str, ...] = ()
    pin: tuple[str, ...] = ()
    watchdog_ms: float = 0.0
    cache: bool = True
    dump: tuple[str, ...] = ()
    debug_sync_all: bool = False

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

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _plain(getattr(self, field.name)))
        wrong: list[Violation] = []
        for name, choices in _CHOICES.items():
            if isinstance(getattr(self, name), bool) and set(choices) == set(_SWITCHES.values()):
                object.__setattr__(self, name, _SWITCHES[getattr(self, name)])
            value = getattr(self, name)
            if not isinstance(value, str) or value not in choices:
                wrong.append(Violation("not a legal choice", f"option {name!r}", ", ".join(choices), repr(value)))
        for field in dataclasses.fields(self):
            if field.type == "bool" and not isinstance(getattr(self, field.name), bool):
                found = repr(getattr(self, field.name))
                wrong.append(Violation("not a truth value", f"option {field.name!r}", "True or False", found))
        for name, low, high in (("func_align", 0, 1 << 16), ("split", 1, SPLIT_MAX)):
            value = getattr(self, name)
            if name == "split" and value == "auto":
                continue
            legal = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
            if not legal or (name == "func_align" and (value == 1 or value & (value - 1))):
                expected = "0 or a power of two, 2 to 65536" if name == "func_align" else f"{low} to {high}, or 'auto'"
                wrong.append(Violation("not a legal number", f"option {name!r}", expected, repr(value)))
        time = self.watchdog_ms
        if isinstance(time, bool) or not isinstance(time, (int, float)) or not 0 <= time <= WATCHDOG_MS_MAX:
            expected = f"milliseconds, 0 to {WATCHDOG_MS_MAX:g}"
            wrong.append(Violation("bad time", "option 'watchdog_ms'", expected, repr(time)))
        else:
            object.__setattr__(self, "watchdog_ms", float(time))
        if isinstance(self.scopes, Mapping):
            object.__setattr__(self, "scopes", _entries(self.scopes))
        for name in ("deny", "pin", "dump", "scopes"):
            value = getattr(self, name)
            if not isinstance(value, (tuple, list)) or not all(isinstance(p, str) for p in value):
                expected = "a mapping of scopes to patterns" if name == "scopes" else "tuple of str"
                wrong.append(Violation("not a tuple of patterns", f"option {name!r}", expected, repr(value)))
            else:
                object.__setattr__(self, name, tuple(map(_plain, value)))
        for entry in self.scopes if isinstance(self.scopes, tuple) else ():
            if not all(entry.partition(":")[::2]):
                empty = "name the nodes, or leave the scope out" if entry.endswith(":") else ""
                wrong.append(Violation("not an entry", "option 'scopes'", "scope:pattern", repr(entry), empty))
        raise_all(InputError, wrong)

    def __repr__(self) -> str:
        """What differs from the defaults."""
        rows = [(f.name, getattr(self, f.name), f.default) for f in dataclasses.fields(self)]
        return f"Options({', '.join(f'{name}={value!r}' for name, value, usual in rows if value != usual)})"

    @staticmethod
    def of(given: Options | Mapping[str, Any] | None) -> Options:
        """Options of Options, a mapping of names, or None (defaults). Raises InputError on unknown names."""
        if given is None:
            return Options()
        if isinstance(given, Options):
            return given
        if not isinstance(given, Mapping):
            raise InputError(
                "options are not Options", expected="superkernel.Options or a mapping", found=type(given).__name__
            )
        known = [f.name for f in dataclasses.fields(Options)]
        unknown = [str(name) for name in given if name not in known]
        if unknown:
            raise InputError("unknown option", expected=", ".join(known), found=", ".join(unknown))
        return Options(**given)


def _plain(value: Any) -> Any:
    """NumPy's scalars, and subclasses of Python's, as Python's own: equal options print equally, and share a plan."""
    if type(value).__module__ == "numpy" and value.ndim == 0:
        value = value.item()
    if isinstance(value, bool):
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return str.__str__(value) if kind is str else kind(value)
    return value


def _entries(scopes: Mapping[Any, Any]) -> tuple[str, ...]:
    """A mapping of scopes as entries; what is no text, and a scope without patterns, stays to be found wrong."""
    rows = [(name, [found] if isinstance(found, str) else found) for name, found in scopes.items()]
    return tuple(f"{name}:{p}" for name, row in rows for p in ((isinstance(row, (tuple, list)) and row) or [""]))
