"""The generated parts of docs/hardware.md: the presets' numbers and the engine commands."""

from __future__ import annotations

from collections.abc import Iterator

from superkernel.core.dtypes import DType
from superkernel.target.aicore import AicoreTarget, load_target, preset_names
from superkernel.target.engines.command import range_text
from superkernel.target.engines.layout import DOORBELL, layout, operand_words, word_offset
from superkernel.target.engines.model import (
    ENGINES_OF,
    TYPE_CODES,
    CommandAccess,
    CommandSpec,
    CoreType,
    Engine,
    Kind,
    Overlap,
)
from superkernel.target.engines.table import CONVENTIONS, command_table
from superkernel.target.sections import SECTIONS, all_fields
from superkernel.target.text import value_text

_PLACE_NAMES = {DOORBELL: "doorbell"}


def presets() -> str:
    """Tables of every field, a column per preset."""
    targets = sorted((load_target(name) for name in preset_names()), key=lambda t: -t.cores)
    lines: list[str] = []
    for section, kind in SECTIONS.items():
        lines += ["", f"### `{section}`", "", (kind.__doc__ or "").strip(), ""]
        lines.append(f"| field | {' | '.join(t.name for t in targets)} | varied | legal | meaning |")
        lines.append("|---|" + "---|" * (len(targets) + 3))
        for path, spec in all_fields().items():
            if spec.section == section:
                cells = [_cell(t, path) for t in targets]
                span = targets[0].range_of(path)
                varied = f"{span[0]:g} to {span[1]:g}" if span else ""
                row = [f"`{spec.name}`", *cells, varied, spec.range_text, spec.quantity.doc]
                lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines).strip()


def _cell(target: AicoreTarget, path: str) -> str:
    return f"{value_text(all_fields()[path], target.value(path))} {target.origin(path)[0].upper()}"


def commands() -> str:
    """The whole chapter of commands."""
    parts = ["### What holds for all", "", *(f"- {text}" for text in CONVENTIONS), "", *_page(), "", *_overview()]
    for engine in Engine:
        rows = [spec for spec in command_table().values() if _listed_under(spec) is engine]
        if rows:
            parts += ["", f"### Commands of {_heading(engine)}"]
            for spec in rows:
                parts += ["", *_command(spec)]
    return "\n".join(parts)


def _listed_under(spec: CommandSpec) -> Engine:
    """Commands of several engines stand with `control`."""
    return Engine.CONTROL if len(spec.engines) > 1 else spec.engines[0]


def _heading(engine: Engine) -> str:
    return "`control`, and of every queue" if engine is Engine.CONTROL else f"`{engine.title}`"


def _page() -> Iterator[str]:
    yield "### The register page"
    yield ""
    yield "A window of 16 words of 8 bytes per engine, from `map.page_address` on:"
    yield ""
    yield "| engine | operand words 0 to 14 | doorbell | on |"
    yield "|---|---|---|---|"
    for engine in Engine:
        first, bell = word_offset(engine, 0), word_offset(engine, DOORBELL)
        cores = ", ".join(core.value for core in CoreType if engine in ENGINES_OF[core])
        yield f"| `{engine.title}` | +0x{first:03x} | +0x{bell:03x} | {cores} |"
    yield ""
    yield (
        "An operand word keeps its value until the next store to it. The store to the doorbell issues the "
        "command; its bits 0 to 7"
    )
    yield "are the opcode, 8 to 11 the code of the first element type, 12 to 15 of the second (0: none)."
    yield ""
    yield "| element type | code |"
    yield "|---|---|"
    for dtype, code in TYPE_CODES.items():
        yield f"| {dtype} | {code} |"


def _overview() -> Iterator[str]:
    yield "### Overview"
    yield ""
    yield "| opcode | command | engine | cores | stores | element types |"
    yield "|---|---|---|---|---|---|"
    for spec in command_table().values():
        engines = ", ".join(e.title for e in spec.engines)
        cores = ", ".join(c.value for c in spec.cores)
        words = operand_words(spec) + 1
        yield f"| 0x{spec.opcode:02x} | `{spec.name}` | {engines} | {cores} | {words} | {_types(spec)} |"


def _types(spec: CommandSpec) -> str:
    """Combinations of element types; the second ones joined by what they come from."""
    if not spec.type_names:
        return ""
    if len(spec.type_names) == 1:
        return ", ".join(str(types[0]) for types in spec.types)
    by_first: dict[DType, list[str]] = {}
    for first, second in spec.types:
        by_first.setdefault(first, []).append(str(second))
    return "; ".join(f"{first} to {', '.join(seconds)}" for first, seconds in by_first.items())


def _command(spec: CommandSpec) -> Iterator[str]:
    yield f"#### `{spec.name}` (0x{spec.opcode:02x})"
    yield ""
    yield spec.semantics
    if spec.operands:
        yield ""
        yield "| operand | kind | word | bits | values | meaning |"
        yield "|---|---|---|---|---|---|"
    for slot, operand in zip(layout(spec), spec.operands, strict=True):
        where = _PLACE_NAMES.get(slot.word, str(slot.word))
        kind = operand.kind.value
        if operand.memory:
            kind = f"address in {operand.memory.value}"
        if operand.kind is Kind.ELEMENT:
            kind = f"bits of {spec.type_names[operand.element_slot]}"
        values = range_text(operand)
        if operand.kind is Kind.LOCAL:
            values = f"below `{operand.memory.size_path}`" if operand.memory else values
        if operand.align:
            values += f"; multiple of `{operand.align}`"
        if operand.default is not None:
            values += f"; default {_default(operand.default, operand.choices)}"
        bits = f"{slot.shift} to {slot.shift + slot.bits - 1}"
        yield f"| `{operand.name}` | {kind} | {where} | {bits} | {values} | {operand.doc} |"
    yield ""
    yield from _facts(spec)


def _default(number: int, choices: tuple[str, ...]) -> str:
    return choices[number] if choices else hex(number) if number > 255 else str(number)


def _facts(spec: CommandSpec) -> Iterator[str]:
    if spec.type_names:
        yield f"- Element types ({' to '.join(spec.type_names)}): {_types(spec)}."
    for access in spec.accesses:
        yield f"- {_access(access)}"
    if spec.overlap is not Overlap.FREE:
        yield f"- Overlap: {spec.overlap.value}."
    if spec.ulp:
        yield f"- Within {spec.ulp} unit in the last place of the correctly rounded result."
    times = [("start-up", spec.start_up), ("beats", spec.beats), ("visible", spec.visible)]
    said = ", ".join(f"{name} `{text}`" for name, text in times if text != "0")
    yield f"- Cycles: {said}." if said else "- Cycles: none of its own."


def _access(access: CommandAccess) -> str:
    verb = "Writes" if access.writes else "Reads"
    text = f"{verb} `{access.row_bytes}` bytes at `{access.operand}`"
    if access.rows != "1":
        text = (
            f"{verb} `{access.rows}` rows of `{access.row_bytes}` bytes at `{access.operand}`, `{access.stride}` apart"
        )
    return f"{text}, where `{access.when}`." if access.when != "1" else f"{text}."
