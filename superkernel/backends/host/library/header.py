"""The C header of a library: constants and functions for each of its models, complete in one file.

Model: what all libraries have in common (`csrc/include/superkernel_library.h`) stands at its beginning, guarded, so
that a program may include several. The functions that a library exports take names and tables of pointers; per model
the header adds structs with a typed field for each tensor, and functions inline that fill the tables from them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from superkernel.backends.host.library.contents import LibraryContents, LibraryModel, LibraryTensor
from superkernel.backends.host.library.ctext import C_TYPES, c_list, c_string
from superkernel.core.errors import InputError
from superkernel.core.version import __version__

COMMON = "superkernel_library.h"

_GENERAL = """\
// `model`: its name; `threads`: the most that it may use, 0 for the CPUs at hand; `interface`: what the program was
// compiled against, 0 where it has no header. An instance may be run by several threads: its runs take turns.
SkStatus {name}_open(const char *model, int32_t threads, uint64_t interface, SkModel **opened);
// Tables of addresses, inputs and outputs in the order of `{name}_models`. Outputs must overlap nothing else.
SkStatus {name}_run(SkModel *model, const void *const *inputs, void *const *outputs);
void {name}_close(SkModel *model);
// The number of threads of an instance's plan.
int32_t {name}_threads(const SkModel *model);
// A state of an instance, to be read or written between runs; null where there is none.
void *{name}_state(SkModel *model, size_t index);
// Puts all states back to what they began as.
void {name}_reset(SkModel *model);
// How the library's threads behave between runs: for how long they spin at most before they sleep (5 ms; 0: not at
// all), and whether each keeps to a CPU of its own (1). Of all models, at any time between runs.
void {name}_workers(int64_t spin_ns, int32_t pinned);
// What the last call of this thread that failed has to say.
const char *{name}_message(void);
const SkModelInfo *{name}_models(size_t *count);
// The kernels that are in it: what `superkernel kernels dump` writes.
const char *{name}_manifest(void);
// The version of SuperKernel that made it, and its SK_LIBRARY_ABI.
const char *{name}_version(void);
int32_t {name}_abi(void);
"""


def header(library: LibraryContents, sources: Path) -> str:
    """The text. `sources`: the folder with the common header. Raises InputError where names of two models would be one
    in C."""
    common = (sources / COMMON).read_text(encoding="utf-8")
    (abi,) = re.findall(r"^#define SK_LIBRARY_ABI (\d+)$", common, re.MULTILINE)
    models = [line for model in library.models for line in _model(library.name, model)]
    check_macros(models)
    guard = f"SUPERKERNEL_LIBRARY_{library.name.upper()}_H"
    return "\n".join(
        [
            f"// Library {library.name}, written by SuperKernel {__version__}.",
            f"// Link with -l{library.name}; a static library also wants -lstdc++ -lm -pthread.",
            f"#ifndef {guard}",
            f"#define {guard}",
            "",
            common,
            f"#if SK_LIBRARY_ABI != {abi}",
            '#error "two versions of SuperKernel exported the libraries whose headers are included here"',
            "#endif",
            "#ifdef __cplusplus",
            'extern "C" {',
            "#endif",
            "",
            _GENERAL.format(name=library.name),
            *models,
            "#ifdef __cplusplus",
            "}",
            "#endif",
            f"#endif  // {guard}",
            "",
        ]
    )


def check_macros(lines: Sequence[str]) -> None:
    """Raises InputError where names of two models would be one in C."""
    counts = Counter(line.split()[1] for line in lines if line.startswith("#define "))
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        hint = "give the models other names: {name: kernel}"
        raise InputError("names of two models are one in C", found=", ".join(twice), hint=hint)


def _model(library: str, model: LibraryModel) -> Iterator[str]:
    """What a program sees of a model."""
    prefix = f"{library}_{model.word}"
    macro, handle = prefix.upper(), f"{prefix}_model"
    threads = ", ".join(str(plan.cores) for plan in model.plans)
    yield f"// Model {c_string(model.name)}, for {threads} threads."
    yield f"#define {macro} {c_string(model.name)}"
    yield f"#define {macro}_INTERFACE UINT64_C({model.interface:#x})"
    yield from tensor_macros(macro, model)
    yield ""
    yield f"typedef struct {handle} {handle};"
    yield f"typedef struct {{{fields(model.inputs, 'const ')}}} {prefix}_inputs;"
    yield f"typedef struct {{{fields(model.outputs, '')}}} {prefix}_outputs;"
    yield f"""
static inline SkStatus {prefix}_create(int32_t threads, {handle} **model) {{
  SkModel *opened;
  const SkStatus status = {library}_open({macro}, threads, {macro}_INTERFACE, &opened);
  *model = ({handle} *)opened;
  return status;
}}

static inline SkStatus {prefix}_run({handle} *model, const {prefix}_inputs *inputs, const {prefix}_outputs *outputs) {{
  const void *const in[] = {{{pointers(model.inputs, "inputs")}}};
  void *const out[] = {{{pointers(model.outputs, "outputs")}}};
  return {library}_run((SkModel *)model, in, out);
}}

static inline void {prefix}_destroy({handle} *model) {{ {library}_close((SkModel *)model); }}
"""
    for number, state in enumerate(model.states):
        kind = C_TYPES[state.type.dtype]
        yield f"static inline {kind} *{prefix}_state_{state.word}({handle} *model) {{"
        yield f"  return ({kind} *){library}_state((SkModel *)model, {number});"
        yield "}\n"
    if model.states:
        yield f"static inline void {prefix}_reset({handle} *model) {{ {library}_reset((SkModel *)model); }}\n"


def tensor_macros(macro: str, model: LibraryModel) -> Iterator[str]:
    """Names, shapes and sizes of a model's tensors, as constants that begin with `macro`."""
    for tensor in (*model.inputs, *model.outputs, *model.states):
        name = f"{macro}_{tensor.word.upper()}"
        yield f"#define {name} {c_string(tensor.name)}"
        yield f"#define {name}_RANK {tensor.type.rank}"
        if tensor.type.rank:
            yield f"#define {name}_SHAPE {c_list(tensor.type.shape)}"
        yield f"#define {name}_ELEMENTS {tensor.type.size}"


def fields(tensors: Sequence[LibraryTensor], qualifier: str) -> str:
    """The fields of a struct of addresses, a tensor each."""
    lines = [f"  {qualifier}{C_TYPES[t.type.dtype]} *{t.word};  // {t.type}" for t in tensors]
    return "\n" + "\n".join(lines or ["  char none;"]) + "\n"


def pointers(tensors: Sequence[LibraryTensor], struct: str) -> str:
    """The addresses in such a struct, behind one another."""
    return ", ".join(f"{struct}->{t.word}" for t in tensors) or f"(void *){struct}"
