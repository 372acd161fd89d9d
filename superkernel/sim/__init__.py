"""The accelerator's simulator. What stands so far: its RV64 control unit, as a machine that runs bare-metal programs.

`run_program` is the whole of `superkernel sim run`; `Machine` gives the pieces to those who want to look inside.
"""

from superkernel.sim.machine import CacheGeometry, HartState, Machine
from superkernel.sim.program import HartSummary, ProgramResult, run_program

__all__ = ["CacheGeometry", "HartState", "HartSummary", "Machine", "ProgramResult", "run_program"]
