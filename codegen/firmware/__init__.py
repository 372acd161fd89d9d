"""The firmware with which an emulator of plain RV64 harts stands in for the accelerator.

It runs in machine mode below an unchanged program: stores to the register page trap into it, and it carries the engine
commands out in software. It is LLVM IR written from the words of the command table (docs/hardware.md), independently
of the simulator, so that the two check one another. docs/emulator.md says how it works.
"""
