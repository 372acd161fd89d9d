"""The linker of accelerator programs: `link(objects, layout)` gives an `Image`, laid out as the caller says."""

from superkernel.codegen.aicore.linking.elf_writer import ElfSegment
from superkernel.codegen.aicore.linking.image import Image, MapRow, Symbol
from superkernel.codegen.aicore.linking.layout import LinkLayout
from superkernel.codegen.aicore.linking.linker import link

__all__ = ["ElfSegment", "Image", "LinkLayout", "MapRow", "Symbol", "link"]
