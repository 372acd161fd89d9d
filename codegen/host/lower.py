"""LLVM IR to machine code for the host: verify, optimise, emit an object; `loader.py` makes objects executable.

Model: `compile_ir` turns IR text into object bytes (deterministic: same text, same bytes). Explicit vectors come from
the emitters, so LLVM's own vectorisers are off: they cost four times the compile time and gain nothing here.

Invariant: no IR reaches code generation unverified (LLVM aborts the process on what it cannot select).
"""

from __future__ import annotations

import llvmlite.binding as llvm

from superkernel.codegen.host.features import initialize_llvm
from superkernel.core.errors import InternalError
from superkernel.target.cpu import CpuTarget


def target_machine(cpu: CpuTarget) -> llvm.TargetMachine:
    """An LLVM target machine for the CPU target (features decide, not the CPU's name)."""
    initialize_llvm()
    features = cpu.features + (",-prefer-256-bit" if cpu.tier == "avx512" else "")
    name = "x86-64" if cpu.triple.startswith("x86_64") else "generic"
    return llvm.Target.from_triple(cpu.triple).create_target_machine(
        cpu=name, features=features.lstrip(","), opt=2, reloc="pic", codemodel="default", jit=True
    )


def compile_ir(text: str, cpu: CpuTarget) -> bytes:
    """Object code of a module's IR text. Raises InternalError with LLVM's message on invalid IR."""
    machine = target_machine(cpu)
    return bytes(machine.emit_object(_optimised(text, cpu, machine)))


def assembly(text: str, cpu: CpuTarget) -> str:
    """The same code as `compile_ir` gives, as text."""
    machine = target_machine(cpu)
    return str(machine.emit_assembly(_optimised(text, cpu, machine)))


def _optimised(text: str, cpu: CpuTarget, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    module = parsed(text, cpu.triple, machine)
    optimise(module, machine)
    return module


def parsed(text: str, triple: str, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    """The verified module with triple and data layout (without one, LLVM may cut stores in two). Raises InternalError
    with LLVM's message."""
    try:
        module = llvm.parse_assembly(text)
        module.triple, module.data_layout = triple, str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        raise InternalError(f"the generated code is not valid LLVM IR: {error}") from error
    return module


def optimise(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    """LLVM's passes, without those that vectorise or unroll."""
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_interleaving = False
    options.loop_unrolling = False
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
