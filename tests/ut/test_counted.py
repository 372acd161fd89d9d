"""Numbers with what they count."""

from __future__ import annotations

import pytest

from superkernel.core.counted import counted


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (1, "wait", "1 wait"), (0, "wait", "0 waits"), (2, "full barrier", "2 full barriers"),
        (1, "copy", "1 copy"), (3, "copy", "3 copies"), (2, "launch", "2 launches"), (2, "access", "2 accesses"),
        (1234, "event", "1234 events"),
    ],
)  # fmt: skip
def test_one_is_singular(count: int, noun: str, text: str) -> None:
    assert counted(count, noun) == text
