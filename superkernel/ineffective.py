"""Which options of a compilation change nothing on its target, so that nobody believes in one that does not.

Model: an option that a target cannot have and that would change results or promises is refused (`api.check_options`).
One that is only about how a target works is accepted, so that one set of options serves several targets, and is named
here, in `summary()` and by `explain`, where it differs from its default.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from superkernel.options import Options

ON_HOST: Final[Mapping[str, str]] = {
    "func_align": "functions lie as LLVM aligns them",
    "preload": "a CPU fetches code by itself",
    "split": "cores have their own caches of code, all of it",
    "launches": "there is one entry, always",
    "locality": "cores have no groups",
    "scopes": "there is one entry, always",
    "strict_scope": "a fallback does not split the kernel",
}
"""Option -> why it has no effect."""
ON_ACCELERATOR: Final[Mapping[str, str]] = {
    "watchdog_ms": "the simulator finds deadlocks by itself, and the emulator has a watchdog of its own",
    "cost_placement": "sub-operators are always placed by estimate",
}


def without_effect(options: Options, *, host: bool) -> tuple[str, ...]:
    """The options given that change nothing: "name=value: why", in alphabetical order."""
    reasons = ON_HOST if host else ON_ACCELERATOR
    default = {f.name: getattr(Options(), f.name) for f in dataclasses.fields(Options)}
    return tuple(
        f"{name}={getattr(options, name)!r} has no effect on {'the host' if host else 'an accelerator'}: {why}"
        for name, why in sorted(reasons.items())
        if getattr(options, name) != default[name]
    )
