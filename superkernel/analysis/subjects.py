"""The verifiers under test, by target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from superkernel.analysis.rates import Subject
from superkernel.analysis.rates_aicore import AICORE
from superkernel.analysis.rates_host import HOST
from superkernel.core.errors import InputError

SUBJECTS: Final[Mapping[str, Subject[Any]]] = {one.target: one for one in (HOST, AICORE)}


def subject_of(target: str) -> Subject[Any]:
    """The verifier of a target. Raises InputError where there is none."""
    if target not in SUBJECTS:
        raise InputError("no such target", location="--target", expected=" or ".join(SUBJECTS), found=target)
    return SUBJECTS[target]
