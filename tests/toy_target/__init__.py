"""A third kind of target, whole and small: an interpreter of a few cores, written against the protocol of backends.

Its kernels are evaluated unit by unit in Python, on the very bytes that the memory plan gives them; its cores take
turns at random and obey the plan's waits. Importing this package is all it takes to compile for it.
"""

from superkernel.backends import register
from toy_target.target import ToyTarget

register(ToyTarget.kind, __name__)

__all__ = ["ToyTarget"]
