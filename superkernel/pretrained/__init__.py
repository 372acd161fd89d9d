"""Published language models, read from their files and written as graphs."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path
from typing import Any

from superkernel.core.errors import InputError
from superkernel.pretrained.decoder import Decoder

_SOURCES = "a folder with config.json and safetensors, a .gguf file, or a module of transformers"


def read_decoder(source: str | PathLike[str] | Any) -> Decoder:
    """The decoder in a folder, in a .gguf file, or of a module of transformers. Raises InputError on what is none of
    these, FileFormatError on what does not read, UnsupportedError on an architecture that is not known."""
    if isinstance(source, (str, PathLike)):
        path = Path(fspath(source))
        if path.is_dir():
            from superkernel.pretrained.hugging_face import read_folder

            return read_folder(path)
        if not path.exists():
            hint = "nothing is fetched from a network: give the folder where the model lies"
            raise InputError("no such file or folder", expected=_SOURCES, found=repr(str(path)), hint=hint)
        if path.suffix == ".gguf":
            from superkernel.pretrained.gguf import read_gguf

            return read_gguf(path)
        raise InputError("not a language model", expected=_SOURCES, found=repr(str(path)))
    if hasattr(source, "state_dict") and hasattr(source, "config"):
        from superkernel.pretrained.hugging_face import read_module

        return read_module(source)
    raise InputError("not a language model", expected=_SOURCES, found=type(source).__name__)
