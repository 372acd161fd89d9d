"""The entry points of the package: `compile`, `compile_dynamic`, `from_pretrained`, `load` and `export`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import index
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from superkernel.backends import all_backends, backend_of, kernel_of
from superkernel.core.collection import paused
from superkernel.core.dtypes import DType
from superkernel.core.errors import InputError, UnsupportedError, Violation, raise_all
from superkernel.core.files import file_name, is_file, is_folder
from superkernel.core.option import HOST, did_you_mean
from superkernel.core.options import Options
from superkernel.core.tensor import InputShape
from superkernel.target.base import Target
from superkernel.target.cpu import THREADS_MAX

if TYPE_CHECKING:
    import networkx as nx
    from numpy.typing import NDArray

    from superkernel.backends.aicore.kernel import AicoreKernel
    from superkernel.backends.host.kernel import HostKernel
    from superkernel.compilation.library import Library
    from superkernel.compilation.stages import Later
    from superkernel.ir.graph import Graph
    from superkernel.runtime.causal import CausalLM
    from superkernel.runtime.dynamic import DynamicKernel
    from superkernel.runtime.kernel import Kernel
    from superkernel.target.aicore import AicoreTarget

    Source = Graph | nx.DiGraph[Any] | str | PathLike[str] | Any

CHUNKS = (1, 8, 64, 256)
"""Numbers of tokens that one launch of a language model appends, unless others are asked for."""


@overload
def compile(
    graph: Source,
    target: Literal["host"] = ...,
    threads: int | None = ...,
    options: Options | Mapping[str, Any] | None = ...,
    *,
    dims: Mapping[str, int] | None = ...,
    shapes: Mapping[str, InputShape] | None = ...,
    constants: Mapping[str, Any] | None = ...,
    example_inputs: Sequence[Any] | Mapping[str, Any] | None = ...,
) -> HostKernel: ...
@overload
def compile(
    graph: Source,
    target: AicoreTarget | Literal["a3", "a2", "mini"],
    threads: int | None = ...,
    options: Options | Mapping[str, Any] | None = ...,
    *,
    dims: Mapping[str, int] | None = ...,
    shapes: Mapping[str, InputShape] | None = ...,
    constants: Mapping[str, Any] | None = ...,
    example_inputs: Sequence[Any] | Mapping[str, Any] | None = ...,
) -> AicoreKernel: ...
@overload
def compile(
    graph: Source,
    target: str | PathLike[str] | Target,
    threads: int | None = ...,
    options: Options | Mapping[str, Any] | None = ...,
    *,
    dims: Mapping[str, int] | None = ...,
    shapes: Mapping[str, InputShape] | None = ...,
    constants: Mapping[str, Any] | None = ...,
    example_inputs: Sequence[Any] | Mapping[str, Any] | None = ...,
) -> Kernel: ...
def compile(
    graph: Graph | nx.DiGraph[Any] | str | PathLike[str] | Any,
    target: str | PathLike[str] | Target = HOST,
    threads: int | None = None,
    options: Options | Mapping[str, Any] | None = None,
    *,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, InputShape] | None = None,
    constants: Mapping[str, Any] | None = None,
    example_inputs: Sequence[Any] | Mapping[str, Any] | None = None,
) -> Kernel:
    """Fuse a graph into one kernel.

    graph: a `superkernel.Graph`, a networkx DiGraph/MultiDiGraph (docs/graph-format.md), a path to an .onnx, .pt2 or
        node-link .json file, an `onnx.ModelProto` or its bytes, a `torch.nn.Module` or a
        `torch.export.ExportedProgram`; or a .gguf file or a folder with config.json and safetensors, of which it is the
        launch that appends `dims["tokens"]` tokens to a language model's context (`from_pretrained` makes the whole
        model).
    target: "host", the CPU at hand; a microcontroller's core ("cortex-m55"), for `export`; or an accelerator: a preset
        ("a3", "a2", "mini"), the path of a target file (docs/hardware.md), or what `load_target` returned. Its kernels
        run on a simulator.
    threads: host: worker threads, the calling one included; default: all CPUs that the process may use, as far as
        the quota of its control groups goes. More than there are CPUs works, slowly, with a warning. An accelerator's
        cores are its target's.
    options: `Options`, or a mapping of their names.
    dims, shapes, constants: of an ONNX model: values of symbolic dimensions, whole shapes of inputs (of a sequence of
        tensors, those of its elements), and values of inputs that are to be fixed (those that decide a shape must be).
    example_inputs: of a torch module: a tuple of inputs, or a mapping of inputs by name. Types, shapes and nesting
        matter; what is no tensor is fixed to its value.

    Raises GraphError, InputError, FileFormatError (fix the input), UnsupportedError (cannot be compiled),
    MachineError."""
    with paused():
        from superkernel.frontends import load_graph

        found, count, chosen = resolved(target), thread_count(threads), Options.of(options)
        backend = backend_of(found)
        raise_all(UnsupportedError, backend.refusals(found, chosen, threads))
        source = _existing_file(graph) if isinstance(graph, (str, PathLike)) else graph
        loaded = load_graph(
            source,
            dims=_checked_dims(dims),
            shapes=_checked_shapes(shapes),
            constants=constants,
            example_inputs=example_inputs,
        )
        from superkernel.compilation.pipeline import compile_graph

        return kernel_of(compile_graph(loaded, found, chosen, backend, threads=count))


def compile_dynamic(
    source: str | PathLike[str] | Callable[..., object] | Any,
    dims: Mapping[str, tuple[int, int]],
    target: str | PathLike[str] | Target = HOST,
    threads: int | None = None,
    options: Options | Mapping[str, Any] | None = None,
    *,
    constants: Mapping[str, Any] | None = None,
    example_inputs: Sequence[Any] | Mapping[str, Any] | None = None,
    dynamic_shapes: Mapping[str, Any] | Sequence[Any] | None = None,
    buckets: Mapping[str, Sequence[int]] | None = None,
) -> DynamicKernel:
    """One kernel object for sizes that change from call to call: `DynamicKernel`.

    source: a path to an .onnx file or an `onnx.ModelProto` with symbolic dimensions; a torch module, exported program
        or .pt2 file with dynamic shapes; or a function that takes sizes by keyword and returns a graph, in any form
        that `compile` takes; the extents of its inputs must grow evenly.
    dims: least and largest size of each dimension; (n, n) fixes one.
    target, threads, options, constants, example_inputs: as of `compile`.
    dynamic_shapes: of torch sources, by input the dimension of each axis that has one, {"x": {0: "batch"}}: as
        `torch.export.export` takes it, with names or `Dim` objects. A module is exported with it. Of an exported
        program it names the dimensions; without it they are called as torch's symbols.
    buckets: rising sizes of dimensions, {"seq": (32, 64, 128)}. A call whose sizes there is no kernel for is run by
        that of the least ones listed that hold them: inputs are padded, results cut. Sizes beyond the last one listed,
        and dimensions without a list, are compiled as they are. UnsupportedError where it is not proved that results
        are the same whatever padding holds: here for a sample of each dimension, and by the first call of other sizes.

    Nothing is compiled yet. Raises InputError, FileFormatError, GraphError, UnsupportedError, MachineError."""
    from superkernel.compilation.pipeline import compile_graph
    from superkernel.frontends.dynamic import dynamic_source
    from superkernel.runtime.dynamic import DynamicKernel

    found, count, chosen = resolved(target), thread_count(threads), Options.of(options)
    backend = backend_of(found).of_one_object()
    raise_all(UnsupportedError, backend.refusals(found, chosen, threads))
    model = _existing_file(source) if isinstance(source, (str, PathLike)) else source

    def make(graph: Graph, states: Mapping[str, NDArray[Any]], later: Later) -> Kernel:
        return kernel_of(compile_graph(graph, found, chosen, backend, threads=count, later=later), states)

    ranges = _checked_ranges(dims)
    listed = _checked_buckets(buckets, ranges)
    named = dynamic_source(
        model, ranges, constants=constants, example_inputs=example_inputs, dynamic_shapes=dynamic_shapes
    )
    return DynamicKernel(named, make, listed)


def from_pretrained(
    source: str | PathLike[str] | Any,
    target: str | PathLike[str] | Target = HOST,
    threads: int | None = None,
    options: Options | Mapping[str, Any] | None = None,
    *,
    context: int | None = None,
    chunks: Sequence[int] = CHUNKS,
    dtype: DType | str | None = None,
    cache_dtype: DType | str | None = None,
) -> CausalLM:
    """A published language model with its cache: `CausalLM`.

    source: a folder with config.json and safetensors, as Hugging Face stores models; a .gguf file; or a module of
        transformers. GPT-2, Llama, Mistral, Qwen 2 and 3, Mixtral and Qwen's mixtures of experts. Nothing is fetched.
    target, threads, options: as of `compile`.
    context: how many tokens there is room for: the size of the caches. Default: what the model was made for, at most
        2048.
    chunks: numbers of tokens that one launch appends; a kernel is made for each when it is first needed.
    dtype: f32, f16 or bf16: what to compute in. Default: the type of the stored weights; f32 for weights in blocks of
        codes, which are multiplied as they are.
    cache_dtype: f32, f16 or bf16: what the caches hold, and attention is computed in. Default: `dtype` if it is given;
        else f16 for weights in blocks of codes, the type of the stored weights for others.

    Nothing is compiled yet. Raises InputError, FileFormatError, UnsupportedError, MachineError."""
    from superkernel.compilation.pipeline import compile_graph
    from superkernel.frontends.pretrained import read_decoder
    from superkernel.runtime.causal import CausalLM

    found, count, chosen = resolved(target), thread_count(threads), Options.of(options)
    backend = backend_of(found).of_one_object()
    raise_all(UnsupportedError, backend.refusals(found, chosen, threads))
    sizes = _sizes(chunks)
    if not sizes or 0 in sizes:
        raise InputError("not numbers of tokens", location="chunks", expected="integers >= 1", found=repr(chunks))
    decoder = read_decoder(source)
    room = decoder.context if context is None else _integer(context)
    if room is None or not 1 <= room <= decoder.positions_max:
        expected = f"1 to {decoder.positions_max}, for which the model was made"
        raise InputError("not a number of tokens", location="context", expected=expected, found=repr(context))
    kind = decoder.dtype if dtype is None else DType.of(dtype)
    kept = DType.of(cache_dtype) if cache_dtype is not None else decoder.cache_dtype if dtype is None else kind
    for name, each in (("dtype", kind), ("cache_dtype", kept)):
        if each not in (DType.F32, DType.F16, DType.BF16):
            is_stored = dtype is None and name == "dtype"
            hint = "the weights are of that type: dtype='f32' computes in another" if is_stored else ""
            expected = "f32, f16 or bf16"
            raise InputError("not a type to compute in", location=name, expected=expected, found=str(each), hint=hint)

    def make(graph: Graph, states: Mapping[str, NDArray[Any]], later: Later) -> Kernel:
        with paused():
            return kernel_of(compile_graph(graph, found, chosen, backend, threads=count, later=later), states)

    return CausalLM(decoder, room, sizes, make, dtype=kind, cache_dtype=kept)


def resolved(target: str | PathLike[str] | Target) -> Target:
    """The target of a name or of a file. Raises InputError."""
    if isinstance(target, Target):
        return target
    names: list[str] = []
    text = fspath(target) if isinstance(target, (str, PathLike)) else None
    for backend in all_backends():
        found: Target | None = backend.named(text) if isinstance(text, str) else None
        if found is not None:
            return found
        names += backend.names()
    if text is None:
        hint = "a torch module's inputs go to example_inputs=, other settings by name"
        raise InputError("not a target", expected=", ".join(names), found=f"a {type(target).__name__}", hint=hint)
    hint = did_you_mean([text], names) or "or the path of a target file"
    raise InputError("unknown target", expected=", ".join(names), found=repr(text), hint=hint)


def load(path: str | PathLike[str], *, threads: int | None = None) -> Kernel:
    """A kernel saved by `Kernel.save`. On another CPU or with another thread count it is compiled again from the
    saved graph. Raises FileFormatError on a file that is not whole."""
    with paused():
        from superkernel.backends.saved import load_saved

        return kernel_of(load_saved(path, thread_count(threads)))


def export(
    kernels: Kernel | Sequence[Kernel] | Mapping[str, Kernel | Sequence[Kernel]],
    path: str | PathLike[str],
    *,
    manifest: str | PathLike[str] | Sequence[str | PathLike[str]] = (),
    compiler: str | None = None,
) -> Library:
    """Kernels of the host or of a microcontroller as a library that programs in C and C++ call, without Python and
    LLVM (docs/libraries.md).

    kernels: one, several, or by the names that their models have in the library (default: those of their graphs). A
        model may have a kernel for each of several numbers of threads.
    path: `libNAME.so`, a shared library, or `libNAME.a`, a static one, as all of microcontrollers are. Its header,
        `NAME.h`, is written beside it.
    manifest: files of `superkernel kernels dump` or `merge`: the library holds no kernels but those listed.
    compiler: the C++ compiler that builds the runtime and links; default: $CXX, c++, g++ or clang++.

    Raises InputError; UnsupportedError where NumPy computes a part of a model, and on an accelerator; ManifestError
    where a model needs a kernel that is not listed; MachineError without a compiler."""
    from superkernel.runtime.kernel import Kernel

    file, models = file_name(path), dict[str, list[Any]]()
    for name, kernel in _by_name(kernels):
        if not isinstance(kernel, Kernel):
            raise InputError("not a kernel", location="argument 'kernels'", found=f"a {type(kernel).__name__}")
        if not isinstance(name, str | None):
            raise InputError("not a name for a model", location="argument 'kernels'", found=repr(name))
        models.setdefault(kernel.name if name is None else name, []).append(kernel._compiled)
    if not models:
        raise InputError("a library of no models", location="argument 'kernels'", expected="at least one kernel")
    targets = [made.target for plans in models.values() for made in plans]
    if len({target.kind for target in targets}) > 1:
        raise InputError("kernels of two kinds of targets", found=", ".join(sorted({str(t.kind) for t in targets})))
    listed = [manifest] if isinstance(manifest, (str, PathLike)) else manifest
    return backend_of(targets[0]).export(models, file, [str(file_name(one)) for one in listed], compiler)


def _by_name(kernels: Any) -> Iterator[tuple[str | None, Any]]:
    """All kernels, with the names that they are given."""
    given = kernels.items() if isinstance(kernels, Mapping) else [(None, kernels)]
    for name, some in given:
        yield from ((name, kernel) for kernel in (some if isinstance(some, (list, tuple)) else [some]))


def thread_count(threads: int | None) -> int | None:
    """The number of workers asked for, checked; None: nobody asked."""
    if threads is None:
        return None
    count = _integer(threads)
    if count is None or not 1 <= count <= THREADS_MAX:
        raise InputError("bad number of threads", expected=f"an integer, 1 to {THREADS_MAX}", found=repr(threads))
    return count


def _existing_file(name: str | PathLike[str]) -> Path:
    """The path of a model. Raises InputError on what can be none, where the system would raise ValueError."""
    from superkernel.backends.saved import ELF_HINT, is_saved_kernel
    from superkernel.core.files import is_elf

    text = fspath(name)
    if not isinstance(text, str) or not text or "\0" in text:
        raise InputError("not the name of a file", found=repr(text))
    path = Path(text)
    if is_folder(path) and not is_file(path / "config.json"):
        expected = "an .onnx, .pt2, .json or .gguf file, or a folder with config.json"
        raise InputError("a directory, not a file", location=f"file {text!r}", expected=expected)
    if is_saved_kernel(path):
        raise InputError("a saved kernel, not a model", location=f"file {text!r}", hint="read it with superkernel.load")
    if is_elf(path):
        raise InputError("an accelerator's program, not a model", location=f"file {text!r}", hint=ELF_HINT)
    return path


def _integer(value: Any) -> int | None:
    """Python's and NumPy's integers as int; None where it is something else, truth values included."""
    if isinstance(value, bool):
        return None
    try:
        return index(value)
    except TypeError:
        return None


def _checked_ranges(dims: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Ranges of dimensions. Raises InputError with all that are none."""
    if not isinstance(dims, Mapping):
        raise InputError("dims is not a mapping", expected="{name: (least, largest)}", found=type(dims).__name__)
    checked: dict[str, tuple[int, int]] = {}
    wrong = []
    for name, pair in dims.items():
        sizes = _sizes(pair)
        if not isinstance(name, str):
            wrong.append(Violation("not the name of a dimension", f"dimension {name!r}", "a text", type(name).__name__))
        elif sizes is None or len(sizes) != 2 or not 0 < sizes[0] <= sizes[1]:
            wrong.append(Violation("not a range", f"dimension {name!r}", "(least, largest), 1 or more", repr(pair)))
        else:
            checked[name] = sizes[0], sizes[1]
    raise_all(InputError, wrong)
    return checked


def _checked_buckets(
    buckets: Mapping[str, Sequence[int]] | None, ranges: Mapping[str, tuple[int, int]]
) -> dict[str, tuple[int, ...]]:
    """Sizes of buckets by dimension. Raises InputError with all that are none."""
    if not isinstance(buckets, Mapping | None):
        raise InputError("buckets is not a mapping", expected="{name: (size, ...)}", found=type(buckets).__name__)
    checked: dict[str, tuple[int, ...]] = {}
    wrong = []
    for name, listed in (buckets or {}).items():
        sizes, where = _sizes(listed), f"buckets of {name!r}"
        if name not in ranges:
            wrong.append(
                Violation(f"no dimension {name!r}", where, ", ".join(ranges), hint=did_you_mean([name], ranges))
            )
        elif (
            not sizes
            or list(sizes) != sorted(set(sizes))
            or not ranges[name][0] <= sizes[0] <= sizes[-1] <= ranges[name][1]
        ):
            low, high = ranges[name]
            wrong.append(Violation("not sizes of buckets", where, f"rising sizes, {low} to {high}", repr(listed)))
        else:
            checked[name] = sizes
    raise_all(InputError, wrong)
    return checked


def _checked_dims(dims: Mapping[str, int] | None) -> dict[str, int]:
    """Symbolic dimensions as sizes. Raises InputError with all that are none."""
    if not isinstance(dims, Mapping | None):
        raise InputError("dims is not a mapping", expected="{name: size}", found=type(dims).__name__)
    sizes = {name: _integer(size) for name, size in (dims or {}).items()}
    wrong = [
        Violation("not a size", f"dimension {name!r}", "an integer >= 0", repr((dims or {})[name]))
        for name, size in sizes.items()
        if size is None or size < 0
    ]
    raise_all(InputError, wrong)
    return {name: size for name, size in sizes.items() if size is not None}


def _checked_shapes(shapes: Mapping[str, InputShape] | None) -> dict[str, InputShape]:
    """Shapes of inputs as tuples of sizes, of sequences as tuples of those. Raises InputError with all others."""
    if not isinstance(shapes, Mapping | None):
        raise InputError("shapes is not a mapping", expected="{name: (size, ...)}", found=type(shapes).__name__)
    checked: dict[str, InputShape] = {}
    wrong: list[Violation] = []
    for name, shape in (shapes or {}).items():
        listed = isinstance(shape, list | tuple) and bool(shape) and all(isinstance(s, list | tuple) for s in shape)
        sizes = [_sizes(s) for s in shape] if listed else [_sizes(shape)]
        if None in sizes:
            wrong.append(Violation("not a shape", f"shape of {name!r}", "integers >= 0", repr(shape)))
        found = tuple(s for s in sizes if s is not None)
        checked[name] = found if listed else next(iter(found), ())
    raise_all(InputError, wrong)
    return checked


def _sizes(shape: Any) -> tuple[int, ...] | None:
    """A shape as a tuple; None where it is none."""
    sizes = [_integer(d) for d in shape] if isinstance(shape, Iterable) else [None]
    return None if any(d is None or d < 0 for d in sizes) else tuple(d for d in sizes if d is not None)
