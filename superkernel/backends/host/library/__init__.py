"""Kernels of the host as a library for programs that are not Python: `superkernel.export`.

Model: what compilations made is linked by the user's C++ compiler: the objects that were loaded and attested here,
under symbols that nobody else sees; their packed constants; the C++ runtime, from the sources that this package brings;
tables that say what models there are. Beside it stands a C header, written for these models.

| hop | module | in -> out |
|---|---|---|
| what goes in | `contents.py` | compilations -> models, objects without doubles, one block of constants |
| symbols | `symbols.py` | objects -> the same bytes of code under hidden symbols of the library's own |
| sources | `header.py`, `tables.py` | models -> the C header, the C++ tables (`csrc/library/library.h`) |
| compiler | `toolchain.py` | sources, objects -> the file |
| the route | `export.py` | kernels, a path -> library and header on disk |

Invariants: code in a library is the code that was attested, byte for byte, so results are those of `Kernel.run` on the
same CPU; it needs neither Python nor LLVM; it exports the functions of its header and nothing else.
"""
