"""The C++ source of a library's tables: what `csrc/library/library.h` declares, for these models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import BinaryIO

from superkernel.backends.host.compiled import HostCompiled
from superkernel.backends.host.library.contents import Constants, LibraryContents, LibraryModel, LibraryTensor
from superkernel.backends.host.library.ctext import c_list, c_string
from superkernel.codegen.host.constants import Bytes
from superkernel.core.errors import UnsupportedError
from superkernel.core.version import __version__
from superkernel.registry.canonical import canonical_json

CONSTANTS_FILE = "constants.bin"
NEAR_BYTES_MAX = 1 << 30
"""Constants that may lie between code and its other data."""

_HEAD = """\
#include "library/library.h"

// Ahead of the functions' own declarations: a program sees them, and nothing else of the library.
#define SK_EXPORT extern "C" __attribute__((visibility("default")))

asm(R"(
  .section {section}
  .balign 4096
  .globl {name}_constants
  .hidden {name}_constants
{name}_constants:
  .incbin "{file}"
  .byte 0
  .previous
)");
"""

_FUNCTIONS = """\
using namespace sk::library;
SK_EXPORT SkStatus {name}_open(const char* model, std::int32_t threads, std::uint64_t interface, SkModel** opened) {{
  return open(kLibrary, model, threads, interface, opened);
}}
SK_EXPORT SkStatus {name}_run(SkModel* model, const void* const* inputs, void* const* outputs) {{
  return run(model, inputs, outputs);
}}
SK_EXPORT void {name}_close(SkModel* model) {{ close(model); }}
SK_EXPORT std::int32_t {name}_threads(const SkModel* model) {{ return threads(model); }}
SK_EXPORT void* {name}_state(SkModel* model, std::size_t index) {{ return state(model, index); }}
SK_EXPORT void {name}_reset(SkModel* model) {{ reset(model); }}
SK_EXPORT void {name}_workers(std::int64_t spin_ns, std::int32_t pinned) {{ workers(spin_ns, pinned != 0); }}
SK_EXPORT const char* {name}_message() {{ return message(); }}
SK_EXPORT const SkModelInfo* {name}_models(std::size_t* count) {{
  if (count != nullptr) *count = kLibrary.infos.size();
  return kLibrary.infos.data();
}}
SK_EXPORT const char* {name}_manifest() {{ return kManifest; }}
SK_EXPORT const char* {name}_version() {{ return {version}; }}
SK_EXPORT std::int32_t {name}_abi() {{ return SK_LIBRARY_ABI; }}
"""


class Tables:
    """The source. The constants that it refers to are written into `file`, which is to be CONSTANTS_FILE beside it."""

    def __init__(self, library: LibraryContents, file: BinaryIO) -> None:
        self.library, self.constants = library, Constants(file)
        self._arrays: list[str] = []
        self._numbers = count()
        infos, models = zip(*map(self._model, library.models), strict=True)
        features = self._array("char* const", "features", map(c_string, library.features))
        self._arrays += [
            f"const SkModelInfo kInfos[] = {c_list(infos)};",
            f"const sk::library::Model kModels[] = {c_list(models)};",
            f"const sk::library::Description kLibrary = {{{c_string(library.name)}, {features}, kInfos, kModels}};",
            f"const char kManifest[] = {c_string(canonical_json(library.manifest().to_json()))};",
        ]

    def source(self) -> str:
        """C++."""
        name = self.library.name
        entries = [
            f"std::int32_t {self.library.entry(model, plan, symbol)}(SkContext*, std::int32_t{more});"
            for model, plan in self.library.plans
            for symbol, more in (("sk_entry", ""), ("sk_single", ", std::int32_t"))
        ]
        return "\n".join(
            [
                _HEAD.format(name=name, file=CONSTANTS_FILE, section=self._section()),
                'extern "C" {',
                f"extern const std::uint8_t {name}_constants[];",
                *entries,
                "}",
                "namespace {",
                "using sk::library::Block, sk::library::Checked, sk::library::Plan;",
                *self._arrays,
                "}  // namespace",
                _FUNCTIONS.format(name=name, version=c_string(__version__)),
            ]
        )

    def _section(self) -> str:
        """Where constants lie. Many of them lie behind all else, where nothing is found by its distance: code and the
        data that it finds so must be within 2 GB. Raises UnsupportedError where there is no such section."""
        name, found = self.library.name, self.constants.nbytes
        if found <= NEAR_BYTES_MAX:
            return f'.rodata.{name}_constants, "a", %progbits'
        if not self.library.models[0].plans[0].target.triple.startswith("x86_64"):
            hint, expected = "make several libraries of the models", f"at most {NEAR_BYTES_MAX:,} bytes"
            raise UnsupportedError(
                "a library with too many constants", expected=expected, found=f"{found:,} bytes", hint=hint
            )
        return f'.lrodata.{name}_constants, "al", %progbits'

    def _array(self, kind: str, what: str, items: Iterator[str] | Sequence[str]) -> str:
        """A new array's name; what stands for an empty one."""
        found = list(items)
        if not found:
            return "{}"
        name = f"{what}_{next(self._numbers)}"
        self._arrays.append(f"const {kind} {name}[] = {c_list(found)};")
        return name

    def _model(self, model: LibraryModel) -> tuple[str, str]:
        """Rows of a model in both tables."""
        parts = []
        for tensors in (model.inputs, model.outputs, model.states):
            parts += [self._array("SkTensor", "tensors", map(self._tensor, tensors)), str(len(tensors))]
        threads = self._array("std::int32_t", "threads", [str(plan.cores) for plan in model.plans])
        info = c_list([c_string(model.name), *parts, threads, len(model.plans)])
        graph = model.plans[0].graph
        states = [self._block(array.reshape(-1).view("u1")) for array in graph.states.values()]
        plans = self._array("Plan", "plans", [self._plan(model, plan) for plan in model.plans])
        return info, c_list([f"{model.interface:#x}u", plans, self._array("Block", "states", states)])

    def _tensor(self, tensor: LibraryTensor) -> str:
        kind = tensor.type
        shape = self._array("std::int64_t", "shape", map(str, kind.shape))
        return c_list(
            [c_string(tensor.name), c_string(kind.dtype.value), shape, kind.rank, kind.nbytes, kind.dtype.itemsize]
        )

    def _plan(self, model: LibraryModel, plan: HostCompiled) -> str:
        image = plan.image
        checked = [c_list([index, c_string(plan.schedule.subops[index].name)]) for index in image.checked]
        return c_list(
            [
                plan.cores,
                self.library.entry(model, plan, "sk_entry"),
                self.library.entry(model, plan, "sk_single"),
                image.arena_bytes,
                image.scratch_bytes,
                self._block(image.constants.own),
                self._array("Block", "shared", map(self._block, image.constants.shared)),
                self._array("std::uint64_t", "sets", map(str, image.spec.sets)),
                image.spec.subops,
                str(plan.certificate.stepwise).lower(),
                round(plan.options.watchdog_ms * 1e6),
                self._array("Checked", "checked", checked),
            ]
        )

    def _block(self, block: Bytes) -> str:
        return f"{{{self.library.name}_constants + {self.constants.add(block)}, {block.nbytes}}}"
