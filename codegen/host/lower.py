"""LLVM IR to machine code for the host (`codegen/llvm.py`); `loader.py` makes it executable."""

from __future__ import annotations

from superkernel.codegen.llvm import LlvmTarget, compile_text, optimised
from superkernel.target.cpu import EMULATED_TILES, TILES, CpuTarget
from superkernel.target.microcontroller import MicrocontrollerTarget


def machine_of(cpu: CpuTarget, level: int = 2) -> LlvmTarget:
    """LLVM's words for the CPU target (features decide, not the CPU's name). `level`: of optimisation, 0 to 2."""
    if isinstance(cpu, MicrocontrollerTarget):
        return LlvmTarget(cpu.triple, cpu.core, cpu.features, "static", "small", level=level)
    words = cpu.extensions().difference((EMULATED_TILES, *TILES) if cpu.emulates_tiles else ())
    features = ",".join([*sorted(f"+{word}" for word in words), *(["-prefer-256-bit"] if cpu.tier == "avx512" else [])])
    name = "x86-64" if cpu.triple.startswith("x86_64") else "generic"
    return LlvmTarget(cpu.triple, name, features, "pic", "default", loaded_here=True, level=level)


def compile_ir(text: str, cpu: CpuTarget, level: int = 2) -> bytes:
    """Object code of a module's IR text, made in this process. `level`: of optimisation, as in `machine_of`. Raises
    InternalError with LLVM's message."""
    return compile_text(text, machine_of(cpu, level))


def assembly(text: str, cpu: CpuTarget, level: int = 2) -> str:
    """The same code as text."""
    machine = machine_of(cpu, level)
    opened = machine.open()
    return str(opened.emit_assembly(optimised(text, machine, opened)))
