"""Attribute values: checked against the operator's definitions, completed with defaults, made canonical (hashable)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.errors import GraphError, SuperKernelError, Violation, raise_all
from superkernel.ops.opdef import AttrDef, AttrKind, Attrs, AttrValue, OpDef, _Required


def canonical_attrs(definition: OpDef, given: Mapping[str, Any]) -> Attrs:
    """All attributes of `definition`, in table order, defaults filled in. Raises GraphError with every violation:
    unknown or missing attribute, wrong type, NaN, not one of the choices."""
    wrong: list[Violation] = []
    known = {a.name for a in definition.attrs} if given else frozenset[str]()
    for name in given:
        if name not in known:
            hint = f"{definition.name} takes {', '.join(sorted(known)) or 'no attributes'}"
            wrong.append(Violation(f"unknown attribute {name!r}", hint=hint))
    result: dict[str, AttrValue] = {}
    for attr in definition.attrs:
        if attr.name not in given or given[attr.name] is None:
            if isinstance(attr.default, _Required):
                wrong.append(Violation(f"attribute {attr.name!r} is missing", expected=attr.kind.value, hint=attr.doc))
            else:
                result[attr.name] = attr.default
            continue
        try:
            result[attr.name] = _convert(attr, given[attr.name])
        except (TypeError, ValueError, OverflowError, SuperKernelError):
            wrong.append(
                Violation(
                    f"attribute {attr.name!r} has a bad value",
                    expected=_expectation(attr),
                    found=repr(given[attr.name])[:120],
                )
            )
    if wrong:
        raise_all(GraphError, wrong)
    return result


def _expectation(attr: AttrDef) -> str:
    if attr.choices:
        return "one of " + ", ".join(attr.choices)
    return attr.kind.value + (" (not NaN)" if attr.kind in (AttrKind.FLOAT, AttrKind.FLOATS) else "")


def _convert(attr: AttrDef, value: Any) -> AttrValue:
    kind = attr.kind
    if kind is AttrKind.DTYPE:
        return DType.of(value)
    if kind is AttrKind.STR:
        if not isinstance(value, str) or (attr.choices and value not in attr.choices):
            raise ValueError(value)
        return value
    if kind is AttrKind.BOOL:
        if isinstance(value, (bool, np.bool_)) or (isinstance(value, (int, np.integer)) and value in (0, 1)):
            return bool(value)
        raise ValueError(value)
    if kind is AttrKind.INT:
        return _integer(value)
    if kind is AttrKind.FLOAT:
        return _real(value)
    items = np.asarray(value).reshape(-1).tolist() if not isinstance(value, (list, tuple)) else list(value)
    if kind is AttrKind.INTS:
        return tuple(_integer(v) for v in items)
    return tuple(_real(v) for v in items)


def _integer(value: Any) -> int:
    if isinstance(value, bool) or int(value) != value:
        raise ValueError(value)
    return int(value)


def _real(value: Any) -> float:
    number = float(value)
    if math.isnan(number):
        raise ValueError("NaN")
    return number
