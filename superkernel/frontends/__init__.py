"""Frontends: what users have -> `Graph`. One function, `load_graph`, for all of them; each form lives in its own
module.

Nothing else in the package knows about networkx, JSON, ONNX or torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from superkernel.core.errors import InputError
from superkernel.core.files import is_folder
from superkernel.core.tensor import InputShape
from superkernel.ir.graph import Graph

_FORMS = (
    "a Graph, a GraphBuilder, a networkx DiGraph or MultiDiGraph, an onnx.ModelProto or its bytes, a "
    "torch.nn.Module, a torch.export.ExportedProgram, or a path to .onnx, .pt2, .json, .gguf or a folder with "
    "config.json"
)


def load_graph(
    source: object,
    *,
    shapes: Mapping[str, InputShape] | None = None,
    dims: Mapping[str, int] | None = None,
    constants: Mapping[str, Any] | None = None,
    example_inputs: Sequence[Any] | Mapping[str, Any] | None = None,
) -> Graph:
    """The validated graph of any supported source. `shapes`, `dims` and `constants` are for ONNX models (see
    `load_onnx`), `dims` for language models too (see `load_decoder`), `example_inputs` for torch modules (see
    `load_torch`).

    Raises InputError on what is no source of a graph, FileFormatError on an unreadable file, GraphError on an
    inconsistent graph, UnsupportedError on what cannot be compiled.
    """
    onnx_options = {"shapes": shapes, "dims": dims, "constants": constants}
    given = ", ".join(name for name, value in onnx_options.items() if value)
    from superkernel.frontends.torch import is_torch_source, load_torch

    if is_torch_source(source) or (isinstance(source, (str, Path)) and Path(source).suffix == ".pt2"):
        return _plain(load_torch(source, example_inputs=example_inputs), given)
    if example_inputs is not None:
        hint = "every other form has its inputs already"
        raise InputError("example_inputs only apply to torch modules", found=type(source).__name__, hint=hint)
    if isinstance(source, Graph):
        return _plain(source, given)
    if isinstance(source, (str, Path)):
        path = Path(source)
        if path.suffix == ".onnx":
            from superkernel.frontends.onnx import load_onnx

            return load_onnx(path, shapes=shapes, dims=dims, constants=constants)
        if path.suffix == ".gguf" or is_folder(path):
            from superkernel.frontends.pretrained import load_decoder

            others = ", ".join(name for name in ("shapes", "constants") if onnx_options[name])
            return _plain(load_decoder(path, dims or {}), others)
        if path.suffix == ".json":
            from superkernel.frontends.json_form import load_json

            return _plain(load_json(path), given)
        raise InputError(
            "the file name says no known format",
            expected=".onnx, .pt2, .json or .gguf",
            found=repr(str(source)),
            hint="saved kernels (.skm) have any name and are known by their contents; this is none",
        )
    module = type(source).__module__
    is_model = type(source).__name__ == "ModelProto" and module.startswith("onnx")
    if is_model or isinstance(source, (bytes, bytearray, memoryview)):
        from superkernel.frontends.onnx import load_onnx

        return load_onnx(source, shapes=shapes, dims=dims, constants=constants)  # type: ignore[arg-type]
    if hasattr(source, "is_directed") and hasattr(source, "edges"):
        from superkernel.frontends.networkx_form import from_networkx

        return _plain(from_networkx(source), given)
    from superkernel.builder import GraphBuilder

    if isinstance(source, GraphBuilder):
        return _plain(source.graph(), given)
    raise InputError("not a source of a graph", expected=_FORMS, found=type(source).__name__)


def _plain(graph: Graph, given: str) -> Graph:
    if given:
        raise InputError(f"{given} only apply to ONNX models", hint="every other form has static shapes already")
    return graph
