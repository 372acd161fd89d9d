"""Both sides of the contract between generated code and the runtime say the same."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from superkernel import _core
from superkernel.codegen.host import abi

ROOT = Path(__file__).parents[2]
HEADER = ROOT / "csrc/include/superkernel_abi.h"


def test_layout_matches_the_compiler() -> None:
    layout = _core.abi_layout()
    assert layout["version"] == abi.ABI_VERSION == _core.ABI_VERSION
    assert layout["flag_stride"] == abi.FLAG_STRIDE
    assert layout["context_bytes"] == abi.CONTEXT_BYTES
    assert layout["offsets"] == dict(abi.OFFSET)


def test_fields_match_the_header_in_order_and_width() -> None:
    body = re.search(r"struct SkContext \{(.*?)\n\};", HEADER.read_text(), re.S)
    assert body is not None
    found = []
    for declaration in re.findall(r"^\s*([\w* ]+?)\s*(\w+);", body[1], re.M):
        kind, name = declaration
        found.append((name, {"uint64_t": "i64", "uint32_t": "i32"}.get(kind, "ptr")))
    assert tuple(found) == abi.FIELDS


def test_stub_names_what_the_module_has() -> None:
    tree = ast.parse((ROOT / "superkernel/_core.pyi").read_text())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    only_types = {c.name for c in classes if "TypedDict" in map(ast.unparse, c.bases)}  # shapes of dictionaries
    named = [node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))]
    named += [ast.unparse(node.target) for node in tree.body if isinstance(node, ast.AnnAssign)]
    present = {name for name in dir(_core) if not name.startswith("_")}
    assert set(named) - only_types == present
    for described in classes:
        if described.name in only_types or not described.body or described.bases:
            continue
        methods = {node.name for node in described.body if isinstance(node, ast.FunctionDef)}
        known = vars(getattr(_core, described.name))
        assert methods <= known.keys() | {"__init__", "__call__"}, described.name
        assert {name for name in known if not name.startswith("_")} <= methods, described.name


def test_dictionaries_have_the_keys_of_the_stub() -> None:
    stub = (ROOT / "superkernel/_core.pyi").read_text()
    body = re.search(r"class PoolInfo\(TypedDict\):\n(.*?)\nclass ", stub, re.S)
    assert body is not None
    assert set(re.findall(r"^    (\w+):", body[1], re.M)) == set(_core.pool_info())
