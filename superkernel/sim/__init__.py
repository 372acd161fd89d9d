"""The accelerator's simulator: the whole device in cycles, and its RV64 control unit alone.

`Device` runs an image on cores, engines and memory of a target (`device.py`); `LaunchResult` is what it counted. The
control unit alone is a machine that runs bare-metal programs: `run_program` is the whole of `superkernel sim run`,
`Machine` gives the pieces to those who want to look inside.
"""

from superkernel.sim.counters import LaunchResult
from superkernel.sim.device import Device
from superkernel.sim.machine import CacheGeometry, HartState, Machine
from superkernel.sim.program import HartSummary, ProgramResult, run_program

__all__ = [
    "CacheGeometry",
    "Device",
    "HartState",
    "HartSummary",
    "LaunchResult",
    "Machine",
    "ProgramResult",
    "run_program",
]
