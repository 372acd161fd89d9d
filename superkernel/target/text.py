"""A target description as a table for people, and as plain data for JSON (`reading` writes TOML)."""

from __future__ import annotations

from typing import Any

from superkernel.target.aicore import AicoreTarget
from superkernel.target.reading import SCHEMA_VERSION, toml_value
from superkernel.target.schema import FieldSpec, Value
from superkernel.target.sections import all_fields


def value_text(spec: FieldSpec, value: Value) -> str:
    """A value for people: sizes with their binary unit behind them."""
    if isinstance(value, tuple):
        return ", ".join(value_text(spec, item) for item in value)
    text = toml_value(spec, value).strip('"')
    if spec.name.endswith("_bytes") and isinstance(value, int):
        for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
            if value >= size and value * 2 % size == 0:
                return f"{value / size:g} {unit}"
    return text


def table(target: AicoreTarget) -> str:
    """One line per field: path, value, unit, origin, sensitivity range, meaning."""
    rows: list[tuple[str, ...]] = [("field", "value", "unit", "origin", "varied", "meaning")]
    for path, spec in all_fields().items():
        shown = value_text(spec, target.value(path))
        unit = "" if "iB" in shown else spec.unit.split(" (")[0]
        span = target.range_of(path)
        varied = f"{span[0]:g} to {span[1]:g}" if span else ""
        rows.append((path, shown, unit, target.origin(path), varied, spec.quantity.doc))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    lines = [f"{target.name}: {target.description}", ""]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("  ".join((*cells, row[5])).rstrip())
    return "\n".join(lines)


def to_json(target: AicoreTarget) -> dict[str, Any]:
    """Plain data: every field with value, unit, origin, range and meaning, and the derived figures."""
    fields: dict[str, Any] = {}
    for path, spec in all_fields().items():
        value = target.value(path)
        span = target.range_of(path)
        fields[path] = {
            "value": list(value) if isinstance(value, tuple) else value,
            "unit": spec.unit,
            "origin": target.origin(path),
            "sensitivity": list(span) if span else None,
            "legal": spec.range_text,
            "meaning": spec.quantity.doc,
        }
    return {
        "name": target.name,
        "description": target.description,
        "schema_version": SCHEMA_VERSION,
        "cores": target.cores,
        "fields": fields,
        "derived": derived(target),
    }


def derived(target: AicoreTarget) -> dict[str, float]:
    """Figures that follow from the fields, by name with unit."""
    return {
        "cube_f16_flops_per_ns": target.cube_flops_per_ns(target.cube.k_f16),
        "cube_i8_ops_per_ns": target.cube_flops_per_ns(target.cube.k_i8),
        "cube_f32_flops_per_ns": target.cube_flops_per_ns(target.cube.k_f32),
        "vector_f32_ops_per_ns": target.vector_ops_per_ns(target.vector.lanes_32bit),
        "l2_bank_line_cycles": target.l2_bank_line_cycles,
        "hbm_channel_line_cycles": target.hbm_channel_line_cycles,
        "icache_fill_cycles": target.icache_fill_cycles,
        "core_full_sync_cycles": target.cycles(target.sync.core_full_ns),
        "group_sync_cycles": target.cycles(target.sync.group_ns),
        "memory_flag_cycles": target.cycles(target.sync.memory_flag_ns),
        "drain_cycles": target.cycles(target.sync.drain_ns),
        "launch_cycles": target.cycles(target.dispatch.launch_ns),
    }
