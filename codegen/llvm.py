"""LLVM IR to object code, for any machine: verify, optimise, emit.

Model: `compile_text` turns IR text into object bytes (deterministic: same text and machine, same bytes). Explicit
vectors come from the emitters, so LLVM's own vectorisers are off: they cost four times the compile time and gain
nothing here. This module imports little, so that helper processes which compile start fast.

Invariant: no IR reaches code generation unverified (LLVM aborts the process on what it cannot select).
"""

from __future__ import annotations

import os
from functools import cache
from typing import NamedTuple

from superkernel.codegen.llvm_library import llvm
from superkernel.core.errors import InternalError


class LlvmTarget(NamedTuple):
    """What code is made for, in LLVM's words. `level`: of optimisation; 0: code is translated as it stands."""

    triple: str
    cpu: str
    features: str
    relocations: str
    code_model: str
    abi: str = ""
    loaded_here: bool = False
    level: int = 2

    @cache  # noqa: B019  (a handful of them, equal ones alike)
    def open(self) -> llvm.TargetMachine:
        """LLVM's object for it: one, since what it finds out about a CPU takes about as long as compiling a copy."""
        initialize_llvm()
        return llvm.Target.from_triple(self.triple).create_target_machine(
            cpu=self.cpu,
            features=self.features,
            opt=self.level,
            reloc=self.relocations,
            codemodel=self.code_model,
            abiname=self.abi,
            jit=self.loaded_here,
        )


@cache
def initialize_llvm() -> None:
    """Make LLVM's targets available; idempotent."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()
    _wait_for_llvm_before_forks()


def _wait_for_llvm_before_forks() -> None:
    """llvmlite holds one lock during every call into LLVM. A fork that happened meanwhile would leave the child with
    the lock taken by a thread that it has not, and with LLVM's own data half written; the first compilation there would
    wait for ever. So from now on a fork waits for the call that is under way: it takes the lock, and both sides give it
    back. Does nothing where llvmlite has no such lock."""
    lock = getattr(llvm.ffi.lib, "_lock", None)
    if lock is None:
        return

    def release() -> None:
        lock.__exit__(None, None, None)

    os.register_at_fork(before=lock.__enter__, after_in_parent=release, after_in_child=release)


def compile_text(text: str, machine: LlvmTarget) -> bytes:
    """Object code of a module's IR text. Raises InternalError with LLVM's message on invalid IR."""
    opened = machine.open()
    return bytes(opened.emit_object(optimised(text, machine, opened)))


def optimised(text: str, machine: LlvmTarget, opened: llvm.TargetMachine) -> llvm.ModuleRef:
    """The module that code is generated from."""
    module = parsed(text, machine.triple, opened)
    if machine.level:
        optimise(module, opened)
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
