"""RNN, GRU and LSTM, unrolled over time: one product for all inputs of a direction, then one step after another.

Sequences may end sooner: behind their end, where backwards they have not begun, their state stays and their outputs
are 0. What the standard leaves open is as in ONNX Runtime: `clip` does not bound an LSTM's cell, and a sequence of no
elements leaves a state of 0. Unrolling is bounded: longer sequences than `MAX_STEPS` are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from superkernel.builder.tensor import Tensor
from superkernel.frontends.onnx.call import OnnxCall
from superkernel.frontends.onnx.registry import lowers

MAX_STEPS = 512
Activation = Callable[[Tensor], Tensor]
_ACTIVATIONS: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "relu": ("relu", {}),
    "tanh": ("tanh", {}),
    "sigmoid": ("sigmoid", {}),
    "softsign": ("softsign", {}),
    "softplus": ("softplus", {}),
    "leakyrelu": ("leaky_relu", {"alpha": 0.01}),
    "thresholdedrelu": ("thresholded_relu", {"alpha": 1.0}),
    "elu": ("elu", {"alpha": 1.0}),
    "hardsigmoid": ("hard_sigmoid", {"alpha": 0.2, "beta": 0.5}),
    "scaledtanh": ("tanh", {"alpha": 1.0, "beta": 1.0}),
    "affine": ("identity", {"alpha": 1.0, "beta": 0.0}),
}
"""Activation -> operator, and what it takes of `activation_alpha` and `activation_beta`."""
_DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@dataclass
class _Direction:
    """Weights of one direction, cut out of the stacked ones."""

    w: Tensor  # [gates*hidden, input]
    r: Tensor  # [gates*hidden, hidden]
    wb: Tensor | None  # [gates*hidden]
    rb: Tensor | None
    peephole: list[Tensor] | None  # input, output, forget: [hidden]
    activations: list[Activation]
    alive: Tensor | None  # [steps, batch, 1]: whether the sequence goes on; None: all do


@lowers("RNN", "GRU", "LSTM")
def recurrent(call: OnnxCall) -> list[Tensor | None]:
    x = call.input(0)
    for operand in (x, call.input(1), call.input(2)):
        call.require_rank(operand, 3, 3)
    batch_first = bool(call.attr("layout", 0))
    if batch_first:
        x = call.transpose(x, (1, 0, 2))
    steps, batch, _ = x.shape
    if steps > MAX_STEPS:
        raise call.unsupported("the sequence is too long to unroll", expected=f"at most {MAX_STEPS} steps", found=steps)
    count, given = call.input(1).shape[0], call.attr("direction", "forward")
    if {count, call.input(2).shape[0]} != {2 if given == "bidirectional" else 1}:
        found = f"{call.input(1).type}, {call.input(2).type}"
        raise call.contradiction("weights of another number of directions", expected=given, found=found)
    if not steps:
        raise call.unsupported("a sequence of no elements is not supported", found=call.input(0).type)
    hidden, alive = call.input(2).shape[2], _alive(call, steps, batch)
    reverse = [given == "reverse"] if count == 1 else [False, True]
    sequences, last_h, last_c = [], [], []
    for d in range(count):
        h = _initial(call, 5, d, batch, hidden, x, batch_first)
        c = _initial(call, 6, d, batch, hidden, x, batch_first) if call.op == "LSTM" else None
        rows, h, c = _run(call, x, _direction(call, d, hidden, alive), h, c, reverse[d])
        sequences.append(call.emit("concat", *rows, axis=0) if len(rows) > 1 else rows[0])  # [T, 1, B, H]
        last_h.append(call.reshape(h, (1, batch, hidden)))
        if c is not None:
            last_c.append(call.reshape(c, (1, batch, hidden)))

    def joined(parts: list[Tensor], axis: int, perm: tuple[int, ...]) -> Tensor:
        whole = call.emit("concat", *parts, axis=axis) if len(parts) > 1 else parts[0]
        return call.transpose(whole, perm) if batch_first else whole

    y = joined(sequences, 1, (2, 0, 1, 3))
    return [y, joined(last_h, 0, (1, 0, 2)), joined(last_c, 0, (1, 0, 2)) if last_c else None]


def _pick(call: OnnxCall, x: Tensor, axis: int, begin: int, end: int) -> Tensor:
    call.require_rank(x, axis + 1)
    if (begin, end) == (0, x.shape[axis]):
        return x
    return call.emit("slice", x, starts=[begin], ends=[end], axes=[axis], steps=[1])


def _alive(call: OnnxCall, steps: int, batch: int) -> Tensor | None:
    given = call.optional(4)
    if given is None or (given.value.data is not None and bool((given.value.data == steps).all())):
        return None
    lengths = call.reshape(given, (1, batch, 1))
    return call.emit("less", call.constant(np.arange(steps).reshape(-1, 1, 1).astype(lengths.dtype.numpy)), lengths)


def _initial(call: OnnxCall, slot: int, d: int, batch: int, hidden: int, x: Tensor, batch_first: bool) -> Tensor:
    given = call.optional(slot)
    if given is None:
        return call.constant(np.zeros((batch, hidden), x.dtype.numpy))
    if batch_first:
        given = call.transpose(given, (1, 0, 2))
    return call.reshape(_pick(call, given, 0, d, d + 1), (batch, hidden))


def _direction(call: OnnxCall, d: int, hidden: int, alive: Tensor | None) -> _Direction:
    gates = _GATES[call.op]

    def matrix(slot: int) -> Tensor:
        stacked = call.input(slot)
        return call.reshape(_pick(call, stacked, 0, d, d + 1), stacked.shape[1:])

    wb = rb = None
    if call.has(3):
        both = matrix(3)
        wb, rb = _pick(call, both, 0, 0, gates * hidden), _pick(call, both, 0, gates * hidden, 2 * gates * hidden)
    peephole = None
    if call.op == "LSTM" and call.has(7):
        flat = matrix(7)
        peephole = [_pick(call, flat, 0, i * hidden, (i + 1) * hidden) for i in range(3)]
    per = len(_DEFAULTS[call.op])
    chosen = _activations(call)[d * per : (d + 1) * per]
    return _Direction(matrix(1), matrix(2), wb, rb, peephole, chosen, alive)


def _activations(call: OnnxCall) -> list[Activation]:
    """Those of all directions; each takes the next numbers of the two lists that it has use for."""
    names = call.attr("activations") or _DEFAULTS[call.op] * call.input(1).shape[0]
    left = {name: iter(call.attr(f"activation_{name}") or ()) for name in ("alpha", "beta")}
    limit = call.attr("clip")
    found: list[Activation] = []
    for given in names:
        name = str(given).lower()
        if name not in _ACTIVATIONS:
            expected = ", ".join(sorted(_ACTIVATIONS))
            raise call.unsupported("the activation is not supported", expected=expected, found=name)
        op, defaults = _ACTIVATIONS[name]
        numbers = {key: float(next(left[key], default)) for key, default in defaults.items()}
        of_cell = call.op == "LSTM" and len(found) % 3 == 2
        found.append(_activation(call, name, op, numbers, None if of_cell else limit))
    return found


def _activation(call: OnnxCall, name: str, op: str, numbers: Mapping[str, float], limit: float | None) -> Activation:
    def clipped(x: Tensor) -> Tensor:
        return x if limit is None else call.emit("clip", x, call.like(-limit, x), call.like(limit, x))

    def times(factor: float, x: Tensor) -> Tensor:
        return call.emit("mul", x, call.like(factor, x))

    if name == "scaledtanh":
        return lambda x: times(numbers["alpha"], call.emit("tanh", times(numbers["beta"], clipped(x))))
    if name == "affine":
        return lambda x: call.emit("add", times(numbers["alpha"], clipped(x)), call.like(numbers["beta"], x))
    return lambda x: call.emit(op, clipped(x), **numbers)


def _run(
    call: OnnxCall, x: Tensor, way: _Direction, h: Tensor, c: Tensor | None, reverse: bool
) -> tuple[list[Tensor], Tensor, Tensor | None]:
    """All steps of one direction; rows are in time order whatever the direction."""
    steps, batch, width = x.shape
    hidden = h.shape[1]
    flat = call.reshape(x, (steps * batch, width))
    inputs = call.emit("matmul", flat, way.w, trans_b=True)
    if way.wb is not None:
        inputs = call.emit("add", inputs, way.wb)
    step = {"RNN": _rnn, "GRU": _gru, "LSTM": _lstm}[call.op]
    rows: list[Tensor] = []
    if way.alive is not None:
        any_step = call.reshape(_pick(call, way.alive, 0, 0, 1), (batch, 1))
        h = call.emit("where", any_step, h, call.like(0.0, h))
        c = None if c is None else call.emit("where", any_step, c, call.like(0.0, c))
    for t in reversed(range(steps)) if reverse else range(steps):
        now = _pick(call, inputs, 0, t * batch, (t + 1) * batch)
        new, cell = step(call, way, now, h, c)
        row = new
        if way.alive is not None:
            alive = call.reshape(_pick(call, way.alive, 0, t, t + 1), (batch, 1))
            row = call.emit("where", alive, new, call.like(0.0, new))
            new = call.emit("where", alive, new, h)
            cell = None if cell is None or c is None else call.emit("where", alive, cell, c)
        h, c = new, cell
        rows.append(call.reshape(row, (1, 1, batch, hidden)))
    return (rows[::-1] if reverse else rows), h, c


def _recurrent_part(call: OnnxCall, way: _Direction, h: Tensor, begin: int, end: int) -> Tensor:
    y = call.emit("matmul", h, _pick(call, way.r, 0, begin, end), trans_b=True)
    return y if way.rb is None else call.emit("add", y, _pick(call, way.rb, 0, begin, end))


def _rnn(call: OnnxCall, way: _Direction, now: Tensor, h: Tensor, c: Tensor | None) -> tuple[Tensor, Tensor | None]:
    total = call.emit("add", now, _recurrent_part(call, way, h, 0, h.shape[1]))
    return way.activations[0](total), c


def _gru(call: OnnxCall, way: _Direction, now: Tensor, h: Tensor, c: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Gates z, r, h; `linear_before_reset` says whether r scales the state or its product."""
    n = h.shape[1]
    gate = call.emit("add", _pick(call, now, 1, 0, 2 * n), _recurrent_part(call, way, h, 0, 2 * n))
    both = way.activations[0](gate)
    z, r = _pick(call, both, 1, 0, n), _pick(call, both, 1, n, 2 * n)
    if call.attr("linear_before_reset", 0):
        part = call.emit("mul", r, _recurrent_part(call, way, h, 2 * n, 3 * n))
    else:
        part = _recurrent_part(call, way, call.emit("mul", r, h), 2 * n, 3 * n)
    new = way.activations[1](call.emit("add", _pick(call, now, 1, 2 * n, 3 * n), part))
    kept = call.emit("mul", z, h)
    fresh = call.emit("mul", call.emit("sub", call.like(1.0, z), z), new)
    return call.emit("add", fresh, kept), c


def _lstm(call: OnnxCall, way: _Direction, now: Tensor, h: Tensor, c: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Gates i, o, f, c."""
    assert c is not None
    n = h.shape[1]
    total = call.emit("add", now, _recurrent_part(call, way, h, 0, 4 * n))
    gates = [_pick(call, total, 1, k * n, (k + 1) * n) for k in range(4)]
    i, o, f, g = gates
    squash, squash_new, squash_cell = way.activations
    if way.peephole is not None:
        i = call.emit("add", i, call.emit("mul", way.peephole[0], c))
        f = call.emit("add", f, call.emit("mul", way.peephole[2], c))
    i = squash(i)
    f = call.emit("sub", call.like(1.0, i), i) if call.attr("input_forget", 0) else squash(f)
    c = call.emit("add", call.emit("mul", f, c), call.emit("mul", i, squash_new(g)))
    if way.peephole is not None:
        o = call.emit("add", o, call.emit("mul", way.peephole[1], c))
    return call.emit("mul", squash(o), squash_cell(c)), c
