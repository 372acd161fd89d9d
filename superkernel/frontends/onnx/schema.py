"""The ONNX standard's own schemas: which version of an operator a node means, and its defining function body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import onnx.defs
from onnx import TensorProto


def standard_domain(domain: str) -> str:
    """The empty string for both spellings of the standard domain."""
    return "" if domain == "ai.onnx" else domain


def schema_of(node: onnx.NodeProto, opsets: Mapping[str, int]) -> Any:
    """The OpSchema that the node means under these operator set versions, or None (untyped: the stubs lag behind)."""
    domain = standard_domain(node.domain)
    version = min(opsets.get(domain, 1), _newest(domain))
    try:
        return onnx.defs.get_schema(node.op_type, version, domain)
    except onnx.defs.SchemaError:
        return None


def function_body(
    node: onnx.NodeProto, opsets: Mapping[str, int], inputs: Sequence[onnx.TypeProto | None]
) -> onnx.FunctionProto | None:
    """The function that defines the operator for these input types, or None."""
    schema = schema_of(node, opsets)
    if schema is None:
        return None
    domain = standard_domain(node.domain)
    version = min(opsets.get(domain, 1), _newest(domain))
    body = b""
    if schema.has_context_dependent_function:
        kinds = [onnx.TypeProto().SerializeToString() if kind is None else kind.SerializeToString() for kind in inputs]
        usable = [v for v in schema.context_dependent_function_opset_versions if v <= version]
        for candidate in reversed(usable or list(schema.context_dependent_function_opset_versions)[:1]):
            body = schema.get_context_dependent_function_with_opset_version(candidate, node.SerializeToString(), kinds)
            if body:
                break
    if not body and schema.has_function:
        usable = [v for v in schema.function_opset_versions if v <= version]
        body = schema.get_function_with_opset_version((usable or list(schema.function_opset_versions)[:1])[-1])
    return onnx.FunctionProto.FromString(body) if body else None


def rejection(
    node: onnx.NodeProto, opsets: Mapping[str, int], inputs: Mapping[str, onnx.TypeProto], known: Sequence[TensorProto]
) -> str:
    """Why the standard's own inference rejects the node for inputs of these types, some of which are known; empty where
    it does not."""
    graph = onnx.helper.make_graph(
        [node],
        "node",
        [onnx.helper.make_value_info(name, kind) for name, kind in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in node.output if name],
        initializer=known,
    )
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    try:
        model = onnx.helper.make_model(graph, opset_imports=imports)
        onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except Exception as error:  # inference raises whatever its checks meet
        return str(error).strip().splitlines()[-1][:300]
    return ""


def attribute_defaults(node: onnx.NodeProto, opsets: Mapping[str, int]) -> list[onnx.AttributeProto]:
    """The operator's attributes with a default: a function body refers to them whether the node gives them or not."""
    schema = schema_of(node, opsets)
    given = [] if schema is None else [a.default_value for a in schema.attributes.values()]
    return [a for a in given if a.type != onnx.AttributeProto.UNDEFINED]


def _newest(domain: str) -> int:
    return onnx.defs.onnx_opset_version() if domain == "" else 1 << 30
