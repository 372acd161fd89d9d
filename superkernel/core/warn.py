"""Warnings that name the line of the caller: the one outside of this package that led here.

`warnings.warn` counts frames, and how many lie between a caller and the place that finds something out depends on the
way there.
"""

from __future__ import annotations

import sys
import warnings
from types import FrameType

_PACKAGE = __name__.partition(".")[0]
_BETWEEN = {_PACKAGE, "contextlib", "functools", "concurrent", "threading"}  # stand between lines of our own


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the innermost line outside of the package; at the outermost line where there is none."""
    frame: FrameType = sys._getframe(1)
    while frame.f_back is not None and _package(frame) in _BETWEEN:
        frame = frame.f_back
    scope = frame.f_globals
    module = str(scope.get("__name__") or "<string>")
    registry = scope.setdefault("__warningregistry__", {})
    warnings.warn_explicit(text, category, frame.f_code.co_filename, frame.f_lineno, module, registry)


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__") or "").partition(".")[0]
