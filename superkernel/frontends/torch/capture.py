"""torch module -> exported program in the form that the importer walks: no writes in place, every operator either in
the table of lowerings or decomposed as far as torch can.

The caller's module is never changed: a module in training mode is exported as a copy in inference mode that shares its
parameters and buffers. Decomposition costs as much as the export itself, so it is left out where nothing needs it:
activations and sums in place, which most networks of convolutions have, are replaced here where what they write to is
nobody else's.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch._dynamo.convert_frame import compile_lock
from torch.utils import _pytree as pytree

from superkernel.core.errors import (
    FileFormatError,
    InputError,
    MachineError,
    SuperKernelError,
    UnsupportedError,
    Violation,
    raise_all,
)
from superkernel.frontends.torch.call import is_getitem
from superkernel.frontends.torch.numbers import computes_number
from superkernel.frontends.torch.registry import is_lowered, lowering_of

Program: TypeAlias = torch.export.ExportedProgram
_DECOMPOSITIONS = torch._decomp.decomposition_table
_ROUNDS = 3


def captured(
    module: torch.nn.Module, example_inputs: Sequence[Any] | Mapping[str, Any] | None, dynamic_shapes: Any = None
) -> Program:
    """The module as a program for inputs like the examples, or of other extents where `dynamic_shapes` (of
    `torch.export.export`) has dimensions. Raises InputError, UnsupportedError."""
    module = getattr(module, "_orig_mod", module)  # what torch.compile wrapped
    if isinstance(module, torch.jit.ScriptModule):
        raise UnsupportedError("a TorchScript module", hint="give the nn.Module that it was made from")
    args, kwargs = _examples(module, example_inputs)
    infers = _inferring(module)
    try:
        with tracing(), torch.no_grad():
            apart = pytree.tree_map_only(torch.Tensor, _alone, (args, kwargs))
            program = torch.export.export(infers, *apart, dynamic_shapes=dynamic_shapes, strict=False)
    except Exception as error:
        raise _blame(infers, args, kwargs, error) from error
    _without_dropout(program)
    _write_apart(program)
    return program


def read(path: Path) -> Program:
    """The program of a .pt2 file. Raises InputError, FileFormatError, MachineError."""
    where = f"file {str(path)!r}"
    try:
        with tracing():
            return torch.export.load(str(path))
    except FileNotFoundError as error:
        raise InputError("no such file", location=where) from error
    except OSError as error:
        raise MachineError("the file cannot be read", location=where, found=str(error)) from error
    except Exception as error:  # torch raises whatever its readers meet
        found = f"{type(error).__name__}: {_first_line(error)}"
        hint = "it must be written by torch.export.save, by a torch that is not newer"
        raise FileFormatError("not a readable exported program", location=where, found=found, hint=hint) from error


def lowerable(program: Program) -> Program:
    """The program without writes in place, and without what torch can decompose and the table cannot lower. Raises
    UnsupportedError where a shape depends on data."""
    if not any(_writes(n) for n in program.graph.nodes) and not _unknown(program):
        return program
    table = torch.export.exported_program.default_decompositions()
    for operator in list(table):
        if is_lowered(str(operator)):
            del table[operator]
    try:
        with tracing(), torch.no_grad():
            program = program.run_decompositions(table)
            return _further(program)
    except torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode as error:
        hint = "a mask as an index, for one; torch.where keeps the shape"
        raise UnsupportedError("a shape depends on data", found=_first_line(error), hint=hint) from error
    except SuperKernelError:
        raise
    except Exception as error:  # torch's passes raise whatever their checks meet
        found = f"{type(error).__name__}: {_first_line(error)}"
        hint = "a buffer that is written to must be registered under one name"
        raise UnsupportedError("torch cannot decompose the program", found=found, hint=hint) from error


def _further(program: Program) -> Program:
    """With what torch decomposes only when asked to by name; the program itself where that does not lead all the way:
    errors then name operators that somebody wrote."""
    taken = program
    for _ in range(_ROUNDS):
        unknown = _unknown(taken)
        if not unknown:
            return taken
        if not unknown <= _DECOMPOSITIONS.keys():
            break
        taken = taken.run_decompositions({t: _DECOMPOSITIONS[t] for t in unknown})
    return program


def _unknown(program: Program) -> set[Any]:
    """The needed operators without a lowering."""
    used = (n for n in needed_nodes(program.graph) if n.op == "call_function" and not is_getitem(n))
    return {n.target for n in used if lowering_of(n) is None and not computes_number(n)}


def needed_nodes(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """The nodes that outputs and written buffers depend on, in order; assertions and dead code are not among them."""
    needed: set[torch.fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or node in needed:
            needed.add(node)
            needed.update(node.all_input_nodes)
    return [n for n in graph.nodes if n in needed]


def refuse_dynamic(program: Program) -> None:
    """Raises UnsupportedError that lists every dynamic dimension of the inputs."""
    wrong = []
    inputs = set(program.graph_signature.user_inputs)
    for node in program.graph.nodes:
        value = node.meta.get("val") if node.op == "placeholder" and node.name in inputs else None
        if isinstance(value, torch.SymInt):
            wrong.append(Violation("a dynamic number", f"input {node.name!r}", "a static one", str(value)))
        for axis, extent in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if not isinstance(extent, int):
                hint = "leave dynamic_shapes out of torch.export.export, or use superkernel.compile_dynamic"
                where = f"input {node.name!r}, axis {axis}"
                wrong.append(Violation("dynamic dimension", where, "a static size", str(extent), hint))
    raise_all(UnsupportedError, wrong)


def _writes(node: torch.fx.Node) -> bool:
    """True of operators that change an argument."""
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and bool(schema.is_mutable)


_FRESH = frozenset(
    f"aten.{name}"
    for name in (
        "conv1d", "conv2d", "conv3d", "conv_transpose2d", "convolution", "linear", "matmul", "addmm", "batch_norm",
        "layer_norm", "group_norm", "add", "sub", "mul", "div", "cat", "relu", "relu6", "silu", "hardswish",
        "hardsigmoid", "hardtanh", "leaky_relu", "elu", "sigmoid", "tanh", "gelu", "softmax", "mean", "max_pool2d",
        "avg_pool2d", "adaptive_avg_pool2d",
    )
)  # fmt: skip
"""Operators whose results are always memory of their own: views, and what at times hands its input on, are not here."""
_IN_PLACE = frozenset(
    f"aten.{name}_"
    for name in (
        "add", "mul", "relu", "relu6", "silu", "hardswish", "hardsigmoid", "hardtanh", "leaky_relu", "elu", "sigmoid",
    )
)  # fmt: skip


def _without_dropout(program: Program) -> None:
    """Lets what reads a dropout's result read its input, the very same tensor when a module infers; torch's
    decompositions take them for two, and lose what is written to either."""
    for node in list(program.graph.nodes):
        if str(node.target) == "aten.dropout.default" and not node.args[2]:
            for user in [u for u in node.users if u.op == "call_function"]:
                user.replace_input_with(node, node.args[0])
            if not node.users:
                program.graph.erase_node(node)


def _write_apart(program: Program) -> None:
    """Lets operators that change their first argument in place give a result of its own instead, in the program itself,
    where that is seen to be the same: the argument was computed by an operator of `_FRESH`, all others that read it are
    such operators too, and types agree. Who reads it later reads the result."""
    order = {node: place for place, node in enumerate(program.graph.nodes)}
    for node in program.graph.nodes:
        if node.op != "call_function" or str(getattr(node.target, "overloadpacket", "")) not in _IN_PLACE:
            continue
        written = node.args[0]
        others = [user for user in written.users if user is not node]
        plain = getattr(getattr(torch.ops.aten, node.target.overloadpacket.__name__[:-1]), node.target._overloadname)
        kinds = {getattr(n.meta.get("val"), "dtype", None) for n in (node, *node.all_input_nodes)}
        if len(kinds) > 1 or not all(map(_is_fresh, (written, *others))):
            continue
        node.target = plain
        for user in others:
            if order[user] > order[node]:
                user.replace_input_with(written, node)
    program.graph_module.recompile()


def _is_fresh(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and str(getattr(node.target, "overloadpacket", "")) in _FRESH


def _examples(
    module: torch.nn.Module, given: Sequence[Any] | Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Example inputs as what the module is called with; NumPy arrays become tensors."""
    if given is None:
        hint = "superkernel.compile(module, example_inputs=(x, ...)): tensors of the types and shapes to compile for"
        raise InputError("a torch module without example inputs", location=type(module).__name__, hint=hint)
    if isinstance(given, (torch.Tensor, np.ndarray)):
        given = (given,)
    if isinstance(given, Mapping):
        return (), {str(k): _as_tensor(v) for k, v in given.items()}
    if isinstance(given, (tuple, list)):
        return tuple(_as_tensor(v) for v in given), {}
    expected = "a tuple of tensors, or a mapping of names to tensors"
    raise InputError("not example inputs", location="example_inputs", expected=expected, found=type(given).__name__)


def _as_tensor(value: Any) -> Any:
    return torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) else value


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in memory of its own: of two views of one, torch takes the sizes to be dynamic."""
    return tensor.detach().clone()


def _inferring(module: torch.nn.Module) -> torch.nn.Module:
    """The module where all of it is in inference mode, else a copy that is, with the same parameters and buffers."""
    if not any(m.training for m in module.modules()):
        return module
    shared: dict[int, Any] = {id(t): t for t in chain(module.parameters(), module.buffers())}
    try:
        return copy.deepcopy(module, shared).eval()
    except Exception as error:
        hint = "call module.eval() before"
        found = f"{type(error).__name__}: {_first_line(error)}"
        raise InputError("the module is in training mode and cannot be copied", found=found, hint=hint) from error


def _blame(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception
) -> SuperKernelError:
    """An error of the export: the examples' fault where the module does not run on them either, else a limit."""
    buffers = {name: t.clone() for name, t in module.named_buffers()}
    args, kwargs = pytree.tree_map_only(torch.Tensor, _alone, (args, kwargs))  # the module may write to them
    try:
        with torch.no_grad():
            torch.func.functional_call(module, buffers, args, kwargs)
    except SuperKernelError as failure:  # one of ours that the module raised
        return failure
    except Exception as failure:
        found = f"{type(failure).__name__}: {_first_line(failure)}"
        where = type(module).__name__
        return InputError("the module does not run on the example inputs", location=where, found=found)
    hint = "torch.export must be able to capture it: no control flow and no shapes that depend on data"
    if "specialized integer" in str(error) or "data-dependent" in str(error):
        hint += "; a tensor that is an index needs a dimension: shape (1,), not ()"
    if "transformers.cache_utils" in str(error):
        hint = "use_cache=False among the example inputs; with its cache: superkernel.from_pretrained(module)"
    why = [line.strip().removeprefix("- ") for line in str(error).splitlines() if line.strip().startswith("- ")]
    if "Constraints violated" in str(error) and why:  # of dynamic shapes; each dimension has a line
        what = "torch.export finds that it is not for all of these sizes"
        return UnsupportedError(what, location=type(module).__name__, found=" ".join(why)[:600])
    found = f"{type(error).__name__}: {_first_line(error)}"
    if "zuf" in str(error) or "SymFloat" in str(error):  # as torch writes floats that depend on data
        what, expected = "a number must be known", "a Python number"
        hint = "one that is read from a tensor, or changes between calls of torch.compile, decides nothing here"
        return UnsupportedError(what, location=type(module).__name__, expected=expected, found=found, hint=hint)
    return UnsupportedError("torch.export cannot capture it", location=type(module).__name__, found=found, hint=hint)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else ""


@contextmanager
def tracing(*ignored: type[Warning]) -> Iterator[None]:
    """One thread at a time, and never beside TorchDynamo, whose lock this is: torch replaces methods of all modules
    while it traces, and threads that cross leave them replaced. Silent about torch's deprecations, which nobody who
    compiles can act on, and the warnings `ignored`."""
    with compile_lock, warnings.catch_warnings():
        categories: tuple[type[Warning], ...] = (FutureWarning, DeprecationWarning, *ignored)
        for category in categories:
            warnings.simplefilter("ignore", category)
        yield
