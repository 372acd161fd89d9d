"""The user's C++ compiler: found, asked to compile the runtime and to link a library.

Model: the compiler is the one that the caller names, else that of $CXX, else the first of `c++`, `g++` and `clang++`.
The runtime's objects depend on their sources, the compiler and its flags alone: they are kept in the cache of compiled
objects under these. Sources lie in the package (`superkernel/native`).
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from superkernel.codegen.cache import ObjectCache, key_digest
from superkernel.core import settings
from superkernel.core.errors import MachineError
from superkernel.core.limits import usable_cpus

SOURCES = Path(__file__).parents[3] / "native"
RUNTIME = (
    "library/cpu_features.cpp",
    "library/library.cpp",
    "runtime/clock.cpp",
    "runtime/cpu.cpp",
    "runtime/hardware_counters.cpp",
    "runtime/kernel.cpp",
    "runtime/memory.cpp",
    "runtime/platform.cpp",
    "runtime/pool.cpp",
)
"""What a library holds of the runtime: all but what tells of crashes in Python processes, and records programs."""

_COMPILE = (
    "-std=c++20",
    "-O2",
    "-DNDEBUG",
    "-fPIC",
    "-fvisibility=hidden",
    "-fvisibility-inlines-hidden",
    "-pthread",
)
_SHARED = (
    "-shared",
    "-pthread",
    "-static-libstdc++",
    "-static-libgcc",
    "-Wl,-z,defs",
    "-Wl,-z,noexecstack",
    "-Wl,-z,nodelete",
    "-Wl,--version-script=exports.map",
)
"""`nodelete`: workers sleep in its code, so that it stays once it is loaded."""
_RELOCATABLE = ("-r", "-nostdlib", "-Wl,-z,noexecstack", "-Wl,--force-group-allocation")
_INCLUDES = (f"-I{SOURCES}", f"-I{SOURCES / 'include'}")
_SAID_MAX = 2000


@dataclass(frozen=True)
class Toolchain:
    """A C++ compiler. `command`: with arguments that always come first; `version`: what it says of itself."""

    command: tuple[str, ...]
    version: str

    def compiled(self, source: Path, folder: Path) -> Path:
        """The object of a C++ source, in `folder`, where files that it takes in lie."""
        made = folder / f"{source.stem}.o"
        self._run([*self.command, *_COMPILE, *_INCLUDES, "-c", str(source), "-o", str(made)], folder)
        return made

    def runtime(self, folder: Path, cache: ObjectCache) -> list[bytes]:
        """The objects of the runtime."""
        headers = sorted(path for name in ("include", "library", "runtime") for path in (SOURCES / name).glob("*.h"))
        stamp = key_digest("\n".join([repr(self), *_COMPILE, *(path.read_text() for path in headers)]))

        def made(name: str) -> bytes:
            key = f"runtime {stamp} {name}\n{(SOURCES / name).read_text()}"
            found = cache.get(key)
            if found is None:
                found = self.compiled(SOURCES / name, folder).read_bytes()
                cache.put(key, found)
            return found

        with ThreadPoolExecutor(usable_cpus()) as workers:
            return list(workers.map(made, RUNTIME))

    def shared(self, objects: Sequence[str], output: str, functions: str, folder: Path) -> None:
        """Link a shared library in `folder`; `functions`: a pattern of what it exports."""
        (folder / "exports.map").write_text(f"{{ global: {functions}; local: *; }};\n")
        self._run([*self.command, *_SHARED, f"-Wl,-soname,{output}", *objects, "-o", output], folder)

    def static(self, objects: Sequence[str], output: str, folder: Path) -> None:
        """A static library in `folder`: of one object that others see no symbols of but those of the header."""
        self._run([*self.command, *_RELOCATABLE, *objects, "-o", "whole.o"], folder)
        self._run([*_tool("OBJCOPY", "objcopy", "llvm-objcopy"), "--localize-hidden", "whole.o"], folder)
        self._run([*_tool("AR", "ar", "llvm-ar"), "rcsD", output, "whole.o"], folder)

    def _run(self, command: Sequence[str], folder: Path) -> None:
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
        except OSError as error:
            raise MachineError("cannot start a tool", location=command[0], found=str(error)) from error
        if done.returncode:
            said = (done.stderr or done.stdout).strip()[-_SAID_MAX:]
            raise MachineError("the library cannot be built", location=shlex.join(command[:3]), found=said)


def find_toolchain(compiler: str | None) -> Toolchain:
    """The compiler that is named, or the one at hand. Raises MachineError."""
    command = _tool("CXX", "c++", "g++", "clang++", named=compiler)
    try:
        said = subprocess.run([*command, "--version"], capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise MachineError("cannot start the C++ compiler", location=command[0], found=str(error)) from error
    if said.returncode:
        raise MachineError("not a C++ compiler", location=shlex.join(command), found=said.stderr.strip()[-_SAID_MAX:])
    return Toolchain(command, said.stdout)


def _tool(variable: str, *names: str, named: str | None = None) -> tuple[str, ...]:
    """The command of a tool: as named, as the environment says, or the first that is installed. Raises MachineError."""
    told = named or settings.tool(variable)
    candidates = [shlex.split(told)] if told else [[name] for name in names]
    for first, *arguments in filter(None, candidates):
        found = shutil.which(first)
        if found is not None:
            return (found, *arguments)
    hint = f"install one (on Debian and Ubuntu: apt install g++), or name it in ${variable}"
    raise MachineError(
        "a tool that libraries are built with is missing",
        expected=" or ".join(names),
        found=f"no {told!r}" if told else "none of them",
        hint=hint,
    )
