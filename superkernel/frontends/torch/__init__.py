"""torch modules, exported programs and .pt2 files as graphs. The `torch` package is optional and only imported here,
once there is something of torch's to read.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from superkernel.core.errors import (
    FileFormatError,
    InputError,
    InternalError,
    MachineError,
    SuperKernelError,
    UnsupportedError,
)
from superkernel.core.files import refuse_device
from superkernel.frontends.dynamic_axes import DynamicInput, Ranges
from superkernel.ir.graph import Graph

if TYPE_CHECKING:
    import torch

    from superkernel.frontends.torch.sizes import SizedProgram

    Read = dict[tuple[Any, ...], NDArray[Any]]

OLDEST_TORCH = (2, 5)


def _check_archive(path: Path) -> None:
    """InputError, FileFormatError, MachineError where there is no archive to read: importing torch takes seconds."""
    where = f"file {str(path)!r}"
    try:
        refuse_device(path)
        with path.open("rb") as file:
            found = zipfile.is_zipfile(file)
    except FileNotFoundError as error:
        raise InputError("no such file", location=where) from error
    except OSError as error:
        raise MachineError(f"the file cannot be read: {error.strerror}", location=where) from error
    if not found:
        hint = "it must be written by torch.export.save"
        raise FileFormatError("not a readable exported program", location=where, expected="a zip archive", hint=hint)


def is_torch_source(source: object) -> bool:
    """True of a module or an exported program. Looks at names only: asking must not import torch."""
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(source).__mro__}
    return ("torch", "Module") in kinds or ("torch", "ExportedProgram") in kinds


def load_torch(
    source: torch.nn.Module | torch.export.ExportedProgram | str | Path,
    *,
    example_inputs: Sequence[Any] | Mapping[str, Any] | None = None,
    name: str = "",
) -> Graph:
    """A torch module as it infers (captured with `torch.export` for inputs like the examples), an exported program, or
    a .pt2 file that `torch.export.save` wrote.

    `example_inputs` belongs to a module: a sequence of positional inputs, or a mapping of inputs by name; only their
    types, shapes and nesting matter, and what is no tensor is fixed to its value. The module itself is left as it is.
    Inputs keep the names of the module's parameters; outputs are called "output", "output_0", ... or by the keys that
    the module returns them under. Parameters and buffers become constants, buffers that the module writes to become
    states.

    Raises InputError (the module fails on the examples), FileFormatError (not a readable .pt2 file), UnsupportedError
    (an operator, type, dynamic shape or control flow that cannot be compiled; all unknown operators at once),
    MachineError (no torch package, or too old a one).
    """
    _check_torch(source)
    from superkernel.frontends.torch import capture
    from superkernel.frontends.torch.importer import TorchImporter
    from superkernel.frontends.torch.sizes import SizedProgram, finds_sizes

    program, owned = _program(source, example_inputs)
    with _translated():
        capture.refuse_dynamic(program)
        program = capture.lowerable(program)
        if finds_sizes(program):
            return _counted(SizedProgram(program, {}), {}, name or _name(source), owned, {})
        return TorchImporter(program, name=name or _name(source), owned=owned).graph()


def _counted(sized: SizedProgram, sizes: Mapping[str, int], name: str, owned: bool, read: Read) -> Graph:
    """The graph for given sizes of a program that finds further ones in the data."""
    from superkernel.frontends.torch.importer import TorchImporter
    from superkernel.padding.counted import Counted, counted

    def write(asked: tuple[int, ...]) -> Counted:
        graph, found = sized.graph(sizes, asked)
        return TorchImporter(sized.program, name=name, owned=owned, graph=graph, read=read, found=found).counted()

    largest = write(())
    return counted(largest, write) if largest.sizes else largest.graph


def load_torch_for_sizes(
    source: torch.nn.Module | torch.export.ExportedProgram | str | Path,
    ranges: Ranges,
    *,
    example_inputs: Sequence[Any] | Mapping[str, Any] | None = None,
    dynamic_shapes: object = None,
) -> tuple[Mapping[str, DynamicInput], Callable[[Mapping[str, int]], Graph]]:
    """As `load_torch`, of a program with dynamic shapes: types of its inputs, and its graph for sizes by dimension.

    `dynamic_shapes`: by input, axis -> dimension, as `torch.export.export` takes them, with names or `Dim`s; a module
    is exported with it, of an exported program it names the dimensions, which are called as torch's symbols else.
    Constants are read once for all sizes. Raises as `load_torch` does, and InputError where names or ranges are not
    those of the program.
    """
    _check_torch(source)
    from superkernel.frontends.torch import capture
    from superkernel.frontends.torch.sizes import SizedProgram, as_dims

    program, owned = _program(source, example_inputs, as_dims(dynamic_shapes, ranges))
    read: Read = {}
    with _translated():
        program = capture.lowerable(program)
        sized = SizedProgram(program, ranges, dynamic_shapes)

    def load(sizes: Mapping[str, int]) -> Graph:
        with _translated():
            return _counted(sized, sizes, _name(source), owned, read)

    return sized.inputs, load


def _check_torch(source: object) -> None:
    """InputError, FileFormatError, MachineError where a file or torch is not there."""
    if isinstance(source, (str, Path)):
        _check_archive(Path(source))
    try:
        import torch
    except ImportError as error:
        raise MachineError(
            "the torch package is not installed", hint="pip install 'superkernel-compiler[torch]'"
        ) from error
    found = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if found < OLDEST_TORCH:
        expected = ".".join(map(str, OLDEST_TORCH))
        raise MachineError("the torch package is too old", expected=f">= {expected}", found=torch.__version__)


def _program(source: Any, example_inputs: Any, dynamic_shapes: Any = None) -> tuple[torch.export.ExportedProgram, bool]:
    """The program, and whether nobody else holds its tensors."""
    import torch

    from superkernel.frontends.torch import capture

    if isinstance(source, torch.nn.Module):
        return capture.captured(source, example_inputs, dynamic_shapes), False
    if example_inputs is not None:
        what = "a .pt2 file" if isinstance(source, (str, Path)) else "an exported program"
        raise InputError(
            f"example_inputs with {what}", hint="its inputs stand in it; give example_inputs with a module"
        )
    if isinstance(source, torch.export.ExportedProgram):
        return source, False
    return capture.read(Path(source)), True


@contextmanager
def _translated() -> Iterator[None]:
    """What torch raises, as errors of ours."""
    try:
        yield
    except SuperKernelError:
        raise
    except MemoryError as error:
        raise MachineError("not enough memory for the module's constants", found=str(error)) from error
    except NotImplementedError as error:
        raise UnsupportedError("torch cannot decompose the program", found=str(error)[:300]) from error
    except Exception as error:
        found_text = f"{type(error).__name__}: {error}"[:300]
        raise InternalError("the torch frontend failed on a valid program", found=found_text) from error


def _name(source: object) -> str:
    return Path(source).stem if isinstance(source, (str, Path)) else type(source).__name__
