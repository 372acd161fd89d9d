"""Targets whose cross-core flags hold too few signals for a plan: what they would have to hold.

Model: the planner takes events early where their counts come near a limit (`_relieve`), which orders who may signal
next. With very few flags of small counts there is nothing to take early enough, and the verifier rejects the plan. This
module tells such a target apart from a wrong plan: a plan made for the same flags with larger counts is proved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from superkernel.errors import UnsupportedError, VerificationError
from superkernel.sync.aicore.plan import AicorePlan
from superkernel.sync.aicore.verify import verify_aicore
from superkernel.target.aicore import AicoreTarget
from superkernel.target.sections import all_fields

FIELD = "sync.flag_count_max"


def check_limits(planned: Callable[[AicoreTarget], AicorePlan], target: AicoreTarget, units: Mapping[int, int]) -> None:
    """Called for a plan that was rejected: raises UnsupportedError where larger counts make a plan that is not.
    `planned`: the plan for a target."""
    counts = range(target.sync.flag_count_max + 1, int(all_fields()[FIELD].quantity.high) + 1)

    def proved(count: int) -> bool:
        plan = planned(target.replaced({FIELD: count}))
        try:
            verify_aicore(plan, units)
        except VerificationError:
            return False
        return True

    if counts and proved(counts[-1]):
        raise UnsupportedError(
            "cross-core flags hold too few signals for this graph",
            location=f"target field {FIELD!r}",
            expected=f"at least {next(filter(proved, counts))}",
            found=target.sync.flag_count_max,
            hint="or more flags: sync.flags_per_core",
        )
