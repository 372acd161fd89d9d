"""What the standard demands of a model's text, whatever its operators compute: as `onnx.checker` does, with places.

Model: versions, names that are given once, negative sizes, and per node of the standard's own operators the attributes
(known, given once, of their type, none missing) and numbers of inputs and outputs that its schema allows. Whether
inputs precede their nodes, and whether declared types are the computed ones, the importer finds out on its walk.

Not demanded: names of graphs, and attributes of operators that have no schema here (com.microsoft).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import onnx

from superkernel.core.errors import FileFormatError, UnsupportedError, Violation, raise_all
from superkernel.core.option import did_you_mean
from superkernel.core.tensor import TensorType
from superkernel.frontends.onnx.schema import schema_of, standard_domain
from superkernel.frontends.onnx.types import ONNX_OF, type_name

_KIND = onnx.AttributeProto.AttributeType.Name


def refuse_versions(model: onnx.ModelProto, opsets: Mapping[str, int]) -> None:
    """Raises UnsupportedError for versions that the installed onnx package does not know yet."""
    newest = {"the operator set": (opsets.get("", 1), onnx.defs.onnx_opset_version())}
    newest["the format"] = (model.ir_version, onnx.IR_VERSION)
    for what, (version, known) in newest.items():
        if version > known:
            raise UnsupportedError(
                f"{what} is newer than the installed onnx package",
                expected=f"version {known} at most",
                found=version,
                hint="install a newer onnx package",
            )


def refuse_ill_formed(model: onnx.ModelProto, opsets: Mapping[str, int]) -> None:
    """Raises FileFormatError with everything that the standard does not allow."""
    own = {(standard_domain(f.domain), f.name) for f in model.functions}
    found = list(_in_graph(model.graph, opsets, own, set()))
    for function in model.functions:
        inner = {**opsets, **{standard_domain(o.domain): o.version for o in function.opset_import}}
        found += [v.within(f"function {function.name!r}") for v in _in_nodes(function.node, inner, own, set())]
    raise_all(FileFormatError, found)


def declared_otherwise(info: onnx.ValueInfoProto, kind: TensorType, where: str) -> Violation | None:
    """What a declaration says that is not so of the value computed under its name. Sizes of 0 are read as unknown."""
    tensor = info.type.tensor_type
    if info.type.WhichOneof("value") != "tensor_type":
        return None
    if tensor.elem_type not in (0, ONNX_OF[kind.dtype]):
        name = type_name(tensor.elem_type)
        return Violation("declared with another element type", where, str(kind.dtype), name)
    if not tensor.HasField("shape"):
        return None
    sizes = [d.dim_value if d.WhichOneof("value") == "dim_value" else 0 for d in tensor.shape.dim]
    if len(sizes) != len(kind.shape) or any(s not in (0, real) for s, real in zip(sizes, kind.shape, strict=True)):
        hint = "infer its shapes again, or remove the declaration"
        return Violation(
            "declared with another shape", where, str(list(kind.shape)), str([s or "?" for s in sizes]), hint
        )
    return None


def _in_graph(
    graph: onnx.GraphProto, opsets: Mapping[str, int], own: set[tuple[str, str]], outer: set[str]
) -> Iterator[Violation]:
    yield from _twice((i.name for i in graph.input), "graph inputs")
    yield from _twice((t.name for t in graph.initializer), "initialisers")
    yield from _twice((o.name for o in graph.output), "graph outputs")
    for tensor in graph.initializer:
        yield from _negative(tensor.dims, f"initialiser {tensor.name!r}")
    for info in (*graph.output, *graph.value_info):
        yield from _negative([d.dim_value for d in info.type.tensor_type.shape.dim], f"value {info.name!r}")
    names = outer | {i.name for i in graph.input} | {t.name for t in graph.initializer}
    yield from _in_nodes(graph.node, opsets, own, names)


def _in_nodes(
    nodes: Iterable[onnx.NodeProto], opsets: Mapping[str, int], own: set[tuple[str, str]], names: set[str]
) -> Iterator[Violation]:
    """`names`: those taken before; each node adds its outputs."""
    for node in nodes:
        where = f"node {node.name or next(iter(node.output), '')!r} ({node.op_type})"
        for name in filter(None, node.output):
            if name in names:
                yield Violation("a second value under the same name", where, found=name)
            names.add(name)
        if (standard_domain(node.domain), node.op_type) not in own:
            schema = schema_of(node, opsets)
            if schema is not None:
                yield from (v.within(where) for v in _against_schema(node, schema))
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield from _negative(attribute.t.dims, f"{where}, attribute {attribute.name!r}")
            for graph in (attribute.g, *attribute.graphs):
                yield from (v.within(where) for v in _in_graph(graph, opsets, own, names))


def _against_schema(node: onnx.NodeProto, schema: Any) -> Iterator[Violation]:
    if schema.deprecated and schema_of(node, {schema.domain: schema.since_version - 1}) is not None:
        yield Violation("the operator does not exist any more in this operator set")
        return
    for what, count, least, most in (
        ("inputs", len(node.input), schema.min_input, schema.max_input),
        ("outputs", len(node.output), schema.min_output, schema.max_output),
    ):
        if not least <= count <= most:
            yield Violation(f"another number of {what}", expected=_range(least, most), found=str(count))
    yield from _twice((a.name for a in node.attribute), "attributes")
    for attribute in node.attribute:
        known = schema.attributes.get(attribute.name)
        if known is None and not attribute.name.startswith("__"):
            names = list(schema.attributes)
            yield Violation(
                "no such attribute",
                expected=", ".join(sorted(names)) or "none",
                found=attribute.name,
                hint=did_you_mean([attribute.name], names),
            )
        elif known is not None and attribute.type != known.type.value:
            yield Violation(
                "an attribute of another type",
                f"attribute {attribute.name!r}",
                known.type.name,
                _KIND(attribute.type),
            )
    given = {a.name for a in node.attribute}
    for name, known in schema.attributes.items():
        if known.required and name not in given:
            yield Violation(f"attribute {name!r} is missing")


def _range(least: int, most: int) -> str:
    if most == least:
        return str(least)
    return f"at least {least}" if most > 1 << 20 else f"{least} to {most}"


def _twice(names: Iterable[str], what: str) -> Iterator[Violation]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            yield Violation(f"two {what} of the same name", found=name)
        seen.add(name)


def _negative(sizes: Sequence[int], where: str) -> Iterator[Violation]:
    if any(size < 0 for size in sizes):
        yield Violation("a negative size", where, found=str(list(sizes)))
