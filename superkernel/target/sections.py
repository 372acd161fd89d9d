"""The sections of an `aicore` target description: every number of the model, with unit, meaning and legal range.

Where a meaning says how a figure was derived, the figure is ours; whether a value is published or our default is said
per value in the preset files, not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from superkernel.target.schema import FieldSpec, quantity, section_fields

_MEGA = 1 << 20
_GIGA = 1 << 30
_TERA = 1 << 40


@dataclass(frozen=True, kw_only=True)
class DeviceSection:
    """Cores and clock."""

    groups: int = quantity("groups; a group is its cube cores and their vector cores", 1, 1024)
    cube_cores_per_group: int = quantity("cube cores (AIC) of a group", 1, 8)
    vector_cores_per_group: int = quantity("vector cores (AIV) of a group", 1, 8)
    cube_cores: int = quantity("cube cores of the device: groups x cube_cores_per_group", 1, 1024)
    vector_cores: int = quantity("vector cores of the device: groups x vector_cores_per_group", 1, 1024)
    aicpu_harts: int = quantity("general-purpose harts for tiling and dispatch", 0, 64)
    sdma_engines: int = quantity("system DMA engines, shared by all cores", 0, 64)
    clock_mhz: int = quantity("clock of all cores and engines", 1, 10_000)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Local memories of a core. A core sees its own only, through engine commands only."""

    l1_bytes: int = quantity("L1 of a cube core", 1024, _MEGA)
    l0a_bytes: int = quantity("L0A of a cube core: left operands", 512, _MEGA)
    l0b_bytes: int = quantity("L0B of a cube core: right operands", 512, _MEGA)
    l0c_bytes: int = quantity("L0C of a cube core: accumulators", 1024, _MEGA)
    ub_bytes: int = quantity("unified buffer (UB) of a vector core", 1024, _MEGA)
    block_bytes: int = quantity("alignment of addresses in L1 and UB; row of a fractal", 8, 512, power_of_two=True)
    fractal_bytes: int = quantity(
        "alignment of addresses in L0A and L0B: cube.m rows of block_bytes", 64, 8192, power_of_two=True
    )
    accumulator_bytes: int = quantity(
        "alignment of addresses in L0C: cube.m x cube.n accumulators of 4 bytes", 64, 16384, power_of_two=True
    )


@dataclass(frozen=True, kw_only=True)
class Control:
    """The in-order scalar unit. An instruction takes one cycle unless a field says otherwise."""

    isa: str = quantity("instruction set as LLVM and QEMU name it")
    multiply_cycles: int = quantity("integer multiplication, issue to use", 1, 64)
    divide_cycles: int = quantity("integer division", 1, 256)
    taken_branch_cycles: int = quantity("extra cycles of a taken branch or jump that hits the cache", 0, 64)
    float_cycles: int = quantity("floating-point add, multiply, fused multiply-add, issue to use", 1, 64)
    float_divide_cycles: int = quantity("floating-point division and square root", 1, 256)
    private_bytes: int = quantity(
        "data memory of its own (stack, spills, copied arguments)", 1024, _MEGA, multiple_of=16
    )
    private_load_cycles: int = quantity("load from the private data memory, issue to use", 1, 1000)
    global_load_cycles: int = quantity("load from global memory that hits L2, issue to use", 1, 10_000)
    global_store_cycles: int = quantity("store to global memory, until the next instruction issues", 1, 10_000)
    doorbell_store_cycles: int = quantity("store to the register page, until the next instruction issues", 1, 1000)


@dataclass(frozen=True, kw_only=True)
class InstructionCache:
    """Instruction cache of each control unit."""

    cube_bytes: int = quantity("size on a cube core", 256, 16 * _MEGA)
    vector_bytes: int = quantity("size on a vector core", 256, 16 * _MEGA)
    aicpu_bytes: int = quantity("size on an aicpu hart", 256, 16 * _MEGA)
    line_bytes: int = quantity("line", 16, 4096, power_of_two=True)
    ways: int = quantity("associativity, least recently used out first", 1, 64, power_of_two=True)
    miss_latency_cycles: int = quantity("miss that hits L2, without queueing and fill", 1, 10_000)
    fill_bytes_per_cycle: int = quantity("width of a fill", 1, 4096)
    same_line_interval_cycles: int = quantity(
        "between fetches of one line by several cores, which L2 serves one after the other", 0, 10_000
    )


@dataclass(frozen=True, kw_only=True)
class L2Cache:
    """The cache all cores share."""

    capacity_bytes: int = quantity("size", 4096, _TERA)
    line_bytes: int = quantity("line; unit of serialisation", 32, 65536, power_of_two=True)
    usable_percent: int = quantity("of capacity_bytes, what lines that are used again and again find room in", 1, 100)
    banks: int = quantity("banks, told by a hash of the line's number", 1, 4096, power_of_two=True)
    aggregate_gb_per_s: float = quantity("all banks together", 0.001, 1e6)
    cube_gb_per_s: float = quantity("all cube cores together, reads and writes each", 0.001, 1e6)
    vector_gb_per_s: float = quantity("all vector cores together, reads and writes each", 0.001, 1e6)
    same_line_loss_percent: float = quantity(
        "loss of cube_gb_per_s or vector_gb_per_s where all cores read the same lines at once", 0, 99
    )


@dataclass(frozen=True, kw_only=True)
class Hbm:
    """Global memory behind L2; the device is one die."""

    rate_gb_per_s: float = quantity("one die, all channels: the peak", 0.001, 1e6)
    loss_percent: float = quantity("of the peak, what rows, refresh and turns take", 0, 99)
    channels: int = quantity("channels, told by a hash of the L2 line's number", 1, 4096)
    latency_ns: int = quantity("access that misses L2, on top of an L2 hit, without transfer", 0, 100_000)
    core_bytes_per_cycle: int = quantity("one core reading what is not in L2", 1, 65536)


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Peak rate of each path of one core, for long transfers that hit L2."""

    gm_to_ub_gb_per_s: float = quantity("MTE2 of a vector core", 0.001, 1e6)
    gm_to_l1_gb_per_s: float = quantity("MTE2 of a cube core", 0.001, 1e6)
    ub_to_gm_gb_per_s: float = quantity("MTE3", 0.001, 1e6)
    l1_to_l0a_gb_per_s: float = quantity("MTE1 into L0A", 0.001, 1e6)
    l1_to_l0b_gb_per_s: float = quantity("MTE1 into L0B", 0.001, 1e6)
    l0c_to_gm_gb_per_s: float = quantity("FIX", 0.001, 1e6)
    scale: float = quantity("factor on all rates of this section: 1.07 if the source meant GiB", 0.1, 10)


@dataclass(frozen=True, kw_only=True)
class Dma:
    """What a transfer costs beyond its rate, and measured curves to check the model with."""

    startup_cycles: int = quantity("start-up of a load, an MTE2 command; requests run ahead by as much", 0, 100_000)
    store_startup_cycles: int = quantity("start-up of an MTE3 or FIX command, which waits for no answer", 0, 100_000)
    local_startup_cycles: int = quantity("start-up of an MTE1 command", 0, 100_000)
    row_cycles: int = quantity("per row of a two-dimensional transfer after its first", 0, 10_000)
    near_peak_bytes: int = quantity("transfer size from which the rate is near its peak", 1, _GIGA)
    size_curve_bytes: tuple[int, ...] = quantity("transfer sizes of the measured curve", 1, _GIGA, increasing=True)
    size_curve_gb_per_s: tuple[float, ...] = quantity("whole device at each transfer size", 0.001, 1e6)
    working_set_bytes: tuple[int, ...] = quantity("working sets of the measured curve", 1, _TERA, increasing=True)
    working_set_gb_per_s: tuple[float, ...] = quantity("whole device at each working set", 0.001, 1e6)
    aligned_bytes: int = quantity("alignment in global memory that gives the full rate", 1, 65536, power_of_two=True)
    unaligned_loss_percent: float = quantity("loss of rate of a transfer aligned to memory.block_bytes only", 0, 99)


@dataclass(frozen=True, kw_only=True)
class Cube:
    """The matrix engine: m x n x k multiply-accumulates per cycle."""

    m: int = quantity("rows per step; rows of a fractal", 4, 128, power_of_two=True)
    n: int = quantity("columns per step", 4, 128, power_of_two=True)
    k_f16: int = quantity("depth per step for f16 and bf16", 1, 512, power_of_two=True)
    k_i8: int = quantity("depth per step for i8", 1, 512, power_of_two=True)
    k_f32: int = quantity("depth per step for f32", 1, 512, power_of_two=True)
    startup_cycles: int = quantity("start-up of a command", 0, 10_000)


@dataclass(frozen=True, kw_only=True)
class Vector:
    """The vector engine: elements per cycle."""

    lanes_16bit: int = quantity("elements of 1 or 2 bytes", 1, 4096, power_of_two=True)
    lanes_32bit: int = quantity("elements of 4 bytes", 1, 4096, power_of_two=True)
    lanes_special: int = quantity("exp, ln, division, square roots, any element type", 1, 4096, power_of_two=True)
    lanes_gather: int = quantity("gathered or scattered elements", 1, 4096, power_of_two=True)
    startup_cycles: int = quantity("start-up of a command", 0, 10_000)
    reduce_tail_cycles: int = quantity("per row of a reduction: the tree over the lanes", 0, 10_000)


@dataclass(frozen=True, kw_only=True)
class Queue:
    """The in-order queue of each engine and the flags between the engines of one core."""

    depth_commands: int = quantity("commands it holds; the control unit stalls when it is full", 1, 4096)
    flag_ids: int = quantity("flag numbers per ordered pair of engines", 1, 64)
    flag_count_max: int = quantity("sets that a flag can hold before a wait takes one", 1, 255)
    flag_cycles: int = quantity("end of set_flag until wait_flag of another queue may end", 0, 10_000)
    barrier_cycles: int = quantity("barrier within a queue", 0, 10_000)


@dataclass(frozen=True, kw_only=True)
class Sync:
    """Synchronisation beyond a queue."""

    drain_ns: int = quantity("drain of all engines of a core, when nothing is left to do", 0, 1_000_000)
    core_full_ns: int = quantity(
        "cross-core flag over all cores of a type: last set until waits end; group_ns more over both types",
        0,
        1_000_000,
    )
    group_ns: int = quantity("cross-core flag within a group: last set until waits end", 0, 1_000_000)
    point_to_point: bool = quantity("whether a cross-core set may name single target cores")
    point_to_point_ns: int = quantity("cross-core flag to named cores: set until waits end", 0, 1_000_000)
    flags_per_core: int = quantity("cross-core flags of a core", 1, 64)
    flag_count_max: int = quantity("largest count of a cross-core flag; one more is an error", 1, 255)
    memory_flag_ns: int = quantity("flag through global memory: store until the waiting core goes on", 0, 1_000_000)
    engine_register_ns: int = quantity("engine's flag until the control unit that waits for it goes on", 0, 1_000_000)
    write_flush_ns: int = quantity("write and flush of a control unit's store to global memory", 0, 1_000_000)
    atomic_ns: int = quantity("atomic add in global memory, request to answer", 0, 1_000_000)


@dataclass(frozen=True, kw_only=True)
class Dispatch:
    """What launching operators one by one costs: the baseline of every fusion. The sources disagree."""

    launch_ns: int = quantity("launch and initialisation of one kernel: what a baseline pays per operator", 0, 10**8)
    steady_ns: int = quantity("dispatch of a further operator by the aicpu in a steady stream", 0, 10**8)
    first_ns: int = quantity("dispatch of the first operator", 0, 10**8)
    cold_head_ns: int = quantity("head of an operator on all cores with cold caches", 0, 10**8)


@dataclass(frozen=True, kw_only=True)
class Sdma:
    """The system DMA engine."""

    rate_gb_per_s: float = quantity("copy or prefetch into L2", 0.001, 1e6)
    startup_ns: int = quantity("command's arrival until its first byte", 0, 1_000_000)


@dataclass(frozen=True, kw_only=True)
class AddressMap:
    """Addresses of a core's control unit; where QEMU's `virt` machine has a device, the same device is meant."""

    page_address: int = quantity(
        "register page of engine commands, the core's own; `virt` faults here", 0, 2**48 - 1, multiple_of=4096
    )
    page_bytes: int = quantity("size of the register page", 4096, _MEGA, power_of_two=True)
    ram_address: int = quantity("start of global memory", 0, 2**48 - 1, multiple_of=4096)
    ram_bytes: int = quantity("size of global memory that a program sees", _MEGA, _TERA, multiple_of=4096)
    clint_address: int = quantity("inter-processor interrupts: a 4-byte word per hart", 0, 2**48 - 1, multiple_of=4096)
    exit_address: int = quantity("4-byte store ends the machine", 0, 2**48 - 1, multiple_of=4096)
    console_address: int = quantity("1-byte store prints", 0, 2**48 - 1, multiple_of=4096)


SECTIONS: dict[str, type] = {
    "device": DeviceSection,
    "memory": Memory,
    "control": Control,
    "icache": InstructionCache,
    "l2": L2Cache,
    "hbm": Hbm,
    "rates": Rates,
    "dma": Dma,
    "cube": Cube,
    "vector": Vector,
    "queue": Queue,
    "sync": Sync,
    "dispatch": Dispatch,
    "sdma": Sdma,
    "map": AddressMap,
}


@cache
def all_fields() -> Mapping[str, FieldSpec]:
    """Every field of the description by its path, in the order of the sections."""
    return {spec.path: spec for name, kind in SECTIONS.items() for spec in section_fields(name, kind)}
