"""What goes into a library: its models, the objects that they need, and one block of all their constants.

Model: a model is the compilations of one graph for one number of threads or several. Objects and blocks of constants
that models or plans have in common are there once: functions by their symbols, which are digests of what they were made
from; blocks by their bytes.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from superkernel.backends.host.compiled import HostCompiled
from superkernel.backends.host.library.symbols import defined, hidden
from superkernel.codegen.host.constants import ALIGN_BYTES, SPARE_BYTES, Bytes
from superkernel.compilation.library import Library
from superkernel.core.errors import InputError, InternalError, UnsupportedError, Violation, raise_all
from superkernel.core.files import replacing
from superkernel.core.tensor import TensorType
from superkernel.registry.canonical import digest
from superkernel.registry.manifest import Manifest, merge
from superkernel.target.cpu import EMULATED_TILES

_ENTRIES = ("sk_entry", "sk_single", "sk_profiled")
_RESERVED = frozenset(
    re.findall(
        r"\w+",
        """alignas alignof and asm auto bitand bitor bool break case catch char class compl concept const consteval
        constexpr constinit continue decltype default delete do double else enum explicit export extern false float for
        friend goto if inline int long mutable namespace new noexcept not nullptr operator or private protected public
        register requires restrict return short signed sizeof static struct switch template this throw true try typedef
        typeid typename typeof union unsigned using virtual void volatile while xor""",
    )
)
"""Words of C and C++ that no name in a header may be."""


@dataclass(frozen=True)
class LibraryTensor:
    """An input, output or state. `word`: its name in C."""

    name: str
    word: str
    type: TensorType


@dataclass(frozen=True)
class LibraryModel:
    """A graph with a plan for each number of threads, ascending. `word`: its name in C."""

    name: str
    word: str
    plans: tuple[HostCompiled, ...]

    @cached_property
    def _tensors(self) -> tuple[tuple[LibraryTensor, ...], tuple[LibraryTensor, ...], tuple[LibraryTensor, ...]]:
        made = self.plans[0]
        inputs = list(made.graph.inputs.items())
        outputs = [(n, made.graph.types[v]) for n, v in zip(made.output_names, made.graph.outputs, strict=True)]
        states = [(name, made.graph.types[name]) for name in made.graph.states]
        named = inputs + outputs + states
        words = _words([name for name, _ in named])
        found = [LibraryTensor(name, word, kind) for (name, kind), word in zip(named, words, strict=True)]
        behind = len(inputs) + len(outputs)
        return tuple(found[: len(inputs)]), tuple(found[len(inputs) : behind]), tuple(found[behind:])

    @property
    def inputs(self) -> tuple[LibraryTensor, ...]:
        """In the order of calls."""
        return self._tensors[0]

    @property
    def outputs(self) -> tuple[LibraryTensor, ...]:
        """In the order of calls."""
        return self._tensors[1]

    @property
    def states(self) -> tuple[LibraryTensor, ...]:
        """What an instance keeps from run to run."""
        return self._tensors[2]

    @property
    def signature(self) -> str:
        """Names and types, in one line."""
        kinds = (", ".join(f"{t.name!r} {t.type}" for t in part) or "nothing" for part in (self.inputs, self.outputs))
        kept = "".join(f", state {t.name!r} {t.type}" for t in self.states)
        return " -> ".join(kinds) + kept

    @property
    def interface(self) -> int:
        """64 bits of a digest of names, types and shapes: what a program was compiled against. Never 0."""
        parts = [[[t.name, str(t.type)] for t in part] for part in self._tensors]
        return int(digest([self.name, *parts])[:16], 16) | 1


class Constants:
    """All blocks of constants behind one another in a file, those with equal bytes once."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._known = file, dict[bytes, int]()
        self.nbytes = 0

    def add(self, block: Bytes) -> int:
        """The offset of a block, aligned, with room behind it for vectors that begin in its last bytes."""
        key = hashlib.sha256(block.data).digest()
        if key not in self._known:
            self._known[key] = self.nbytes
            room = SPARE_BYTES + -(block.nbytes + SPARE_BYTES) % ALIGN_BYTES
            self._file.write(block.data)
            self._file.write(bytes(room))
            self.nbytes += block.nbytes + room
        return self._known[key]


@dataclass(frozen=True)
class LibraryContents:
    """See the module docstring."""

    name: str
    models: tuple[LibraryModel, ...]

    @property
    def plans(self) -> Iterator[tuple[LibraryModel, HostCompiled]]:
        """All plans of all models."""
        return ((model, plan) for model in self.models for plan in model.plans)

    @property
    def features(self) -> tuple[str, ...]:
        """What the CPU must have, in LLVM's words."""
        target = self.models[0].plans[0].target
        return tuple(sorted(target.extensions() - {EMULATED_TILES}))

    def entry(self, model: LibraryModel, plan: HostCompiled, symbol: str) -> str:
        """What an entry of a plan is called in the library."""
        return f"{self.name}_{model.word}_{plan.cores}_{symbol}"

    def objects(self) -> list[bytes]:
        """All objects, under hidden symbols, without those whose functions are there already."""
        made: list[bytes] = []
        known: dict[str, bytes] = {}
        for model, plan in self.plans:
            names = {symbol: self.entry(model, plan, symbol) for symbol in _ENTRIES}
            for data in plan.objects.values():
                renamed = hidden(data, names)
                symbols = [names.get(symbol, symbol) for symbol in defined(data)]
                if not any(symbol in known for symbol in symbols):
                    made.append(renamed)
                for symbol in symbols:
                    if known.setdefault(symbol, renamed) != renamed:
                        raise InternalError(
                            "two contents under one symbol", location=f"model {model.name!r}", found=symbol
                        )
        return made

    def manifest(self) -> Manifest:
        """The kernels that are in it, under the names of its models."""
        return merge(p.chooser.manifest_of(m.name, p.schedule.subops, p.symbols) for m, p in self.plans)

    def listed(self, manifest: Sequence[str]) -> set[str]:
        """The kernels that manifest files list, or none without files. Raises ManifestError where a plan needs another
        one."""
        found: set[str] = set()
        for _, plan in self.plans if manifest else ():
            found |= plan.chooser.require_listed(plan.schedule.subops, manifest).kernels.keys()
        return found

    def written(
        self, path: Path, file: BinaryIO, header: str, listed: set[str], *, code_bytes: int, constant_bytes: int
    ) -> Library:
        """The library on disk: `file` under `path`, and `NAME.h` beside it."""
        beside, held = path.with_name(f"{self.name}.h"), self.manifest()
        with replacing(path, "the library") as writer:
            shutil.copyfileobj(file, writer)
        with replacing(beside, "the library's header") as writer:
            writer.write(header.encode())
        return Library(
            str(path),
            str(beside),
            {model.name: tuple(plan.cores for plan in model.plans) for model in self.models},
            held,
            tuple(sorted(listed - held.kernels.keys())),
            code_bytes,
            constant_bytes,
            path.stat().st_size,
        )


def contents(name: str, models: Mapping[str, Sequence[HostCompiled]]) -> LibraryContents:
    """The contents of the library `name`. Raises InputError, UnsupportedError with all that stands against it."""
    if not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name) or name in _RESERVED:
        expected = "libNAME.so or libNAME.a, where NAME could be the name of a C function"
        raise InputError("not a name for a library", expected=expected, found=repr(name))
    if not models:
        raise InputError("a library of no models", expected="at least one kernel")
    words = _words(models)
    made = tuple(
        LibraryModel(model, word, tuple(sorted(plans, key=lambda p: p.cores)))
        for (model, plans), word in zip(models.items(), words, strict=True)
    )
    raise_all(InputError, [v for model in made for v in _contradictions(model)])
    raise_all(UnsupportedError, [v for model in made for plan in model.plans for v in _obstacles(model, plan)])
    first = made[0].plans[0].target
    others = [m for m in made for p in m.plans if p.target.identity() != first.identity()]
    if others:
        hint = "compile all models of a library on one machine"
        raise InputError(
            "kernels for two CPUs", location=f"model {others[0].name!r}", expected=str(first.tier), hint=hint
        )
    return LibraryContents(name, made)


def _contradictions(model: LibraryModel) -> Iterator[Violation]:
    """Plans that cannot be of one model."""
    threads = [plan.cores for plan in model.plans]
    where = f"model {model.name!r}"
    if len({*threads}) != len(threads):
        hint = "give each model a name of its own: {name: kernel}"
        yield Violation("two kernels for one number of threads", where, "one for each", str(threads), hint)
    for plan in model.plans[1:]:
        other = LibraryModel(model.name, model.word, (plan,))
        if other.interface != model.interface:
            yield Violation("kernels of two models under one name", where, model.signature, other.signature)


def _obstacles(model: LibraryModel, plan: HostCompiled) -> Iterator[Violation]:
    """What needs Python."""
    where = f"model {model.name!r}"
    if plan.image.host_calls:
        found = ", ".join(repr(plan.schedule.subops[i].name) for i in plan.image.host_calls)
        hint = "compile with fallback='forbid' to see why there is no kernel"
        yield Violation("sub-operators that NumPy computes", where, "a kernel for each", found, hint)
    if plan.dumps:
        yield Violation("a kernel with dumps", where, "one compiled without option 'dump'")


def _words(names: Iterable[str]) -> list[str]:
    """Names that C takes, each its own, also in capitals."""
    words: list[str] = []
    taken: set[str] = set()
    for name in names:
        word = re.sub("[^A-Za-z0-9_]", "_", name).strip("_") or "unnamed"
        word = f"n{word}" if word[0].isdigit() else f"{word}_" if word in _RESERVED else word
        free, number = word, 1
        while free.upper() in taken:
            number += 1
            free = f"{word}_{number}"
        taken.add(free.upper())
        words.append(free)
    return words
