"""docs/operators.md is what the operator table says today."""

from __future__ import annotations

from pathlib import Path

from superkernel.ops.document import document
from superkernel.ops.table import op_table

PAGE = Path(__file__).parents[2] / "docs" / "operators.md"


def test_the_page_is_up_to_date() -> None:
    hint = "run `python -m superkernel.ops.document > docs/operators.md`"
    assert PAGE.read_text(encoding="utf-8") == document(op_table().values()), hint


def test_the_page_names_everything() -> None:
    page = document(op_table().values())
    for row in op_table().values():
        head = f"### `{row.name}("
        assert page.count(head) == 1
        section = page.split(head)[1].split("\n### ")[0]
        assert row.doc in section
        assert all(f"`{attr.name}`" in section for attr in row.attrs)
