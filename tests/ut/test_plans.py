"""What is tried, estimated and planned is what it was when it was last looked at: a change shows as text.

The accelerator's and the CPUs' estimates rank kernels, tilings and places; any change of them, meant or not, is in the
diff of `tests/plans/`, which `python tests/plans.py` writes."""

from __future__ import annotations

from difflib import unified_diff
from itertools import islice

import plans
import pytest

SHOWN = 40  # lines of a difference


@pytest.mark.parametrize("text", plans.TEXTS)
def test_plans_are_those_that_were_looked_at(text: str) -> None:
    kept, made = plans.path_of(text).read_text().splitlines(), plans.TEXTS[text]().splitlines()
    changed = list(islice(unified_diff(kept, made, "kept", "made", lineterm="", n=0), SHOWN))
    assert not changed, "look at it and keep it by `python tests/plans.py`:\n" + "\n".join(changed)


def test_nothing_else_is_kept() -> None:
    assert {path.stem for path in plans.FOLDER.iterdir()} == {*plans.TEXTS}
