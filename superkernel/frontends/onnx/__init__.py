"""ONNX files and ModelProtos as graphs. The `onnx` package is optional and only imported here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superkernel.core.errors import FileFormatError, InputError, InternalError, MachineError, SuperKernelError
from superkernel.core.tensor import InputShape
from superkernel.ir.graph import Graph

if TYPE_CHECKING:
    import onnx


def load_onnx(
    source: str | Path | onnx.ModelProto,
    *,
    shapes: Mapping[str, InputShape] | None = None,
    dims: Mapping[str, int] | None = None,
    constants: Mapping[str, Any] | None = None,
    name: str = "",
) -> Graph:
    """An ONNX model, operator set 7 to the newest that the installed onnx package knows.

    `shapes` gives whole input shapes (of a sequence, those of its elements, which are inputs NAME.0 and on), `dims`
    symbolic dimensions by name, `constants` fixes inputs (or replaces initialisers) by arrays; what decides shapes must
    be known here. Raises FileFormatError (not a readable model), UnsupportedError (an operator, type or dynamic shape
    that cannot be compiled; all unknown operators at once), GraphError (the model contradicts itself), InputError,
    MachineError (no onnx package).
    """
    try:
        import onnx
    except ImportError as error:
        raise MachineError(
            "the onnx package is not installed", hint="pip install 'superkernel-compiler[onnx]'"
        ) from error
    from superkernel.frontends.onnx.importer import OnnxImporter

    model = source if isinstance(source, onnx.ModelProto) else _read(Path(source))
    if not model.HasField("graph") or not model.opset_import:
        where = "model" if isinstance(source, onnx.ModelProto) else f"file {str(source)!r}"
        raise FileFormatError(
            "not an ONNX model", location=where, expected="a graph and an operator set", found="neither"
        )
    try:
        return OnnxImporter(model, name=name, shapes=shapes or {}, dims=dims or {}, constants=constants or {}).graph()
    except SuperKernelError:
        raise
    except MemoryError as error:
        raise MachineError("not enough memory for the model's constants", found=str(error)) from error
    except Exception as error:
        raise _blame(model, error) from error


def _blame(model: onnx.ModelProto, error: Exception) -> SuperKernelError:
    """An error that is not the package's own: the file's fault where the standard's checker rejects it, else ours."""
    import onnx

    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as finding:
        return FileFormatError("the model breaks the standard's rules", found=str(finding).strip()[:300])
    except Exception:  # the checker itself cannot read it (too large, not text): nothing more is known
        return FileFormatError("the model cannot be read", found=f"{type(error).__name__}: {error}"[:300])
    return InternalError("the ONNX frontend failed on a valid model", found=f"{type(error).__name__}: {error}"[:300])


def _read(path: Path) -> onnx.ModelProto:
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    where = f"file {str(path)!r}"
    try:
        return onnx.load(str(path))
    except FileNotFoundError as error:
        if not path.exists():
            raise InputError("no such file", location=where) from error
        raise FileFormatError("external data of the model is missing", location=where, found=str(error)) from error
    except onnx.checker.ValidationError as error:  # of reading, checks external data alone
        hint = "the files that hold the weights belong beside the model, under the names they were saved with"
        raise FileFormatError(
            "external data of the model is missing", location=where, found=str(error)[:200], hint=hint
        ) from error
    except (DecodeError, ValueError) as error:
        raise FileFormatError("not a readable ONNX file", location=where, found=str(error)[:200]) from error
    except OSError as error:
        raise MachineError("the file cannot be read", location=where, found=str(error)) from error
