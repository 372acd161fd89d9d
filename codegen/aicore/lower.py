"""LLVM IR to relocatable RV64 objects for the control units: verify, optimise, emit, keep on disk.

Model: `compile_rv64` turns IR text into object bytes (deterministic: same text, same bytes), every function in a
section of its own, `.text.<symbol>`, so that the linker can place it. `compile_modules` does several at once, through
the object cache and in several processes.

What a function is told besides its text: `no-builtins`, because there is no C library a loop could be turned into a
call of; `no-jump-tables`, because on an in-order core a table is a load from global memory per switch, and would have
to be copied with the code; `nounwind`, because nothing unwinds. LLVM's vectorisers are off: there are no vectors.
Integers are made of instructions, eight or so, and never loaded from a pool of constants: that would be a load from
global memory, hundreds of cycles when it is cold.

Invariant: no IR reaches code generation unverified, and none with inline assembly: LLVM ends the process on both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

import llvmlite

from superkernel.codegen.cache import ObjectCache
from superkernel.codegen.llvm import LlvmTarget, optimise, parsed
from superkernel.codegen.llvm_library import llvm
from superkernel.codegen.processes import run_jobs
from superkernel.core.errors import InternalError
from superkernel.core.version import __version__, sources_digest

TRIPLE: Final = "riscv64-unknown-elf"
CPU: Final = "generic-rv64"
FEATURES: Final = "+m,+a,+f,+d,+c,+zicbop,+zihintpause"
ABI: Final = "lp64d"
GENERATOR: Final = ("codegen/aicore/lower.py", "codegen/llvm.py")
"""The sources that decide what a text is compiled to."""
_MACHINE: Final = LlvmTarget(TRIPLE, CPU, FEATURES, "static", "medium", ABI)
MODULES_WORTH_A_CHILD: Final = 2
_BUILD_NUMBERS: Final = "-riscv-max-build-ints-cost=16"  # instructions, more than any number takes

_ATTRIBUTES = ' nounwind "no-builtins" "no-jump-tables"="true"'
_DEFINE = re.compile(r"^define [^\n]*$", re.MULTILINE)
_NAME = re.compile(r'@("(?:[^"]*)"|[-a-zA-Z$._0-9]+)\(')
_TAIL = re.compile(r"(?:\s+(?:unnamed_addr|local_unnamed_addr|addrspace\(\d+\)))*")
_GROUP = re.compile(r"(?:\s+#\d+)*")
_STRING = re.compile(r'"[^"]*"')
_ASSEMBLY = re.compile(
    r"^module asm"
    r"|^[^;\n]*\b(?:call|invoke|callbr) [^;\n@]*(?<= )asm (?:(?:sideeffect|alignstack|inteldialect|unwind) )*\"",
    re.MULTILINE,
)


@cache
def _build_numbers() -> None:
    """One of LLVM's own options, which hold for the process and may be given once."""
    llvm.set_option("superkernel", _BUILD_NUMBERS)


def compile_rv64(text: str) -> bytes:
    """The object of a module's IR text. Raises InternalError with LLVM's message on what is not valid."""
    machine = _MACHINE.open()
    _build_numbers()
    module = parsed(text, TRIPLE, machine)
    canonical = str(module)
    if found := _ASSEMBLY.search(_STRING.sub('""', canonical)):
        raise InternalError(
            "inline assembly, which LLVM cannot assemble for this target",
            location=f"IR line {canonical.count(chr(10), 0, found.start()) + 1}",
            found=found[0].strip(),
            hint="boot.py encodes instructions that LLVM has no name for",
        )
    module = parsed(_DEFINE.sub(_with_attributes, canonical), TRIPLE, machine)
    optimise(module, machine)
    module = parsed(_DEFINE.sub(_with_section, str(module)), TRIPLE, machine)
    return bytes(machine.emit_object(module))


def compile_modules(
    texts: Sequence[str], cache: ObjectCache, report: Callable[[int, int], None] = lambda done, total: None
) -> list[bytes]:
    """The object of each text, from the cache where it is there. `report` is called with (done, total) of the rest."""
    keys = [cache_key(text) for text in texts]
    found = {key: cache.get(key) for key in dict.fromkeys(keys)}
    missing = {key: text for key, text in zip(keys, texts, strict=True) if found[key] is None}
    made = run_jobs(
        compile_rv64,
        list(missing.values()),
        lambda done: report(done, len(missing)),
        jobs_per_child=MODULES_WORTH_A_CHILD,
    )
    for key, data in zip(missing, made, strict=True):
        cache.put(key, data)
        found[key] = data
    objects = [found[key] for key in keys]
    return [data for data in objects if data is not None]


def cache_key(text: str) -> str:
    """Everything that determines the object of a text."""
    return f"{_generator()}\n{text}"


@cache
def _generator() -> str:
    """What makes objects of texts. Kept: to find out a package's version takes longer than to find an object."""
    llvm_version = ".".join(map(str, llvm.llvm_version_info))
    versions = f"{__version__} {sources_digest(*GENERATOR)} llvmlite {llvmlite.__version__} LLVM {llvm_version}"
    return f"rv64 {versions} {TRIPLE} {CPU} {FEATURES} {ABI} static medium O2"


def _split(line: str) -> tuple[str, str, str]:
    """A `define` line as LLVM prints it: up to behind the parameters, the function's name, the rest."""
    name = _NAME.search(line)
    assert name is not None, line
    depth, at, quoted = 1, name.end(), False
    while depth:
        letter = line[at]
        if letter == '"':
            quoted = not quoted
        elif not quoted:
            depth += (letter == "(") - (letter == ")")
        at += 1
    tail = _TAIL.match(line, at)
    assert tail is not None
    return line[: tail.end()], name[1].strip('"'), line[tail.end() :]


def _with_attributes(match: re.Match[str]) -> str:
    head, _, rest = _split(match[0])
    return head + _ATTRIBUTES + rest


def _with_section(match: re.Match[str]) -> str:
    head, name, rest = _split(match[0])
    if ' section "' in rest:
        rest = re.sub(r' section "[^"]*"', "", rest, count=1)
    group = _GROUP.match(rest)
    at = group.end() if group else 0
    return f'{head}{rest[:at]} section ".text.{name}"{rest[at:]}'
