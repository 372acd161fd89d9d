"""ONNX files and ModelProtos as graphs. The `onnx` package is optional and only imported here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from numpy.typing import NDArray

from superkernel.core.dtypes import DType
from superkernel.core.errors import (
    FileFormatError,
    InputError,
    InternalError,
    MachineError,
    SuperKernelError,
    UnsupportedError,
    Violation,
    raise_all,
)
from superkernel.core.files import exists, refuse_device
from superkernel.core.tensor import InputShape
from superkernel.ir.graph import Graph

if TYPE_CHECKING:
    import onnx


def load_onnx(
    source: str | Path | bytes | onnx.ModelProto,
    *,
    shapes: Mapping[str, InputShape] | None = None,
    dims: Mapping[str, int] | None = None,
    constants: Mapping[str, Any] | None = None,
    name: str = "",
    read: dict[str, NDArray[Any]] | None = None,
) -> Graph:
    """An ONNX model, operator set 7 to the newest that the installed onnx package knows.

    `shapes` gives whole input shapes (of a sequence, those of its elements, which are inputs NAME.0 and on), `dims`
    symbolic dimensions by name, `constants` fixes inputs (or replaces initialisers) by arrays; what decides shapes must
    be known here. `read`: initialisers of this model that were read before, by name; it is filled. Raises
    FileFormatError (not a readable model), UnsupportedError (an operator, type or dynamic shape that cannot be
    compiled; all unknown operators at once), GraphError (the model contradicts itself), InputError, MachineError (no
    onnx package).
    """
    from superkernel.frontends.onnx.importer import OnnxImporter
    from superkernel.padding.counted import Counted, counted

    model = model_of(source)
    if not model.HasField("graph") or not model.opset_import:
        where = f"file {str(source)!r}" if isinstance(source, (str, Path)) else "model"
        raise FileFormatError(
            "not an ONNX model", location=where, expected="a graph and an operator set", found="neither"
        )
    known = {} if read is None else read

    def write(sizes: tuple[int, ...]) -> Counted:
        importer = OnnxImporter(
            model, name=name, shapes=shapes or {}, dims=dims or {}, constants=constants or {}, read=known, found=sizes
        )
        return importer.counted()

    try:
        largest = write(())
        return counted(largest, write) if largest.sizes else largest.graph
    except SuperKernelError:
        raise
    except MemoryError as error:
        raise MachineError("not enough memory for the model's constants", found=str(error)) from error
    except Exception as error:
        raise _blame(model, error) from error


def model_of(source: str | PathLike[str] | bytes | onnx.ModelProto) -> onnx.ModelProto:
    """The model of a file, of its bytes, or itself. Raises InputError, FileFormatError, MachineError."""
    try:
        import onnx
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    except ImportError as error:
        raise MachineError(
            "the onnx package is not installed", hint="pip install 'superkernel-compiler[onnx]'"
        ) from error
    if isinstance(source, (str, PathLike)):
        return read_model(Path(source))
    if isinstance(source, onnx.ModelProto):
        return source
    if not isinstance(source, (bytes, bytearray, memoryview)):
        expected = "a path, the bytes of a model or an onnx.ModelProto"
        raise InputError("not an ONNX model", expected=expected, found=type(source).__name__)
    try:
        return onnx.load_model_from_string(bytes(source))
    except (DecodeError, ValueError) as error:
        raise FileFormatError("not a readable ONNX model", location="bytes", found=str(error)[:200]) from error


def own_model(source: str | PathLike[str] | bytes | onnx.ModelProto) -> onnx.ModelProto:
    """As `model_of`, but a copy of an onnx.ModelProto: what is compiled later does not change with it."""
    model = model_of(source)
    if model is not source:
        return model
    own = type(model)()
    own.CopyFrom(model)
    return own


DeclaredValue: TypeAlias = "tuple[str, str, list[int | str | None], bool]"
"""Name, type as ONNX Runtime writes it, shape, with names of symbolic extents and None of others that are not known;
and whether there is a shape, where there could be."""


def declared_values(model: onnx.ModelProto) -> tuple[list[DeclaredValue], list[DeclaredValue], list[DeclaredValue]]:
    """Inputs that calls give, outputs, and inputs that have a value which calls may override."""
    constant = {t.name for t in model.graph.initializer}

    def declared(info: onnx.ValueInfoProto) -> DeclaredValue:
        kind = info.type.tensor_type
        extents = (d.dim_value if d.WhichOneof("value") == "dim_value" else d.dim_param or None for d in kind.shape.dim)
        has_shape = kind.HasField("shape") or not info.type.HasField("tensor_type")
        return info.name, _type_text(info.type), list(extents), has_shape

    inputs = [declared(info) for info in model.graph.input if info.name not in constant]
    preset = [
        declared(info) for info in model.graph.input if info.name in constant and model.ir_version >= _NAMED_SINCE
    ]
    return inputs, [declared(info) for info in model.graph.output], preset


_NAMED_SINCE = 4  # version of the format: before it every constant is declared as an input too


def without_values(model: onnx.ModelProto, names: Collection[str]) -> onnx.ModelProto:
    """A copy whose inputs of these names have no values of their own."""
    kept = [t for t in model.graph.initializer if t.name not in names]
    own = own_model(model)
    del own.graph.initializer[:]
    own.graph.initializer.extend(kept)
    return own


def _type_text(kind: onnx.TypeProto) -> str:
    """As ONNX Runtime writes it: "tensor(float)", "seq(tensor(int64))"."""
    from superkernel.frontends.onnx.types import type_name

    which = kind.WhichOneof("value")
    if which == "sequence_type":
        return f"seq({_type_text(kind.sequence_type.elem_type)})"
    if which == "optional_type":
        return f"optional({_type_text(kind.optional_type.elem_type)})"
    return f"tensor({type_name(kind.tensor_type.elem_type).lower()})"


def declared_inputs(model: onnx.ModelProto) -> dict[str, tuple[DType, tuple[int | str, ...]]]:
    """The tensors that calls give: element types, and shapes with the names of symbolic dimensions. Raises
    UnsupportedError for what is no tensor, has no shape, or has dimensions without a name."""
    from superkernel.frontends.onnx.types import element_type, is_sequence, tensor_type

    constant = {t.name for t in model.graph.initializer}
    found: dict[str, tuple[DType, tuple[int | str, ...]]] = {}
    wrong = []
    for info in model.graph.input:
        if info.name in constant:
            continue
        tensor = tensor_type(info)
        if tensor is None or is_sequence(info) or not tensor.HasField("shape"):
            wrong.append(Violation("an input without declared extents", f"input {info.name!r}"))
            continue
        shape = tuple(d.dim_value if d.WhichOneof("value") == "dim_value" else d.dim_param for d in tensor.shape.dim)
        if "" in shape:
            hint = "name it: dim_param in the model, or dynamic_axes where it is exported"
            wrong.append(Violation("a dimension without a name", f"input {info.name!r}", hint=hint))
        found[info.name] = element_type(tensor.elem_type, f"input {info.name!r}"), shape
    raise_all(UnsupportedError, wrong)
    return found


def _blame(model: onnx.ModelProto, error: Exception) -> SuperKernelError:
    """An error that is not the package's own: the file's fault where the standard's checker rejects it, else ours."""
    import onnx

    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as finding:
        return FileFormatError("the model breaks the standard's rules", found=str(finding).strip()[:300])
    except Exception:  # the checker itself cannot read it (too large, not text): nothing more is known
        return FileFormatError("the model cannot be read", found=f"{type(error).__name__}: {error}"[:300])
    where = next(iter(getattr(error, "__notes__", ())), "")  # the node
    found = f"{type(error).__name__}: {error}"[:300]
    return InternalError("the ONNX frontend failed on a valid model", location=where, found=found)


def read_model(source: str | Path) -> onnx.ModelProto:
    """The model of a file. Raises InputError, FileFormatError, MachineError."""
    import onnx
    from google.protobuf.message import DecodeError

    path = Path(source)
    where = f"file {str(path)!r}"
    try:
        refuse_device(path)
        return onnx.load(str(path))
    except FileNotFoundError as error:
        if not exists(path):
            raise InputError("no such file", location=where) from error
        raise FileFormatError("external data of the model is missing", location=where, found=str(error)) from error
    except onnx.checker.ValidationError as error:  # of reading, checks external data alone
        hint = "the files that hold the weights belong beside the model, under the names they were saved with"
        raise FileFormatError(
            "external data of the model is missing", location=where, found=str(error)[:200], hint=hint
        ) from error
    except (DecodeError, RuntimeError, ValueError) as error:  # RuntimeError: of names that no file can have
        raise FileFormatError("not a readable ONNX file", location=where, found=str(error)[:200]) from error
    except OSError as error:
        raise MachineError("the file cannot be read", location=where, found=str(error)) from error
