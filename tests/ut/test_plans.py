"""What is tried, estimated, planned and emitted is what it was when it was last looked at: a change shows as text.

The accelerator's and the CPUs' estimates rank kernels, tilings and places; any change of them, or of code, meant or
not, is in the diff of `tests/plans/`, which `python tests/plans.py` writes."""

from __future__ import annotations

from difflib import unified_diff
from itertools import islice

import emitted
import plans
import pytest

SHOWN = 40  # lines of a difference


@pytest.mark.parametrize("text", plans.TEXTS)
def test_plans_are_those_that_were_looked_at(text: str) -> None:
    kept, made = plans.path_of(text).read_text().splitlines(), plans.TEXTS[text]().splitlines()
    changed = list(islice(unified_diff(kept, made, "kept", "made", lineterm="", n=0), SHOWN))
    assert not changed, "look at it and keep it by `python tests/plans.py`:\n" + "\n".join(changed)


def test_code_is_told_apart_by_more_than_its_length() -> None:
    """One number of an instruction is another: the row's digest is."""
    text = "define void @f() {\n  %a = add i64 1, 2\n  store i64 %a, ptr null\n  tail call void @g()\n}\n"
    first, second = emitted.code_row(text), emitted.code_row(text.replace("1, 2", "1, 3"))
    assert first.split()[:3] == second.split()[:3] == ["3", "1", "1"]
    assert first != second


def test_digests_in_names_are_numbered() -> None:
    names = [f"k_one_{'ab' * 8}", f"k_two_{'cd' * 10}", f"k_one_{'ab' * 8}", "k_three_12"]
    assert emitted.numbered(" ".join(names)) == "k_one_0 k_two_1 k_one_0 k_three_12"


def test_nothing_else_is_kept() -> None:
    assert {path.stem for path in plans.FOLDER.iterdir()} == {*plans.TEXTS}
