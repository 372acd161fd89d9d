"""From compilations to a static library for a firmware, and its header: what `superkernel.export` does for a core.

Model: the attested objects, byte for byte, under names that begin with the library's, and per model two objects of
data: packed constants, what states begin as. A linker takes of the file what the firmware's calls need: models that it
does not run cost nothing. No compiler and no other tool is asked: LLVM made the objects, `archive.py` makes the file.

Invariants: nothing in it allocates, starts threads or has memory of its own that is written; the program of each model
is read back out of the finished objects and is the one that was proved; constants and code of all models fit the flash
of the target's profile.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from superkernel.backends.host.library.contents import LibraryContents, LibraryModel, contents
from superkernel.backends.host.library.ctext import c_string
from superkernel.backends.host.library.header import check_macros, fields, pointers, tensor_macros
from superkernel.backends.host.library.symbols import defined, hidden
from superkernel.backends.microcontroller.archive import archive
from superkernel.backends.microcontroller.compiled import MicrocontrollerCompiled
from superkernel.backends.microcontroller.readback import bases_of, bytes_of, read_back
from superkernel.codegen.host.lower import machine_of
from superkernel.codegen.llvm import compile_text
from superkernel.codegen.microcontroller.image import memory_bytes
from superkernel.codegen.microcontroller.program import (
    ARENA_ALIGN_BYTES,
    CONSTANTS,
    INITIAL,
    RESET,
    RUN,
    TABLE,
    emit_data,
    initial_offsets,
)
from superkernel.codegen.processes import run_jobs
from superkernel.compilation.library import Library
from superkernel.core.errors import InputError, InternalError, WorkspaceError
from superkernel.core.version import __version__

_STATUS = """\
#ifndef SUPERKERNEL_FIRMWARE_STATUS
#define SUPERKERNEL_FIRMWARE_STATUS
typedef int32_t SkFirmwareStatus;
enum {
  SK_FIRMWARE_OK = 0,
  SK_FIRMWARE_ERROR_ARGUMENT = 6  // an address that is null or not aligned, or memory that overlaps
};
#endif
"""


def export(
    models: Mapping[str, Sequence[MicrocontrollerCompiled]], path: Path, manifest: Sequence[str], compiler: str | None
) -> Library:
    """Write `libNAME.a`, and `NAME.h` beside it. `manifest`: files that list the kernels it may hold; none: all. Raises
    InputError, UnsupportedError, ManifestError, WorkspaceError."""
    found = re.fullmatch(r"lib(.+)\.a", path.name)
    if found is None:
        raise InputError("not the name of a firmware's library", expected="libNAME.a", found=repr(path.name))
    if compiler is not None:
        raise InputError(
            "no compiler is asked for a firmware's library", location="argument 'compiler'", found=compiler
        )
    library = contents(found[1], models)
    listed = library.listed(manifest)
    code, data = _code(library), _data(library)
    constant_bytes = sum(map(memory_bytes, data))
    code_bytes = sum(map(memory_bytes, code))
    flash = _plan(library.models[0]).target.regions()["flash"]
    if code_bytes + constant_bytes > flash:
        raise WorkspaceError(
            "the models do not fit the target's memory",
            location="region 'flash'",
            expected=f"at most {flash} bytes",
            found=f"{code_bytes + constant_bytes} bytes (constants {constant_bytes}, code {code_bytes})",
            hint="make a library of fewer models",
        )
    file, header = io.BytesIO(archive([*code, *data])), "\n".join(_header(library))
    return library.written(path, file, header, listed, code_bytes=code_bytes, constant_bytes=constant_bytes)


def _plan(model: LibraryModel) -> MicrocontrollerCompiled:
    (plan,) = model.plans
    assert isinstance(plan, MicrocontrollerCompiled)
    return plan


def _prefix(library: LibraryContents, model: LibraryModel) -> str:
    return f"{library.name}_{model.word}"


def _names(library: LibraryContents, model: LibraryModel) -> dict[str, str]:
    """What symbols of a model's objects are called in the library."""
    prefix = _prefix(library, model)
    own = {RUN: "run_at", RESET: "reset_at", TABLE: "table", CONSTANTS: "constants", INITIAL: "initial"}
    kernels = {symbol: f"{library.name}_{symbol}" for symbol in _plan(model).image.symbols if symbol is not None}
    return {symbol: f"{prefix}_{word}" for symbol, word in own.items()} | kernels


def _code(library: LibraryContents) -> list[bytes]:
    """Kernels and programs, each once. Raises InternalError where a program is not the one that was proved."""
    made: dict[str, bytes] = {}
    for model in library.models:
        plan, names = _plan(model), _names(library, model)
        for data in plan.image.objects.values():
            renamed = hidden(data, names)
            first = next(defined(renamed))
            if made.setdefault(first, renamed) != renamed:
                raise InternalError("two contents under one symbol", location=f"model {model.name!r}", found=first)
        back = {new: old for old, new in names.items()}
        program = hidden(_with(made, names[RUN]), back)
        recorded = read_back(program, bases_of(plan.graph), plan.image.working)
        emitted = plan.certificate.emitted
        if emitted is None or recorded.digest != emitted.program:
            raise InternalError("the program in a library is not the one that was proved", location=model.name)
    return list(made.values())


def _with(made: Mapping[str, bytes], symbol: str) -> bytes:
    return next(data for data in made.values() if symbol in defined(data))


def _data(library: LibraryContents) -> list[bytes]:
    """The objects of constants, and of what states begin as. Raises InternalError where one has other bytes."""
    contents_of: dict[str, bytes] = {}
    machine = machine_of(library.models[0].plans[0].target)
    for model in library.models:
        plan, own = _plan(model), _names(library, model)
        blob = b"".join(bytes(part) for part in plan.image.constants.image())
        starts = initial_offsets(plan.image.spec.states)
        initial = bytearray(starts[-1])
        for start, array in zip(starts, plan.graph.states.values(), strict=False):
            initial[start : start + array.nbytes] = array.tobytes()
        contents_of |= {own[CONSTANTS]: blob, own[INITIAL]: bytes(initial) or bytes(8)}
    texts = [emit_data(name, data) for name, data in contents_of.items()]
    made = [hidden(data, {}) for data in run_jobs(partial(compile_text, machine=machine), texts)]
    for (name, wanted), data in zip(contents_of.items(), made, strict=True):
        if bytes_of(data, name) != wanted:
            raise InternalError("constants in a library are not those that were packed", location=name)
    return made


def _header(library: LibraryContents) -> Iterator[str]:
    guard = f"SUPERKERNEL_FIRMWARE_{library.name.upper()}_H"
    target = _plan(library.models[0]).target
    needs = sorted({name for model in library.models for name in _plan(model).image.needs})
    yield f"// Library {library.name} for {target.core}, written by SuperKernel {__version__}."
    yield f"// Link with -l{library.name}; of the toolchain it needs: {', '.join(needs) or 'nothing'}."
    yield f"#ifndef {guard}\n#define {guard}\n"
    yield "#include <stdint.h>\n"
    yield _STATUS
    yield '#ifdef __cplusplus\nextern "C" {\n#endif\n'
    lines = [line for model in library.models for line in _model(library, model)]
    check_macros(lines)
    yield from lines
    yield "#ifdef __cplusplus\n}\n#endif"
    yield f"#endif  // {guard}\n"


def _model(library: LibraryContents, model: LibraryModel) -> Iterator[str]:
    prefix = _prefix(library, model)
    macro, plan = prefix.upper(), _plan(model)
    states = f", const {prefix}_states *states" if model.states else ""
    yield f"// Model {c_string(model.name)}."
    yield from tensor_macros(macro, model)
    yield f"#define {macro}_ARENA_BYTES {plan.image.spec.arena_bytes}"
    yield f"#define {macro}_ARENA_ALIGNMENT {ARENA_ALIGN_BYTES}"
    yield f"typedef struct {{{fields(model.inputs, 'const ')}}} {prefix}_inputs;"
    yield f"typedef struct {{{fields(model.outputs, '')}}} {prefix}_outputs;"
    if model.states:
        yield f"typedef struct {{{fields(model.states, '')}}} {prefix}_states;"
    yield f"SkFirmwareStatus {prefix}_run_at(void *arena, const void *const *inputs, void *const *outputs,"
    yield "                                void *const *states);"
    yield f"void {prefix}_reset_at(void *const *states);"
    yield f"""
// `arena`: {macro}_ARENA_BYTES of working memory; it overlaps nothing else, and what is in it afterwards means nothing.
// A call runs to its end on the stack of its caller; calls with memory of their own may interrupt one another.
static inline SkFirmwareStatus {prefix}_run(void *arena, const {prefix}_inputs *inputs,
                                            const {prefix}_outputs *outputs{states}) {{
  const void *const in[] = {{{pointers(model.inputs, "inputs")}}};
  void *const out[] = {{{pointers(model.outputs, "outputs")}}};"""
    if model.states:
        yield f"  void *const kept[] = {{{pointers(model.states, 'states')}}};"
        yield f"  return {prefix}_run_at(arena, in, out, kept);\n}}\n"
        yield "// States as they begin: ahead of the first run."
        yield f"static inline void {prefix}_reset(const {prefix}_states *states) {{"
        yield f"  void *const kept[] = {{{pointers(model.states, 'states')}}};"
        yield f"  {prefix}_reset_at(kept);\n}}\n"
    else:
        yield f"  return {prefix}_run_at(arena, in, out, 0);\n}}\n"
