"""The host runtime (C++): a pool of persistent pinned workers, kernels that run on it, its clock, the machine's limits.

A launch costs one release store and, only where workers sleep, one futex wake. The calling thread is worker 0. All
functions may be called from any thread; kernels and threads share the pool, one launch at a time. The process may fork
(the child makes its own workers on first use) and exit at any time.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

ABI_VERSION: int
"""SK_ABI_VERSION of csrc/include/superkernel_abi.h."""
SOURCES_DIGEST: str
"""`superkernel.core.version.core_digest` of the sources that this was built from."""
CHAIN_CYCLES: int
"""Length of the chain of additions that `ProfileRows.chain_ticks` times, a cycle each."""

class OversubscriptionWarning(RuntimeWarning):
    """A kernel has more threads than the process may use CPUs. Given once per process."""

class BlockedWait(TypedDict):
    """A wait that a core gave up when a launch ended early; numbers as in `AbortDetails`."""

    core: int
    wait: int
    producer: int
    threshold: int
    actual: int
    late: bool
    """The core came to it when the launch had been given up already: before that it was at work."""

class AbortDetails(TypedDict):
    """Why the last run of a kernel stopped early. Numbers are -1 or 0 where the reason does not have them."""

    reason: str
    """deadlock, watchdog, host_call, interrupt, entry_code, counters, nested, no_thread, forked or missing_entry."""
    core: int
    """The core that gave up waiting, or whose counter is wrong."""
    wait: int
    """Index of the wait in the plan."""
    producer: int
    """The core whose counter was awaited."""
    threshold: int
    """The value awaited (or expected)."""
    actual: int
    """The value found."""
    epoch: int
    """Launches done before this one: threshold - epoch * sets[producer] is the number of the set awaited."""
    elapsed_ns: int
    waits: list[BlockedWait]
    """All cores that waited."""

class PoolInfo(TypedDict):
    threads: int
    """Workers alive, without the callers."""
    parked: int
    """Of these, asleep."""
    cpus: list[int]
    """CPUs the process may use, in the order workers take them: one hardware thread of each core first."""
    worker_cpus: list[int]
    """The CPU of worker 1, 2, ..., -1 where it floats."""
    launches: int
    """Launches on more than one core."""
    wakes: int
    """Launches that had to wake a sleeper."""
    moves: int
    """Workers moved because the caller stood on their CPU."""
    taken: int
    stepwise: int  # launches of steps
    disturbed: bool  # others have taken CPUs of threads inside launches, lately
    """Parts of workers that the caller did: of kernels whose cores do not wait for one another."""
    spin_ns: int
    spin_ns_max: int
    spin_ns_now: int
    """How long workers spin by what they have learned."""
    pin: bool
    pin_caller: bool
    asymmetric_barrier: bool
    """membarrier(2) takes the barrier off the launch path."""
    cores_max: int

class AbiLayout(TypedDict):
    version: int
    flag_stride: int
    context_bytes: int
    offsets: dict[str, int]

class KnownCode:
    """While it lives, a crash in its functions is told on stderr by their texts. A row is (begin, end, text, whether
    the function calls a kernel for one sub-operator), addresses in bytes."""

    def __init__(self, names: list[tuple[int, int, str, bool]]) -> None: ...

class ProfileRows(TypedDict):
    """What `Kernel.profile` measures, by round."""

    plain_ns: npt.NDArray[np.int64]
    profiled_ns: npt.NDArray[np.int64]
    single_ns: npt.NDArray[np.int64]  # empty where not asked for
    edges: npt.NDArray[np.uint64]  # [rounds, 2]: time stamps at begin and end of the profiled launch
    events: npt.NDArray[np.uint64]  # [rounds, cores, events_words], 0 where the entry wrote none
    single_edges: npt.NDArray[np.uint64]  # the same two around the sub-operators one by one with time stamps
    single_events: npt.NDArray[np.uint64]  # [rounds, cores, subops, 2]: begin and end of each core's share of each
    preemptions: npt.NDArray[np.int64]  # [rounds, 4]: of all threads beside plain, profiled, single, stamped single
    chain_ticks: npt.NDArray[np.int64]  # [rounds, cores]: of `CHAIN_CYCLES`, behind the profiled launch; 0: unknown

class Workspace:
    """What launches of several kernels work on in turn: each borrows a block for the length of a run, so that there are
    as many blocks as ran at the same time, each for the largest kernel."""

    def __init__(self) -> None: ...
    @property
    def nbytes(self) -> int:
        """Of all blocks."""

class Kernel:
    """A compiled kernel with its arena, scratch, constants and progress counters.

    `entry`, `single` and `profiled` are addresses of SkEntry, SkSingleEntry and SkEntry functions, 0 for absent;
    whatever owns their code must live as long: give it as `keepalive`. `scratch_bytes` and `events_words` are per
    core. `constants` is any contiguous buffer; it is used in place where it is 64-byte aligned, else copied. `shared`:
    arrays without gaps, 64-byte aligned, whose addresses the entry finds behind those of the io table. `workspace`:
    what arena and scratch are borrowed from for each run. `sets` holds
    per core how many times the entry raises its counter per launch ([] to leave it unchecked). `host_call(subop)`
    computes a sub-operator on the host. `stepwise`: any thread may do any core's part of `single`, in any order within
    a sub-operator; launches beside busy neighbours are made so where that is faster.

    `io` of a run is a sequence of `io_count` base pointers: contiguous arrays, objects with the buffer protocol, or
    addresses. Sizes are not checked here. Runs of one kernel exclude one another; the GIL is released meanwhile.

    `watchdog_ns` bounds each launch: a wait that lasts longer ends the run with WatchdogError on all cores; 0 means
    for ever. A run on the main thread that waits long looks at signals about every 50 ms, so that Ctrl-C ends even a
    hung kernel. After any early end the kernel is as new and may run again; outputs and states are then undefined.

    Raises InputError (wrong arguments, missing entry, nested run), WatchdogError (its `details` is `last_abort()`),
    MachineError (no memory, no thread), InternalError (counters disagree with `sets`, entry failed), UnsupportedError
    (forked inside a run), and whatever `host_call` or a signal handler raises.
    """

    def __init__(
        self,
        entry: int,
        single: int,
        profiled: int,
        cores: int,
        arena_bytes: int,
        scratch_bytes: int,
        constants: Any,
        io_count: int,
        sets: Sequence[int],
        subops: int,
        events_words: int,
        host_call: Callable[[int], object] | None = None,
        *,
        shared: Sequence[npt.NDArray[Any]] = (),
        workspace: Workspace | None = None,
        stepwise: bool = False,
        keepalive: object = None,
    ) -> None: ...
    def run(self, io: Sequence[Any], watchdog_ns: int = 0) -> None:
        """One launch of the fused entry."""

    def profile(
        self,
        io: Sequence[Any],
        rounds: int,
        warmup: int = 10,
        settle: bool = True,
        single: bool = False,
        watchdog_ns: int = 0,
    ) -> ProfileRows:
        """Launches of the plain and the profiled entry and, with `single`, one by one without time stamps and with
        them, in turn: drift of the machine meets all alike. `settle`: ahead of each launch that is measured, one of its
        kind that is not."""

    def count(self, io: Sequence[Any], launches: int, watchdog_ns: int = 0) -> npt.NDArray[np.int64]:
        """Cycles, instructions and misses of the last cache in user mode over `launches` fused launches back to back,
        waiting for the next one included: shape [cores, 3], -1 where the machine does not let us count."""

    def run_single(self, io: Sequence[Any], watchdog_ns: int = 0) -> npt.NDArray[np.int64]:
        """One launch with a full join per sub-operator: ns of each, shape [subops]."""

    def time(self, io: Sequence[Any], rounds: int, warmup: int = 10, watchdog_ns: int = 0) -> npt.NDArray[np.int64]:
        """ns of each of `rounds` fused launches back to back."""

    def arena(self) -> npt.NDArray[np.uint8]:
        """The bytes of the arena, shared; meant for host calls during a run."""

    def last_abort(self) -> AbortDetails | None:
        """Why the last run stopped early; None where it did not."""

    @property
    def cores(self) -> int: ...
    @property
    def io_count(self) -> int: ...
    @property
    def subops(self) -> int: ...
    @property
    def constants_in_place(self) -> bool:
        """False where the constants had to be copied."""

CALL_CODES: dict[str, int]
"""What the C function of a bound kernel returns, by name (csrc/include/superkernel_call.h)."""

class DirectCall:
    """Base of what is called with arrays. A call with arrays of exactly the prepared types (`prepare_direct`) makes the
    outputs and launches; any other, and every call before, goes to `self._call_checked(*args, **named)`.

    The GIL is given up during a launch unless launches of the kernel have lately taken less than 20 us on average
    (measured: at first always, then one of sixteen). A launch that has to wait for another thread, or that outlasts 50
    ms at a wait, gives it up all the same."""

    _bound: Any
    """What `run_bound` runs: a BoundCall, None for none."""

    def __call__(self, *args: Any, **named: Any) -> Any: ...
    def run_bound(self) -> None:
        """One launch on the buffers of the last `bind`. Raises as `BoundKernel.run`, and InputError before any."""

class BoundCall:
    """Base of what runs on fixed buffers (`prepare_bound`). Gives up the GIL as DirectCall does."""

    @property
    def closed(self) -> bool:
        """True after `close`, and before `prepare_bound`."""

    @property
    def function_address(self) -> int:
        """Of a C function `int32_t f(void *self)`, see csrc/include/superkernel_call.h."""

    @property
    def self_address(self) -> int:
        """The argument to give it."""

    @property
    def error(self) -> BaseException | None:
        """What the last call of the C function that failed in Python raised."""

    def run(self) -> None:
        """One launch on the bound buffers."""

    def close(self) -> None:
        """Refuse further launches, wait for the present one and let go of the buffers."""

def prepare_direct(
    call: DirectCall,
    kernel: Kernel,
    inputs: Sequence[tuple[np.dtype[Any], Sequence[int]]],
    outputs: Sequence[tuple[np.dtype[Any], Sequence[int]]],
    states: Sequence[npt.NDArray[Any]],
    watchdog_ns: int,
    explain: Callable[[BaseException], BaseException],
) -> None:
    """Prepare the calls of `call`, once: launches of `kernel` on inputs, outputs and states, in that order. What a
    launch raises goes through `explain`. An argument that overlaps a state is not taken directly."""

def prepare_bound(
    call: BoundCall,
    kernel: Kernel,
    io: Sequence[npt.NDArray[Any]],
    watchdog_ns: int,
    explain: Callable[[BaseException], BaseException],
    runner: Callable[[], object] | None = None,
) -> None:
    """Prepare the launches of `call`, once. Nothing is checked but the number of arrays. With `runner` a launch is a
    call of it."""

class ProgramRecorder:
    """A linked program of an accelerator in a memory, whose launches can be recorded
    (csrc/sim/device/program_recorder.h). `segments`: address, bytes, data, writable, executable; `functions`: address
    and number of arguments. MemoryError where there is not enough memory."""

    def __init__(
        self,
        target: Mapping[str, object],
        entry: int,
        private_address: int,
        segments: Sequence[tuple[int, int, bytes, bool, bool]],
        functions: Sequence[tuple[int, int]],
        instructions_max: int,
    ) -> None: ...
    def write(self, address: int, data: Buffer) -> None:
        """Bytes of global memory. The range is not checked."""
    def view(self, address: int, bytes: int, make: Callable[[], Buffer]) -> None:
        """The same without a copy, for loads; `make` is called at the first one."""
    def launch(
        self,
        number: int,
        on_call: Callable[[int, int, tuple[int, ...]], Iterable[tuple[int, bool, int, int, int, int]]],
    ) -> list[tuple[bytes, list[tuple[int, ...]], bytes]]:
        """Steps, arguments of calls and uses of operands, by hart. `on_call`: of a hart, a function and its arguments
        what may be touched, as rows of operand, write, address, bytes, stride, count."""
    @property
    def wrong(self) -> list[tuple[str, str, str, str]]:
        """What was found wrong: message, location, expected, found."""
    @property
    def executed(self) -> int:
        """Instructions."""
    @property
    def commands(self) -> int:
        """Of engines and control units."""

def record_program(
    entry: int,
    profiled: int,
    single: int,
    cores: int,
    subops: int,
    kernels: Sequence[tuple[int, int]],
    regions: Sequence[int],
    scratch_stride: int,
    events_words: int,
) -> list[list[tuple[int, ...]]] | None:
    """What the three entries of a loaded program do, per core: it is run with recorders in the place of its kernels,
    which nobody else may call meanwhile (csrc/runtime/recorder.h).

    `kernels`: address and number of operands of each. `regions`: bytes of arena, constants, scratch of all cores, then
    of each slot of the io table and of each shared constant. Events are (0, kernel, begin, end, region and offset of
    each operand and of scratch), region -1 for an address in none; (1, sub-operator) a host call; (2, producer, count,
    index) a wait; (3, count) a set. None where the system does not let code be changed. Raises VerificationError where
    a wait is not what it names, the entries disagree, or a counter is set that is not the worker's own;
    MachineError."""

def entries_object(
    tasks: tuple[Any, ...],
    programs: tuple[Any, ...],
    sets: Sequence[int],
    subops: int,
    *,
    spaces: tuple[Any, Any, Any],
    kinds: tuple[type, type, type],
    table_waits: int,
    spin_bytes: int,
    spin_lines: int,
) -> bytes:
    """The object of the entries of a plan, for x86-64 (csrc/entries/entries_x86.h). The first four: the fields of an
    `EntrySpec`; `spaces`: its base pointers, arena, constants, io; `kinds`: its classes of steps, which run a task,
    wait, set. `table_waits`: so many waits that follow one another are a table; a wait for each `spin_bytes` of
    constants fetches `spin_lines`. Raises OverflowError where a number has no room in an instruction."""

def alloc_aligned(nbytes: int) -> npt.NDArray[np.uint8]:
    """Zeroed bytes, 64-byte aligned; from 2 MB on, on huge pages where the system has them."""

def move_to_node(memory: npt.NDArray[np.uint8], node: int) -> int:
    """Move the pages of contiguous bytes to a NUMA node (the system's number). How many of them lie there then: none
    where the system refuses, and not those that were never touched."""

def tsc_hz() -> float:
    """Ticks per second of the time stamps in events. The first call may take 20 ms."""

def tsc_is_native() -> bool:
    """True where time stamps are a CPU counter that generated code reads itself; else it must call `clock`."""

def tsc_now() -> int:
    """The present time in ticks."""

def available_cpus() -> int:
    """CPUs the calling thread may use."""

def may_use_tiles() -> bool:
    """Whether this process may use AMX's tiles; the first call asks the system for it."""

def allowed_cpus() -> list[int]:
    """Their numbers, in the order in which workers take them."""

def abi_layout() -> AbiLayout:
    """SkContext as the C++ compiler lays it out."""

def set_option(name: str, value: int) -> None:
    """Sets an option of the pool.

    spin_ns: how long workers spin after a launch at least before they sleep (50000). spin_ns_max: at most (5000000); in
    between lies what they have learned: twice what waking them took, twice a gap between launches that is shorter than
    this. With spin_ns_max = 0 nothing is learned, with both 0 nobody spins. pin: workers keep to one CPU each (1).
    pin_caller: so does the calling thread, from its next launch on (0). stepwise: launches whose parts whoever has time
    does, of kernels for which that is proved: 0 never, 1 beside busy neighbours, 2 always (1). check_counters: every
    run compares the counters with the plan afterwards, as profiled runs always do (0).
    """

def pool_info() -> PoolInfo: ...

class Conflicts:
    """Which accesses of tasks conflict, in the order of the later ones (csrc/sync/conflicts.h). `accesses`: rows of run
    (of tasks of one sub-operator), task, place, operand, write, number of regions; `regions`: rows of start, length,
    stride, count. Raises InputError on what is none."""

    def __init__(self, accesses: npt.NDArray[np.int64], regions: npt.NDArray[np.int64]) -> None: ...
    def __iter__(self) -> Conflicts: ...
    def __next__(self) -> npt.NDArray[np.int32]:
        """Of the next run: rows of the numbers of two accesses, the earlier one and the later one."""

    def needs(self, core_of: Sequence[int], cores: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """What is to be awaited on the host, of conflicts that were not yielded yet: rows of an earlier and a later
        access, number of conflicts, and a region of each access that meet, by core and task of the later one, then by
        core of the earlier one; and by task, how many conflicts need no wait of their own. `core_of`: of each task.
        Raises InputError."""

class VectorClock:
    """What each core knows of the others' progress through true dependences alone: vector clocks over positions in the
    global order."""

    def __init__(self, cores: int) -> None: ...
    def run(self, position: int, core: int, sources: Sequence[tuple[int, int]]) -> None:
        """A task at `position` on `core` starts after its sources, and completes. Raises KeyError where one has not
        run."""

    def at(self, position: int, cores: Sequence[int]) -> list[int]:
        """Up to which position every core is known to be complete by all the tasks at `position`, which are on these
        cores. Raises KeyError where one has not run."""

ScheduledSubOp = tuple[int, Sequence[Sequence[tuple[int, int]]], Sequence[int], Sequence[int], bool]
"""Number of its list of partitions; of each operand the buffer, the one that this is a part of, and so on, with the
first byte there; operands that are read and may be written by others; sub-operators that come before; whether it runs
on core 0 only."""
AccessesOf = Callable[[int, int, int], tuple[Sequence[Any], int | None]]
"""Accesses (`superkernel.scheduler.tiling.Access`) of the range of the partition of the list, by numbers, reads of
constants left out; how many bytes it stores, where that is less than these say."""

class ListScheduler:
    """Sub-operators onto cores, in a global order (csrc/scheduler/list_scheduler.h, superkernel/scheduler/place.py).
    `partitions`: lists, of each one the times of its ranges and the longest; `handovers_ns` from core to core,
    `handover_ns` where nobody knows between which; `apart`: the first worker of each core. Raises InputError on what is
    none, and what `accesses` raises."""

    def __init__(
        self,
        subops: Sequence[ScheduledSubOp],
        partitions: Sequence[Sequence[tuple[Sequence[float], float]]],
        accesses: AccessesOf,
        handovers_ns: Sequence[Sequence[float]],
        handover_ns: float,
        line_ns: float,
        apart: Sequence[int],
    ) -> None: ...
    def run(self) -> list[int]:
        """Places all; the global order."""

    def run_in_order(self, reason: str) -> list[int]:
        """The same in the given order, each by its first partition on as many cores as that has ranges."""

    def placements(self) -> list[tuple[int, tuple[int, ...], float, str]]:
        """By sub-operator: partition, cores of its ranges, when it is done in ns, and why there."""

    def makespan_ns(self) -> float:
        """When everything is done and joined."""

    def touched(
        self, order: Sequence[int]
    ) -> list[tuple[int, dict[int, int], list[int], tuple[tuple[int, int, int], ...], bool]]:
        """A buffer that is no part of another, and the fields of its `superkernel.scheduler.memory.BufferUse`."""

class Arena:
    """Offsets of buffers that share no bytes where they interfere (csrc/scheduler/arena.h). `sizes` in bytes; `runs` of
    each buffer: first byte, byte behind the last, and who writes them; with a `limit` of bytes, offsets are chosen so
    that addresses stay with their writers as far as that needs no more. Raises InputError on what is none."""

    def __init__(
        self, sizes: Sequence[int], runs: Sequence[Sequence[tuple[int, int, int]]], align: int, limit: int
    ) -> None: ...
    def place(self, buffer: int, meets: npt.NDArray[np.uint8]) -> int:
        """The offset of a buffer that was not placed yet. `meets`: by buffer, how it interferes with this one (0: not,
        1: always, 2: unless the same core uses the bytes that both share). Raises InputError."""

class Probe:
    """Measures the machine with a thread per CPU, pinned there; what figures mean stands in csrc/probe/probe.h. Raises
    InputError on cores that there are not, MachineError where the system refuses threads or memory."""

    def __init__(self, cpus: Sequence[int]) -> None: ...
    def read(self, nbytes: int, cores: int = 1, same: bool = False) -> float:
        """Sequential reads of the first `cores` together, each of `nbytes` of its own or all of the same, in bytes per
        ns."""

    def rate(self, kind: str) -> float:
        """Operations per ns of the first core: f32 multiply-adds (two each) of a tier ("avx512", "avx2", "plain"), dot
        products ("bf16", "int8"), tiles ("amx_bf16", "amx_int8"); 0 where it has none."""

    def handover_ns(self, first: int = 0, second: int = 1) -> float:
        """A flag from one core to the other, one way."""

    def line_ns(self, writer: int = 0, reader: int = 1) -> float:
        """A cache line of data that another core wrote, one of many."""

    def wake_ns(self, count: int) -> float:
        """Until so many sleeping threads are all awake."""

    def code_line_ns(self, nbytes: int) -> float:
        """A line of straight-line code of so many bytes that runs over and over; negative where memory cannot be made
        executable, 0 on other instruction sets than x86-64 and AArch64."""

    @property
    def cores(self) -> int: ...
    @property
    def trials(self) -> int: ...
    @property
    def disturbed(self) -> int:
        """Trials in which a thread was not on its CPU all the time."""

class SimCacheStats(TypedDict):
    """Counts of a simulated instruction cache."""

    accesses: int
    """Lines that execution entered."""
    misses: int
    """Of these, not present."""
    cold_misses: int
    """Of these, never fetched before."""
    prefetches: int
    """Lines that prefetch.i fetched."""
    prefetches_late: int
    """Of these, used before they had arrived."""

class SimHartState(TypedDict):
    """One simulated hart: registers, what its last trap left behind, counts."""

    x: list[int]
    f: list[int]
    pc: int
    mode: Literal["M", "U"]
    asleep: bool
    fcsr: int
    mcause: int
    mepc: int
    mtval: int
    mtvec: int
    retired: int
    traps: int
    cycles: int
    icache: SimCacheStats

class SimMachine:
    """A simulated RV64GC machine; superkernel.sim.Machine is the public face, which says what the arguments mean.

    `icache` is (bytes, line bytes, ways, miss cycles); 0 bytes for none. Raises FileFormatError for a file that is no
    loadable program, InputError for impossible parameters and addresses and for use while another thread runs it.
    """

    def __init__(
        self,
        elf: bytes,
        *,
        harts: int = 1,
        memory_base: int = 0x80000000,
        memory_bytes: int = 0,
        quantum: int = 10000,
        icache: tuple[int, int, int, int] = (0, 128, 4, 150),
    ) -> None: ...
    def run(self, instructions: int) -> Literal["exited", "limit", "asleep", "trap_loop", "bad_request"]:
        """Runs without the GIL; signals are looked at every 50 million instructions."""

    def hart(self, number: int) -> SimHartState: ...
    def read(self, address: int, count: int) -> bytes: ...
    def write(self, address: int, data: bytes) -> None: ...
    def console(self) -> bytes: ...
    @property
    def exit_code(self) -> int: ...
    @property
    def end_hart(self) -> int: ...
    @property
    def executed(self) -> int: ...
    @property
    def time(self) -> int: ...

class EngineBench:
    """The engines of one core without time: single commands of the table on local memories of their own.

    `target` is every field of the description as {"section.field": value}. A command is given by its operand words and,
    last, the doorbell; what is wrong with it comes back as (kind, message). Engines, core types and memories go by the
    names of the table. Raises ValueError for unknown names, IndexError for bytes outside a memory.
    """

    def __init__(self, target: dict[str, Any]) -> None: ...
    def decode(self, engine: str, core: str, words: Sequence[int]) -> tuple[str, str] | None:
        """What makes the command illegal on a core of this type."""

    def text(self, engine: str, core: str, words: Sequence[int]) -> str:
        """The command as superkernel.target.engines prints it. ValueError where it is illegal."""

    def footprint(
        self, engine: str, core: str, words: Sequence[int]
    ) -> list[tuple[str, bool, int, int, int, int, int]]:
        """(memory, writes, operand, begin, rows, row bytes, stride) of every access. ValueError where it is illegal."""

    def cost(self, engine: str, core: str, words: Sequence[int]) -> tuple[int, int, int]:
        """Cycles: (start-up, beats, visible). ValueError where it is illegal."""

    def execute(
        self, engine: str, core: str, words: Sequence[int], gm: bytearray, *, data: bool = True, isa: str = "best"
    ) -> tuple[str, str] | None:
        """Carries the command out; `gm` stands at map.ram_address. A fault leaves all memory as it was.

        Without `data` nothing is computed: only what was written is kept. `isa` is "best" or one of `isas`.
        """

    def read(self, memory: str, begin: int, count: int) -> bytes: ...
    def write(self, memory: str, begin: int, data: bytes) -> None:
        """Also makes the bytes count as written."""

    def first_unwritten(self, memory: str, begin: int, count: int) -> int:
        """The first byte of the range that was never written; the range's end where there is none."""

    def forget(self) -> None:
        """Back to memories that were never written."""

    @staticmethod
    def isas() -> list[str]:
        """The instruction sets of this host that engine arithmetic is compiled for; all give the same bits."""

class SimDeviceFailure(TypedDict):
    """Why a launch failed; `kind` is one of superkernel.sim.device.FAILURE_KINDS."""

    kind: str
    message: str
    expected: str
    found: str
    hint: str
    command: str
    core: int
    marker: int
    pc: int
    cycle: int
    details: list[str]

class SimDeviceResults(TypedDict):
    """What a launch counted; superkernel.sim.counters says what the numbers mean."""

    cycles: int
    cores: list[dict[str, Any]]
    sdma: dict[str, int]
    memory: dict[str, int]
    console: bytes
    data_dependent: set[int]

class SimDevice:
    """The timed accelerator; superkernel.sim.device.Device is the public face, which checks the arguments.

    `target` has every field by path; a segment is (address, bytes, data, writable, executable).
    """

    def __init__(
        self,
        target: Mapping[str, Any],
        entry: int,
        private_address: int | None,
        segments: list[tuple[int, int, bytes, bool, bool]],
        options: Mapping[str, int | bool],
        delays: int = 0,
    ) -> None: ...
    def write(self, address: int, data: Buffer) -> None: ...
    def reserve(self, address: int, count: int) -> None: ...
    def read(self, address: int, count: int) -> bytes: ...
    def first_unwritten(self, address: int, count: int) -> int: ...
    def declare(self, sub_operator: int, core: int, writes: bool, ranges: list[tuple[int, int]]) -> None: ...
    def declare_scratch(self, begin: int, end: int) -> None: ...
    def warm(self, address: int, count: int) -> None: ...
    def forget_l2(self) -> None: ...
    def launch(self, number: int, cold: bool, limit_s: float = ...) -> Literal["ended", "failed"]:
        """Runs without the GIL; signals and the limit of its time on the host are looked at every 50 ms or so."""

    def failure(self) -> SimDeviceFailure: ...
    def results(self) -> SimDeviceResults: ...
    def trace(self) -> bytes: ...
    def control_time(self) -> tuple[int, int]: ...
    @property
    def retired(self) -> int: ...

def sim_instructions() -> list[tuple[str, int, int, str]]:
    """The simulator's instruction table: (name, mask, match, operand letters of csrc/sim/isa_table.h)."""

def sim_disassemble(word: int, pc: int = 0) -> str:
    """An instruction word's text as GNU objdump writes it with numeric names and without aliases, or "illegal"."""

def sim_expand_compressed(half: int) -> int:
    """The 32-bit instruction that a 16-bit one stands for; 0 where it is illegal."""
