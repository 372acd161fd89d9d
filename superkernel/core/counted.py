"""A number and what it counts, as text."""

from __future__ import annotations

_ENDINGS = (("y", "ies"), ("ch", "ches"), ("sh", "shes"), ("s", "ses"), ("x", "xes"))


def counted(count: int, noun: str) -> str:
    """`1 wait`, `2 waits`, `0 boundaries`: the noun is given in the singular, and its last word takes the plural.
    Nouns in -f, in a vowel and -y, and irregular ones are none of those that are printed here."""
    if count == 1:
        return f"{count} {noun}"
    for ending, plural in _ENDINGS:
        if noun.endswith(ending):
            return f"{count} {noun[: len(noun) - len(ending)]}{plural}"
    return f"{count} {noun}s"
