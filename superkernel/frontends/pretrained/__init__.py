"""Published language models, read from their files and written as graphs."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from superkernel.core.errors import InputError, Violation, raise_all
from superkernel.core.files import exists, is_folder
from superkernel.core.option import did_you_mean
from superkernel.frontends.pretrained.decoder import Decoder
from superkernel.frontends.pretrained.graph import decoder_graph
from superkernel.ir.graph import Graph

_SOURCES = "a folder with config.json and safetensors, a .gguf file, or a module of transformers"


def read_decoder(source: str | PathLike[str] | Any) -> Decoder:
    """The decoder in a folder, in a .gguf file, or of a module of transformers. Raises InputError on what is none of
    these, FileFormatError on what does not read, UnsupportedError on an architecture that is not known."""
    if isinstance(source, (str, PathLike)):
        path = Path(fspath(source))
        if is_folder(path):
            from superkernel.frontends.pretrained.hugging_face import read_folder

            return read_folder(path)
        if not exists(path):
            hint = "nothing is fetched from a network: give the folder where the model lies"
            raise InputError("no such file or folder", expected=_SOURCES, found=repr(str(path)), hint=hint)
        if path.suffix == ".gguf":
            from superkernel.frontends.pretrained.gguf import read_gguf

            return read_gguf(path)
        raise InputError("not a language model", expected=_SOURCES, found=repr(str(path)))
    if hasattr(source, "state_dict") and hasattr(getattr(source, "config", None), "to_dict"):
        from superkernel.frontends.pretrained.hugging_face import read_module

        return read_module(source)
    raise InputError("not a language model", expected=_SOURCES, found=type(source).__name__)


def load_decoder(path: Path, dims: Mapping[str, int]) -> Graph:
    """The graph that appends tokens to the context of the language model in a folder or file: see `decoder_graph`.
    dims: `tokens` (1), `rows` (1) and `context`. Raises InputError, and what `read_decoder` raises."""
    decoder = read_decoder(path)
    sizes = {"tokens": 1, "rows": 1, "context": decoder.context, **dims}
    most = {"tokens": sizes["context"], "rows": sizes["tokens"], "context": decoder.positions_max}
    wrong = [
        Violation(f"no dimension {n!r}", str(path), ", ".join(most), hint=did_you_mean([n], most))
        for n in dims
        if n not in most
    ]
    wrong += [
        Violation("no such size", f"dimension {name!r}", f"1 to {largest}", str(sizes[name]))
        for name, largest in most.items()
        if not 1 <= sizes[name] <= largest
    ]
    raise_all(InputError, wrong)
    return decoder_graph(decoder, tokens=sizes["tokens"], rows=sizes["rows"], context=sizes["context"])
