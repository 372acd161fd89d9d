"""Emitters of kernels from outside: what may go wrong in them is told with the kernel's name."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from superkernel.core.errors import SuperKernelError, UserError

P = ParamSpec("P")


def outside(kernel: str, emitter: Callable[P, None]) -> Callable[P, None]:
    """The emitter of a kernel that is not the package's. It raises UserError where that raises what is no error of
    ours."""

    @wraps(emitter)
    def emit(*args: P.args, **named: P.kwargs) -> None:
        try:
            emitter(*args, **named)
        except SuperKernelError:
            raise
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
            raise UserError("its emitter failed", location=f"kernel {kernel!r}", found=found) from error

    return emit
