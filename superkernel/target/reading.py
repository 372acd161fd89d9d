"""Between TOML text and `Description`, what a target is made from: one pass that collects every violation, field by
field.

A file has `schema_version`, `name`, `description`, an optional `base` (a preset, or a file beside it), values and an
optional `[sensitivity]` table of "section.field" = [low, high]. Values stand in a section of their own name (they are
the user's) or in one under `published` or `default`. What a file does not set comes from its base, but for the numbers
of cores, which follow those of groups and of cores in one.

Invariant: nothing is guessed. An unknown word is refused with the nearest known ones, a value of another type or
outside its range with what is expected, and a number in two places is refused.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

from superkernel.core.errors import FileFormatError, InputError, Violation, raise_all
from superkernel.core.files import file_name, is_file, text_of
from superkernel.target.checks import relations
from superkernel.target.schema import FieldSpec, Value
from superkernel.target.sections import SECTIONS, all_fields

SCHEMA_VERSION = 1
ORIGINS = ("published", "default")
USER = "user"
_HEAD = ("schema_version", "name", "description", "base", "sensitivity")


@dataclass(frozen=True)
class Description:
    """A legal description: the value of every field by its path "section.field", where each is from, and the
    sensitivity ranges of uncertain ones."""

    name: str
    description: str
    values: Mapping[str, Value]
    origins: Mapping[str, str]
    sensitivity: Mapping[str, tuple[float, float]]


class _Draft:
    """What one file (with its bases) says so far, and what is wrong with it."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.name = ""
        self.description = ""
        self.values: dict[str, Value] = {}
        self.origins: dict[str, str] = {}
        self.sensitivity: dict[str, tuple[float, float]] = {}
        self.violations: list[Violation] = []

    def refuse(self, where: str, message: str, *, expected: str = "", found: object = "", hint: str = "") -> None:
        text = found if isinstance(found, str) else repr(found)
        location = f"{self.origin}, {where}" if where else self.origin
        self.violations.append(Violation(message, location, expected, text, hint))


def presets() -> dict[str, str]:
    """The text of every shipped preset by name, sorted."""
    folder = resources.files("superkernel.target") / "presets"
    files = {f.name.removesuffix(".toml"): f for f in folder.iterdir() if f.name.endswith(".toml")}
    return {name: files[name].read_text(encoding="utf-8") for name in sorted(files)}


def load(name_or_path: str | Path) -> Description:
    """A preset by name, or a file: a `Path`, or a text with a separator or the ending .toml."""
    word = str(name_or_path)
    known = presets()
    if isinstance(name_or_path, str) and word in known:
        return parse(known[word], origin=f"preset {word!r}", folder=None)
    path = file_name(name_or_path)
    if isinstance(name_or_path, str) and "/" not in word and path.suffix != ".toml":
        near = difflib.get_close_matches(word, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "give a file as a path that ends in .toml"
        raise InputError("unknown target", expected=", ".join(known), found=repr(word), hint=hint)
    return parse(_read(path), origin=f"file {word!r}", folder=path.parent)


def _read(path: Path) -> str:
    try:
        return text_of(path)
    except (OSError, ValueError) as error:
        raise FileFormatError("cannot be read", location=f"file {str(path)!r}", found=str(error)) from error


def parse(text: str, *, origin: str = "text", folder: Path | None = None) -> Description:
    """The description in a TOML text."""
    draft = _Draft(origin)
    _fill(draft, text, folder, ())
    return _finish(draft)


def replace(found: Description, values: Mapping[str, Value]) -> Description:
    """The description with other values of some fields, as a user's file would set them. Raises FileFormatError."""
    draft = _Draft(f"target {found.name!r}")
    draft.name, draft.description = found.name, found.description
    draft.values, draft.origins = dict(found.values), dict(found.origins)
    draft.sensitivity = dict(found.sensitivity)
    for path, value in values.items():
        _set(draft, path, list(value) if isinstance(value, tuple) else value, USER, path)
    _follow(draft, values)
    return _finish(draft)


def _fill(draft: _Draft, text: str, folder: Path | None, chain: tuple[str, ...]) -> None:
    """Adds a file's values to the draft, those of its base first."""
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # syntax, numbers of thousands of digits, endless nesting
        raise FileFormatError("not TOML", location=draft.origin, found=str(error)) from error
    if data.get("schema_version") != SCHEMA_VERSION or isinstance(data.get("schema_version"), bool):
        missing = "schema_version" not in data
        draft.refuse(
            "schema_version",
            "missing" if missing else "unknown version of the format",
            expected=str(SCHEMA_VERSION),
            found=data.get("schema_version", ""),
            hint=f'add "schema_version = {SCHEMA_VERSION}" ahead of all sections' if missing else "",
        )
    for word in ("name", "description", "base"):
        if word in data and not isinstance(data[word], str):
            draft.refuse(word, "not a text", found=data[word])
    if isinstance(data.get("base"), str):
        _fill_base(draft, data["base"], folder, chain)
    if isinstance(data.get("name"), str):
        draft.name = data["name"]
    if isinstance(data.get("description"), str):
        draft.description = data["description"]
    if not isinstance(data.get("name"), str) or not data["name"].strip():
        draft.refuse("name", "missing", expected="a name for the target")
    _fill_sections(draft, data)
    _fill_sensitivity(draft, data.get("sensitivity", {}))


def _fill_base(draft: _Draft, base: str, folder: Path | None, chain: tuple[str, ...]) -> None:
    """Reads the base into the same draft; its own violations name its own place."""
    known = presets()
    if base in known:
        key, text, where, beside = base, known[base], f"preset {base!r}", None
    elif folder is not None and is_file(folder / base):
        path = (folder / base).resolve()
        key, text, where, beside = str(path), _read(path), f"file {str(path)!r}", path.parent
    else:
        near = difflib.get_close_matches(base, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else ""
        draft.refuse("base", "unknown base", expected=f"{', '.join(known)} or a file", found=base, hint=hint)
        return
    if key in chain:
        draft.refuse("base", "a base leads back to itself", found=" -> ".join((*chain, key)))
        return
    own, draft.origin = draft.origin, where
    _fill(draft, text, beside, (*chain, key))
    draft.origin = own


def _fill_sections(draft: _Draft, data: Mapping[str, Any]) -> None:
    """Every table of values of one file; a path set twice in it is refused."""
    tables = [("", USER, {k: v for k, v in data.items() if k not in _HEAD and k not in ORIGINS})]
    for origin in ORIGINS:
        table = data.get(origin, {})
        if isinstance(table, Mapping):
            tables.append((f"{origin}.", origin, dict(table)))
        else:
            draft.refuse(origin, "not a table of sections", found=table)
    seen: dict[str, str] = {}
    for prefix, origin, sections in tables:
        for section, values in sections.items():
            where = prefix + section
            if section not in SECTIONS:
                known = list(SECTIONS) if prefix else [*SECTIONS, *_HEAD, *ORIGINS]
                draft.refuse(where, "unknown section", hint=_nearest(section, known))
            elif not isinstance(values, Mapping):
                draft.refuse(where, "not a table of values", found=values)
            else:
                for name, value in values.items():
                    path, place = f"{section}.{name}", f"{where}.{name}"
                    if path in seen:
                        draft.refuse(place, "set twice in one file", found=f"also {seen[path]}")
                    seen[path] = place
                    _set(draft, path, value, origin, place)
    _follow(draft, seen)


def _follow(draft: _Draft, given: Collection[str]) -> None:
    """Numbers of cores, where what they are the product of was given and they were not."""
    for kind in ("cube_cores", "vector_cores"):
        total, parts = f"device.{kind}", ("device.groups", f"device.{kind}_per_group")
        groups, each = (draft.values.get(path) for path in parts)
        if total not in given and any(p in given for p in parts) and isinstance(groups, int) and isinstance(each, int):
            _set(draft, total, groups * each, USER, total)


def _set(draft: _Draft, path: str, value: object, origin: str, where: str) -> None:
    """One value: known field, right type, in range. A field that fails keeps no value, so nothing follows from it."""
    spec = all_fields().get(path)
    if spec is None:
        draft.refuse(where, "unknown field", hint=_nearest_field(path))
        return
    problem, converted = _convert(spec, value)
    if problem:
        draft.refuse(where, problem, expected=spec.range_text, found=value)
        draft.values.pop(path, None)
        draft.origins[path] = "refused"
        return
    draft.values[path] = converted
    draft.origins[path] = origin


def _convert(spec: FieldSpec, value: object) -> tuple[str, Value]:
    """What is wrong with a value ('' = nothing), and the value in the field's type."""
    if spec.is_list:
        if not isinstance(value, list) or not value:
            return "wrong type", 0
        items = [_scalar(spec, item) for item in value]
        problem = next((p for p, _ in items if p), "")
        numbers: list[Any] = [item for _, item in items]
        if not problem and spec.quantity.increasing and any(a >= b for a, b in pairwise(numbers)):
            problem = "not increasing"
        return problem, tuple(numbers)
    return _scalar(spec, value)


def _scalar(spec: FieldSpec, value: object) -> tuple[str, Any]:
    if spec.element is str:
        return ("", value) if isinstance(value, str) and value else ("wrong type", "")
    if spec.element is bool or isinstance(value, bool):
        return ("", value) if spec.element is bool and isinstance(value, bool) else ("wrong type", 0)
    if not isinstance(value, int | float) or (spec.element is int and not isinstance(value, int)):
        return "wrong type", 0
    limits = spec.quantity
    if not limits.low <= value <= limits.high:  # true of NaN too
        return "out of range", value
    if limits.power_of_two and (value < 1 or int(value) & (int(value) - 1)):
        return "not a power of two", value
    if limits.multiple_of > 1 and value % limits.multiple_of:
        return f"not a multiple of {limits.multiple_of}", value
    return "", spec.element(value)


def _fill_sensitivity(draft: _Draft, table: object) -> None:
    """The ranges of a file: two numbers of the field's type, low < high, both legal values of the field."""
    if not isinstance(table, Mapping):
        draft.refuse("sensitivity", "not a table of ranges", found=table)
        return
    for path, pair in table.items():
        where = f"sensitivity.{path}"
        spec = all_fields().get(path)
        if spec is None:
            hint = _nearest_field(path) if "." in path else 'write the path in quotes: "section.field" = [low, high]'
            draft.refuse(where, "unknown field", hint=hint)
        elif spec.is_list or not spec.is_numeric:
            draft.refuse(where, "only single numbers have a range")
        elif not isinstance(pair, list) or len(pair) != 2:
            draft.refuse(where, "not a range", expected="[low, high]", found=pair)
        else:
            ends = [_scalar(spec, end) for end in pair]
            problem = next((p for p, _ in ends if p), "")
            if problem:
                draft.refuse(where, problem, expected=f"both ends {spec.range_text}", found=pair)
            elif not pair[0] < pair[1]:
                draft.refuse(where, "empty range", expected="low < high", found=pair)
            else:
                draft.sensitivity[path] = (ends[0][1], ends[1][1])


def _finish(draft: _Draft) -> Description:
    """The description, once nothing is missing and all relations hold; else everything that is wrong."""
    for path, spec in all_fields().items():
        if path not in draft.origins:
            draft.refuse(path, "missing", expected=spec.range_text, hint="set it, or name a base")
    for path, (low, high) in draft.sensitivity.items():
        value = draft.values.get(path)
        if isinstance(value, int | float) and not low <= value <= high and draft.origins[path] != USER:
            draft.refuse(f"sensitivity.{path}", "the value lies outside", expected=f"{low} to {high}", found=value)
    draft.violations += [violation.within(draft.origin) for violation in relations(draft.values)]
    raise_all(FileFormatError, draft.violations)
    return Description(draft.name, draft.description, draft.values, draft.origins, draft.sensitivity)


def to_toml(found: Description) -> str:
    """Every field, without a base; sections in the order of the schema, split by origin."""
    lines = [
        f"schema_version = {SCHEMA_VERSION}",
        f"name = {_string(found.name)}",
        f"description = {_string(found.description)}",
    ]
    groups: dict[tuple[str, str], list[str]] = {}
    for path, spec in all_fields().items():
        line = f"{spec.name} = {toml_value(spec, found.values[path])}"
        groups.setdefault((spec.section, found.origins[path]), []).append(line)
    order = (*ORIGINS, USER)
    sections = dict.fromkeys(section for section, _ in groups)
    for section in sections:
        for origin in order:
            if (section, origin) in groups:
                head = section if origin == USER else f"{origin}.{section}"
                lines += ["", f"[{head}]", *groups[section, origin]]
    if found.sensitivity:
        specs = all_fields()
        lines += ["", "[sensitivity]"]
        for path, (low, high) in found.sensitivity.items():
            ends = f"[{toml_value(specs[path], low)}, {toml_value(specs[path], high)}]"
            lines.append(f"{_string(path)} = {ends}")
    return "\n".join(lines) + "\n"


def _string(text: str) -> str:
    """A TOML basic string: JSON's escapes are among TOML's, except for the delete character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_value(spec: FieldSpec, value: Value) -> str:
    """A value as TOML; addresses in hexadecimal."""
    if isinstance(value, tuple):
        return f"[{', '.join(toml_value(spec, item) for item in value)}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if spec.name.endswith("_address"):
        return f"{int(value):#010x}"
    return repr(value)


def _nearest(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"


def _nearest_field(path: str) -> str:
    """The same name in another section, a near name in this one, or the section's fields."""
    fields = all_fields()
    section, _, name = path.partition(".")
    own = [spec.name for spec in fields.values() if spec.section == section]
    elsewhere = [spec.path for spec in fields.values() if spec.name == name]
    near = difflib.get_close_matches(name, own, n=1, cutoff=0.6)
    found = elsewhere or near or difflib.get_close_matches(path, list(fields), n=1, cutoff=0.6)
    if found:
        return f"did you mean {found[0]!r}?"
    return f"known here: {', '.join(own)}" if own else f"sections: {', '.join(SECTIONS)}"
