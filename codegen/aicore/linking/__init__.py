"""The linker of accelerator programs: `link(objects, layout)` gives an `Image`, laid out as the caller says."""

from superkernel.codegen.aicore.linking.image import Image, MapRow, Segment, Symbol
from superkernel.codegen.aicore.linking.layout import Layout
from superkernel.codegen.aicore.linking.linker import link

__all__ = ["Image", "Layout", "MapRow", "Segment", "Symbol", "link"]
