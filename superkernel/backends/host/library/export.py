"""From compilations to a library and its header on disk; see the package's docstring."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from superkernel.backends.host.compiled import HostCompiled
from superkernel.backends.host.library.contents import contents
from superkernel.backends.host.library.header import header
from superkernel.backends.host.library.symbols import hidden
from superkernel.backends.host.library.tables import CONSTANTS_FILE, Tables
from superkernel.backends.host.library.toolchain import SOURCES, find_toolchain
from superkernel.codegen.cache import ObjectCache
from superkernel.codegen.host.loader import memory_bytes
from superkernel.compilation.library import Library
from superkernel.core import settings
from superkernel.core.errors import InputError
from superkernel.core.files import temporary_folder


def export(
    models: Mapping[str, Sequence[HostCompiled]], path: Path, manifest: Sequence[str], compiler: str | None
) -> Library:
    """Write `libNAME.so` or `libNAME.a`, and `NAME.h` beside it. `manifest`: files that list the kernels it may hold;
    none: all. Raises InputError, UnsupportedError, ManifestError, MachineError."""
    found = re.fullmatch(r"lib(.+)\.(so|a)", path.name)
    if found is None:
        raise InputError("not the name of a library", expected="libNAME.so or libNAME.a", found=repr(path.name))
    name, kind = found.groups()
    library = contents(name, models)
    listed = library.listed(manifest)
    text = header(library, SOURCES / "include")
    toolchain, objects = find_toolchain(compiler), library.objects()
    with temporary_folder("a library") as folder:
        with open(folder / CONSTANTS_FILE, "wb") as file:
            tables = Tables(library, file)
        (folder / "tables.cpp").write_text(tables.source(), encoding="utf-8")
        runtime = [hidden(data, {}) for data in toolchain.runtime(folder, ObjectCache(settings.cache_directory()))]
        names = [toolchain.compiled(folder / "tables.cpp", folder).name]
        for data in (*objects, *runtime):
            names.append(f"part{len(names)}.o")
            (folder / names[-1]).write_bytes(data)
        if kind == "so":
            toolchain.shared(names, path.name, f"{name}_*", folder)
        else:
            toolchain.static(names, path.name, folder)
        code_bytes, constant_bytes = sum(map(memory_bytes, objects)), tables.constants.nbytes
        with open(folder / path.name, "rb") as made:
            return library.written(path, made, text, listed, code_bytes=code_bytes, constant_bytes=constant_bytes)
