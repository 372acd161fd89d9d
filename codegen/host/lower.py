"""LLVM IR to machine code for the host (`codegen/llvm.py`); `loader.py` makes it executable."""

from __future__ import annotations

from superkernel.codegen.llvm import LlvmTarget, compile_text, optimised
from superkernel.target.cpu import CpuTarget


def machine_of(cpu: CpuTarget) -> LlvmTarget:
    """LLVM's words for the CPU target (features decide, not the CPU's name)."""
    features = cpu.features + (",-prefer-256-bit" if cpu.tier == "avx512" else "")
    name = "x86-64" if cpu.triple.startswith("x86_64") else "generic"
    return LlvmTarget(cpu.triple, name, features.lstrip(","), "pic", "default", loaded_here=True)


def compile_ir(text: str, cpu: CpuTarget) -> bytes:
    """Object code of a module's IR text, made in this process. Raises InternalError with LLVM's message."""
    return compile_text(text, machine_of(cpu))


def assembly(text: str, cpu: CpuTarget) -> str:
    """The same code as `compile_ir` gives, as text."""
    machine = machine_of(cpu)
    opened = machine.open()
    return str(opened.emit_assembly(optimised(text, machine, opened)))
