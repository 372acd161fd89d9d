"""Models of time, workspace and transform bytes that kernels share: functions of facts and a row.

Times are of one core, in nanoseconds, caches warm for activations; weights come from the smallest cache that holds
them (on the accelerator everything comes from L2). They are a roofline (the slower of arithmetic and memory) with the
losses that decide between variants: short tiles that cannot hide the latency of a multiply-add, padding to whole tiles,
packing per call. They rank kernels; the scheduler has its own, finer costs.

Workspace is bytes per memory region: `scratch` (per core, while it runs), `packed` (persistent copies of constants).
It is an upper bound for a lone operator (a test compares it with the families' tilings); a prologue that is kept may
add to it.
"""

from __future__ import annotations

from collections.abc import Mapping

from superkernel.core.dtypes import DType
from superkernel.registry.predicates import Facts
from superkernel.registry.records import Capability

CALL_NS = 20.0
"""Entering and leaving one kernel function."""

REFERENCE_CALL_NS = 30_000.0
"""A NumPy call from inside the kernel: leaving generated code, taking the interpreter's lock, building arrays."""

_HIDDEN_ACCUMULATORS = 8.0
"""Independent vector accumulators that hide the latency of a multiply-add (4 cycles, 2 units)."""

WINOGRAD_INPUT, WINOGRAD_OUTPUT = {2: 60.0, 4: 240.0}, {2: 50.0, 4: 170.0}
"""Vector instructions that transform a square of inputs, of outputs, by the side of a square of outputs."""

_BLOCK_POSITIONS = 512  # output positions of a convolution that share a patch
_BLOCK_ROWS = 56  # query rows of attention that share a block of keys


def bandwidth(facts: Facts, nbytes: float) -> float:
    """Bytes per nanosecond at which one core reads a working set of this size."""
    return float(next(rate for size, rate in facts["read_bytes_per_ns"] if nbytes <= size))


def _itemsize(facts: Facts, slot: int = 0) -> int:
    dtype = facts.get(f"in{slot}.dtype")
    return dtype.itemsize if isinstance(dtype, DType) else 4


def _peak(facts: Facts, row: Capability) -> float:
    """Multiply-add peak for the row's accumulator: half for f64, `rate` of the row on top."""
    rate = row.figures.get("rate", 1.0)
    return float(facts["cpu.flops_per_ns"]) * (0.5 * rate if row.accumulator is DType.F64 else rate)


def stream(facts: Facts, row: Capability) -> float:
    """Everything is read and written once; `operations` per element, `strided_ns` more where elements are gathered one
    by one."""
    nbytes, elements = facts["bytes"], facts["elements"]
    arithmetic = elements * row.parameter("operations", 2.0) / _peak(facts, row)
    if facts.get("inner_stride", 1) > 1:
        arithmetic += elements * row.parameter("strided_ns", 0.5)
    return float(CALL_NS + max(arithmetic, nbytes / bandwidth(facts, nbytes)))


def gemm(facts: Facts, row: Capability) -> float:
    """Register-tiled product: whole tiles, short ones slower, the weights read once per block of rows."""
    figures, m, weight_ns = row.figures, facts["m"], facts["weight_ns"]
    nr = figures.get("nr", 1)
    tiles = -(-m // figures.get("mr", 1)) or 1
    height = -(-m // tiles)
    accumulators = height * nr * 4.0 / facts["cpu.vector_bytes"]
    rate = figures.get("efficiency", 0.85) * min(1.0, max(height, accumulators) / _HIDDEN_ACCUMULATORS)
    padded = facts["batch"] * tiles * height * (-(-facts["n"] // nr) * nr) * facts["k"]
    arithmetic = 2.0 * padded / (_peak(facts, row) * rate) if rate else 0.0
    packing = 2.0 * weight_ns if row.transforms and any(not t.amortised for t in row.transforms) else 0.0
    packing += facts["batch"] * m * facts["k"] * figures.get("copy_ns", 0.0)
    weight_ns *= figures.get("weights", 1.0)
    return float(CALL_NS + 12.0 * tiles + packing + max(arithmetic, weight_ns))


def gemv(facts: Facts, row: Capability) -> float:
    """Few rows: the weights stream past, a panel of nr columns wide enough that its accumulators hide the latency."""
    rate = _peak(facts, row) * row.parameter("efficiency", 0.9)
    copied = facts["batch"] * facts["m"] * facts["k"] * row.parameter("copy_ns", 0.0)
    weight_ns = facts["weight_ns"] * row.parameter("weights", 1.0)
    return float(CALL_NS + copied + max(facts["flops_estimate"] / rate, weight_ns))


def depthwise(facts: Facts, row: Capability) -> float:
    """One filter per channel: loads, not multiply-adds, are the limit."""
    nbytes = facts["bytes"]
    arithmetic = facts["flops_estimate"] / (_peak(facts, row) * row.parameter("efficiency", 0.25))
    return float(CALL_NS + max(arithmetic, nbytes / bandwidth(facts, nbytes)))


def _lanes(facts: Facts) -> int:
    """f32 elements of a vector."""
    return max(1, int(facts["cpu.vector_bytes"]) // 4)


def conv_nhwc(facts: Facts, row: Capability) -> float:
    """Vectors of output channels, all positions: narrow vectors where channels are few, the rest wasted."""
    lanes, filters = _lanes(facts), facts["m"]
    while lanes > 4 and lanes // 2 >= filters:
        lanes //= 2
    padded = -(-filters // lanes) * lanes
    positions = facts["batch"] * facts["n"]
    arithmetic = 2.0 * positions * padded * facts["k"] / (_peak(facts, row) * row.parameter("efficiency", 0.92))
    finish = positions * padded * 4.0 / _peak(facts, row)
    row_steps = 2.0 * facts["window_rows"] * row.figures.get("row_steps", 0.0)  # of f32, at the end of a window's row
    finish += positions * padded * row_steps / float(facts["cpu.flops_per_ns"])
    copied = 0.0 if facts["taps"] == 1 else 4.0 * facts["in0.elements"] / float(facts["cpu.l2_bytes_per_ns"])
    copied += positions * (
        facts["k"] / facts["taps"] * row.parameter("copy_ns", 0.0) + row.figures.get("pixel_ns", 0.0)
    )
    return float(CALL_NS + max(arithmetic, facts["weight_ns"]) + finish + copied)


def winograd(facts: Facts, row: Capability) -> float:
    """Squares of m x m outputs: products of the transformed inputs, and the transforms; the transformed filters stream
    past once."""
    m = int(row.figures["m"])
    side, lanes, filters, channels = m + 2, _lanes(facts), facts["m"], facts["channels"]
    columns = max(1, facts["out_columns"])
    squares = facts["batch"] * -(-facts["pixels"] // columns // m) * -(-columns // m)
    vectors = -(-filters // lanes)
    vector_ns = 2.0 * lanes / float(facts["cpu.flops_per_ns"])  # of the transforms, whatever is multiplied
    product_ns = 2.0 * lanes / _peak(facts, row)
    arithmetic = side * side * channels * max(squares * vectors, _HIDDEN_ACCUMULATORS) * product_ns / 0.85
    weights = 4.0 * side * side * channels * filters * row.parameter("weights", 1.0)
    coming = squares * -(-channels // lanes) * WINOGRAD_INPUT[m] * vector_ns
    going = squares * vectors * WINOGRAD_OUTPUT[m] * vector_ns
    return float(2 * CALL_NS + coming + going + max(arithmetic, weights / bandwidth(facts, 2.0 * weights)))


def attention(facts: Facts, row: Capability) -> float:
    """Two products and an exponential per score, keys and values read once per block of queries."""
    heads, keys = facts["batch"] * facts["heads"], facts["keys"]
    scores = heads * facts["queries"] * keys
    arithmetic = facts["flops_estimate"] / (_peak(facts, row) * 0.5) + 40.0 * scores / float(facts["cpu.flops_per_ns"])
    copies = heads * keys * (facts["depth"] + facts["value_depth"]) * max(1, facts["queries"] // _BLOCK_ROWS)
    arithmetic += copies * row.parameter("copy_ns", 0.0)
    nbytes = facts["bytes"]
    return float(CALL_NS + max(arithmetic, nbytes / bandwidth(facts, nbytes)))


def window(facts: Facts, row: Capability) -> float:
    """Pooling: `taps` operations per output element."""
    nbytes = facts["bytes"]
    arithmetic = facts["elements"] * facts.get("taps", 1) / (_peak(facts, row) * 0.25)
    if facts.get("layout") == "channels_last":
        arithmetic *= row.parameter("turned", 1.0)
    return float(CALL_NS + max(arithmetic, nbytes / bandwidth(facts, nbytes)))


def reference(facts: Facts, row: Capability) -> float:
    """NumPy in float64 on one core: every byte crosses twice, arithmetic at a fraction of the peak."""
    nbytes = facts["bytes"]
    work = facts.get("flops_estimate", 4.0 * facts["elements"])
    return float(
        REFERENCE_CALL_NS + 8.0 * nbytes / facts["cpu.dram_bytes_per_ns"] + work / (0.05 * facts["cpu.flops_per_ns"])
    )


def cube(facts: Facts, row: Capability) -> float:
    """Matrix engine of one core: whole steps of mr x nr x depth, one a cycle, beside operands coming and results
    going."""
    if "queries" in facts:
        batch, m, n = facts["batch"] * facts["heads"], facts["queries"], facts["keys"]
        depths = [facts["depth"], facts["value_depth"]]
    else:
        batch, m, n, depths = facts["batch"], facts["m"], facts["n"], [facts["k"]]
    deep = facts["aicore.cube_depth"]
    steps = batch * -(-m // row.tile_size("mr")) * -(-n // row.tile_size("nr")) * sum(-(-k // deep) for k in depths)
    arithmetic = steps / (facts["aicore.cube_steps_per_ns"] * row.parameter("efficiency", 0.8))
    coming, going = _coming_and_going(facts)
    moving = coming / facts["aicore.to_cube_bytes_per_ns"], going / facts["aicore.from_cube_bytes_per_ns"]
    return float(facts["aicore.startup_ns"] + max(arithmetic, *moving))


def vector(facts: Facts, row: Capability) -> float:
    """Vector engine of one core: `operations` per element beside elements coming and going."""
    coming, going = _coming_and_going(facts)
    arithmetic = facts["elements"] * _itemsize(facts) * row.parameter("operations", 2.0) * facts.get("taps", 1)
    moving = coming / facts["aicore.to_vector_bytes_per_ns"], going / facts["aicore.from_vector_bytes_per_ns"]
    return float(facts["aicore.startup_ns"] + max(arithmetic / facts["aicore.vector_bytes_per_ns"], *moving))


def _coming_and_going(facts: Facts) -> tuple[float, float]:
    """Bytes read and bytes written."""
    going = facts["elements"] * _itemsize(facts)
    return max(0.0, facts["bytes"] - going), float(going)


def control(facts: Facts, row: Capability) -> float:
    """Control unit of one core: an element at a time, each a trip to global memory and back."""
    return float(facts["elements"] * row.parameter("loads", 2.0) * facts["aicore.load_ns"])


def device_reference(facts: Facts, row: Capability) -> float:
    """NumPy on the driving machine: every operand leaves the device and comes back."""
    return float(REFERENCE_CALL_NS + 16.0 * facts["bytes"] / facts["aicore.from_vector_bytes_per_ns"])


def weight_panels(facts: Facts, row: Capability) -> Mapping[str, int]:
    """A constant factor in panels of nr columns, zero-padded."""
    nr = row.tile_size("nr")
    return {"packed": facts["batch"] * (-(-facts["n"] // nr) * nr) * facts["k"] * _itemsize(facts, 1)}


def narrow_panels(facts: Facts, row: Capability) -> Mapping[str, int]:
    """Such panels of a share of the bytes, depths padded to words, with a scale and a sum per column."""
    nr = row.tile_size("nr", 4 * _lanes(facts))
    count = facts["m"] if "taps" in facts else facts["batch"] * facts["n"]
    columns = -(-count // nr) * nr if "taps" in facts else count + facts["batch"] * nr
    return {"packed": int(columns * (4 * (facts["k"] + 3) * row.parameter("weights", 1.0) + 8))}


def filter_panels(facts: Facts, row: Capability) -> Mapping[str, int]:
    """Constant filters in panels of mr output channels, zero-padded."""
    mr, groups = row.tile_size("mr"), facts["groups"]
    return {"packed": groups * (-(-facts["m"] // mr) * mr) * facts["k"] * _itemsize(facts, 1)}


def _accumulator_bytes(facts: Facts) -> int:
    return 8 if facts.get("in0.dtype") is DType.F64 else 4


def product_scratch(facts: Facts, row: Capability) -> Mapping[str, int]:
    """The parked register tile; a copy of left rows where they are not accumulators already, as many as are near; for
    computed right factors, a panel of them."""
    item, vector = _accumulator_bytes(facts), facts["cpu.vector_bytes"]
    m, k = facts["m"], facts["k"]
    total = 64 + 32 * vector
    if facts["in0.dtype"] not in (DType.F32, DType.F64) or facts["in0.source"] == "program" or facts["weight"] == 0:
        line = (k + 64) * item
        total += min((m + 16) * line, facts["cpu.l2_bytes"] * 2 // 5 + 16 * line)
    if row.persistent is None:
        total += k * vector * (8 if m <= 6 else 4)
    return {"scratch": total}


def narrow_scratch(facts: Facts, row: Capability) -> Mapping[str, int]:
    """The parked register tile, narrow copies of rows (at most as f32 values of all parts), as many as are near, and
    the row that is being copied."""
    m, k, vector = facts["n" if "taps" in facts else "m"] * facts["batch"], facts["k"], facts["cpu.vector_bytes"]
    line = (row.parameter("parts", 1.0) * k + 64) * 4
    tall = row.tile_size("mr", 16)
    near = min((m + tall) * line, facts["cpu.l2_bytes"] * 2 // 5 + tall * line)
    return {"scratch": int(64 + 32 * vector + near + 4 * k + 4 * vector)}


def patch(facts: Facts, row: Capability) -> Mapping[str, int]:
    """The padded input under one block of output positions, for all channels of a group, and the parked register
    tile."""
    columns = max(1, min(facts["out_columns"], _BLOCK_POSITIONS))
    rows = min(facts["pixels"] // columns, -(-_BLOCK_POSITIONS // columns)) + 1
    high = rows * facts["stride_rows"] + facts["window_rows"]
    wide = columns * facts["stride_columns"] + facts["window_columns"] + 2 * facts["cpu.vector_bytes"]
    patch = 4 * facts["channels"] // facts["groups"] * high * wide
    tile = 16 * 4 * (_BLOCK_POSITIONS + 2 * facts["cpu.vector_bytes"])
    unit_strides = facts["stride_rows"] == facts["stride_columns"] == facts["taps"] == 1
    if unit_strides and not any(facts.get("attr.pads") or ()) and facts["in0.source"] == "dense":
        return {"scratch": tile}
    return {"scratch": min(patch, max(facts["cpu.l2_bytes"], patch // rows)) + tile}


def channel_panels(facts: Facts, row: Capability) -> Mapping[str, int]:
    """Constant filters in panels of whole vectors of output channels, zero-padded."""
    return {"packed": 4 * facts["groups"] * _padded_filters(facts) * facts["k"]}


def narrow_filters(facts: Facts, row: Capability) -> Mapping[str, int]:
    """Constant filters in words of two values, runs of odd length padded."""
    return {"packed": 2 * facts["groups"] * _padded_filters(facts) * (facts["k"] + facts["taps"])}


def byte_filters(facts: Facts, row: Capability) -> Mapping[str, int]:
    """Constant filters in words of four bytes, runs padded, with sums per row of the window and scales."""
    per_filter = facts["k"] + 3 * facts["taps"] + 4 * facts["window_rows"] + 4
    return {"packed": facts["groups"] * _padded_filters(facts) * per_filter}


def squares_filters(facts: Facts, row: Capability) -> Mapping[str, int]:
    """Transformed filters in such panels, of narrow ones pairs of channels."""
    side, share = int(row.figures["m"]) + 2, row.parameter("weights", 1.0)
    channels = facts["channels"] + (facts["channels"] % 2 if share < 1 else 0)
    return {"packed": int(4 * share * side * side * channels * _padded_filters(facts))}


def _padded_filters(facts: Facts) -> int:
    """The last panel may be half empty, its last vector too."""
    lanes, filters = _lanes(facts), int(facts["m"])
    return filters + max(lanes, filters // 2) + 2 * lanes


def patch_nhwc(facts: Facts, row: Capability) -> Mapping[str, int]:
    """The padded input under some output rows, all channels of a group, and a parked register tile."""
    columns, lanes = max(1, facts["out_columns"]), _lanes(facts)
    rows = max(1, facts["pixels"] // columns)
    wide = columns * facts["stride_columns"] + facts["window_columns"]
    line = 4 * facts["channels"] // facts["groups"] * wide
    lines, high = (n * facts["stride_rows"] + facts["window_rows"] for n in (1, rows))
    return {"scratch": min(line * high, max(facts["cpu.l2_bytes"] // 2, line * lines)) + 4 * 14 * 6 * lanes}


def patch_bytes(facts: Facts, row: Capability) -> Mapping[str, int]:
    """The padded input under some output rows as bytes, one row of it in f32, and a parked register tile."""
    columns, lanes = max(1, facts["out_columns"]), _lanes(facts)
    if facts["taps"] == 1 and facts["in0.source"] == "program":  # rows and columns may be one dimension
        columns = max(1, facts["pixels"])
    rows = max(1, facts["pixels"] // columns)
    wide = columns * facts["stride_columns"] + facts["window_columns"]
    line = facts["channels"] // facts["groups"] * wide
    lines, high = (n * facts["stride_rows"] + facts["window_rows"] for n in (1, rows))
    patch = min((line + 128) * high, max(facts["cpu.l2_bytes"] // 3, (line + 128) * lines))
    return {"scratch": patch + 4 * line + 4 * 14 * 6 * lanes + 128}


def squares(facts: Facts, row: Capability) -> Mapping[str, int]:
    """Transformed inputs and products of some rows of squares, or their padded inputs."""
    m, lanes = int(row.figures["m"]), _lanes(facts)
    columns = max(1, facts["out_columns"])
    wide, high = -(-columns // m), -(-facts["pixels"] // columns // m)
    panel = 6 * lanes

    def near(rows: int) -> int:
        squares = rows * wide
        patch = (rows * m + 2) * (wide * m + 2) * facts["channels"]
        planes = (m + 2) ** 2
        return int(4 * (planes * (squares * facts["channels"] + 32) + max(planes * squares * panel, patch)))

    filters = 4 * (m + 2) ** 2 * facts["channels"] * facts["m"]
    most = facts["cpu.l2_bytes"] * (6 if filters < facts["cpu.l2_bytes"] else 41) // 8
    return {"scratch": min(near(high), max(most, near(1))) + 4 * m * m * lanes}


def lines(facts: Facts, row: Capability) -> Mapping[str, int]:
    """Two lines of windows in the accumulator's type."""
    return {"scratch": 2 * 8 * (facts["input_columns"] + 4 * facts["cpu.vector_bytes"])}


def one_row(facts: Facts, row: Capability) -> Mapping[str, int]:
    """A row kept between the passes over it, or a block of neighbouring rows where they are not contiguous."""
    block = min(facts["inner"], facts["cpu.vector_bytes"])
    return {"scratch": (facts["row"] + facts.get("attr.size", 0)) * block * _accumulator_bytes(facts) + 128}


def score_block(facts: Facts, row: Capability) -> Mapping[str, int]:
    """A block of query rows with their results, one block of keys (and what share is kept of its values), and the
    scores of a tile."""
    depth = max(facts["depth"], facts["value_depth"]) + facts["cpu.vector_bytes"]
    rows, keys = _BLOCK_ROWS + row.tile_size("mr"), 2 * facts["cpu.vector_bytes"]
    panels = (1.0 + row.parameter("kept_values", 0.0)) * depth + row.tile_size("mr")
    return {"scratch": 4 * (rows * (2 * depth + 3) + int(panels * keys)) + 512}


def all_operands(facts: Facts, row: Capability) -> Mapping[str, int]:
    """What the reference allocates: every operand in float64."""
    return {"host": 2 * facts["bytes"]}


def workspace_of(row: Capability, facts: Facts) -> dict[str, int]:
    """Bytes per memory region that the row needs for the problem, temporary and persistent; {} where the problem's own
    facts are missing (an ill-formed problem fails other clauses)."""
    models = [model for model in (row.workspace, row.persistent) if model is not None]
    try:
        return {region: count for model in models for region, count in model(facts, row).items()}
    except KeyError:
        return {}
