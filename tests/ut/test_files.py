"""Files are written whole or not at all, and errors are typed: `superkernel.core.files` and those who save by it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import superkernel as sk
from superkernel.analysis import canary
from superkernel.core.errors import FileFormatError, InputError, MachineError
from superkernel.core.files import file_name, replacing
from superkernel.core.json_text import json_text
from superkernel.display.difference import read_measurement
from superkernel.frontends.json_form import load_json, save_json
from superkernel.registry.canonical import write_json
from superkernel.registry.manifest import Manifest
from superkernel.target.machine import load_profile
from superkernel.target.timings import load_timings


def test_a_file_is_replaced_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with replacing(path, "it") as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_an_exception_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")

    def fail() -> None:
        with replacing(path, "it") as file:
            file.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    path, link = tmp_path / "folder" / "x", tmp_path / "link"
    link.symlink_to(path)
    for text in (b"new", b"newer"):  # of nothing, and of a file
        with replacing(link, "it") as file:
            file.write(text)
        assert link.is_symlink()
        assert path.read_bytes() == text
    assert sorted(tmp_path.rglob("*")) == sorted([path, path.parent, link])


def test_a_pipe_is_written_not_replaced(tmp_path: Path) -> None:
    """As /dev/stdout and /dev/null are: whoever may write beside them would replace them for everybody."""
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    with replacing(pipe, "it") as file:
        file.write(b"through")
    reader.join(60)
    assert read == [b"through"]
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


@pytest.mark.parametrize("name", ["", "a\0b", 7])
def test_what_is_no_name(name: Any) -> None:
    with pytest.raises(InputError, match="not the name of a file"):
        file_name(name)


@pytest.mark.parametrize("target", ["host", "mini"])
def test_a_kernel_that_cannot_be_written(target: str, tmp_path: Path) -> None:
    b = sk.GraphBuilder("small")
    b.output(b.relu(b.input("x", (4, 4))), "y")
    kernel = sk.compile(b.graph(), target=target)
    for path in (tmp_path / "none" / "k", tmp_path):
        with pytest.raises(MachineError, match="cannot write"):
            kernel.save(path)
    with pytest.raises(InputError, match="not the name of a file"):
        kernel.save("")
    assert not list(tmp_path.iterdir())
    kernel.save(tmp_path / "k")
    assert [p.name for p in tmp_path.iterdir()] == ["k"]


def test_what_is_saved_may_be_read_by_others(tmp_path: Path) -> None:
    """Temporary files are their writer's own; a model, its weights, a kernel and a manifest are not."""
    b = sk.GraphBuilder("small")
    b.output(b.relu(b.input("x", (64, 64)) @ b.constant(np.ones((64, 64), np.float32))), "y")
    graph = b.graph()
    save_json(graph, tmp_path / "m.json")
    sk.compile(graph).save(tmp_path / "k")
    write_json(tmp_path / "manifest", {})
    assert {p.name: p.stat().st_mode & 0o777 for p in tmp_path.iterdir()} == dict.fromkeys(
        ("m.json", "m.safetensors", "k", "manifest"), 0o644
    )


SOURCES = Path(sk.__file__).parent
OF_ITS_OWN = {"core/limits.py", "core/version.py", "compilation/planned.py"}
"""Files of the system or of the package, which every process may see; `generate.py` is no part of a run."""


def test_nobody_asks_pathlib_what_there_is() -> None:
    """It raises OSError where a folder may not be searched (before Python 3.14), or a name is too long."""
    asks = re.compile(r"\.(is_dir|is_file|exists)\(\)")
    files = [*SOURCES.rglob("*.py"), *(SOURCES.parent / "codegen").rglob("*.py")]
    asking = {
        str(path.relative_to(SOURCES)) for path in files if SOURCES in path.parents and asks.search(path.read_text())
    }
    assert {name for name in asking if not name.endswith("/generate.py")} == OF_ITS_OWN & asking
    assert asks.search("path.is_dir()")


def test_json_is_parsed_in_one_place() -> None:
    """`json.loads` raises RecursionError, too, which few think of."""
    parsing = {str(p.relative_to(SOURCES)) for p in SOURCES.rglob("*.py") if "json.load" in p.read_text()}
    assert parsing == {"core/json_text.py"}


NO_JSON = ("[" * 100_000, '{"a":' * 50_000, '{"nodes": ' + "9" * 10_000 + "}", "", "{", "\ufeff{}")


@pytest.mark.parametrize("text", NO_JSON, ids=range(len(NO_JSON)))
def test_texts_that_are_no_json(text: str, tmp_path: Path) -> None:
    path = tmp_path / "any.json"
    path.write_text(text)
    acts: list[Callable[[], object]] = [
        lambda: load_json(path),
        lambda: Manifest.load(path),
        lambda: canary.read(path),
        lambda: read_measurement(path),
        lambda: load_profile(path),
        lambda: load_timings(path, "", ""),
    ]
    for act in acts:
        with pytest.raises(FileFormatError):
            act()


def test_json_has_no_infinity() -> None:
    assert json_text({"a": [float("inf"), (float("nan"), 1.5)]}, 0) == '{\n"a": [\nnull,\n[\nnull,\n1.5\n]\n]\n}'


@pytest.mark.parametrize("name", ["x" * 300, "x" * 5000])
@pytest.mark.parametrize("suffix", ["", ".json", ".onnx", ".gguf", ".pt2", ".skm", ".so"])
def test_names_that_are_too_long(name: str, suffix: str) -> None:
    b = sk.GraphBuilder("g")
    b.output(b.relu(b.input("x", (2,))), name="y")
    acts: list[Callable[[], object]] = [
        lambda: sk.compile(name + suffix),
        lambda: sk.compile_dynamic(name + suffix, {"n": (1, 2)}),
        lambda: sk.load(name + suffix),
        lambda: sk.from_pretrained(name + suffix),
        lambda: sk.compile(b.graph(), target=name + suffix),
    ]
    for act in acts:
        with pytest.raises((InputError, MachineError, FileFormatError)):
            act()


def test_a_cache_that_cannot_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where HOME is another user's: kernels are compiled, with a warning."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/tmp/" + "x" * 300)
    monkeypatch.setenv("XDG_DATA_HOME", "/tmp/" + "x" * 300)
    monkeypatch.delenv("SK_CACHE_DIR", raising=False)
    b = sk.GraphBuilder("g")
    b.output(b.relu(b.input("x", (77,))), name="y")
    with pytest.warns(sk.CacheWarning):
        assert sk.compile(b.graph(), threads=1)(np.full(77, -1, np.float32)).max() == 0


def test_a_library_without_a_place_for_its_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    b = sk.GraphBuilder("g")
    b.output(b.relu(b.input("x", (3,))), name="y")
    kernel = sk.compile(b.graph(), threads=1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(MachineError, match="no place for what a library is made from"):
        sk.export(kernel, tmp_path / "libx.so")


def test_helpers_of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that gave up its rights may not end the helpers that it started before: they end with their pipes."""
    code = (
        "import os, sys, superkernel as sk\n"
        "b = sk.GraphBuilder('g'); b.output(b.relu(b.input('x', (3,))), name='y'); sk.compile(b.graph(), threads=1)\n"
        "if os.getuid() == 0: os.setuid(65534)\n"
    )
    monkeypatch.setenv("SK_CACHE_DIR", "off")
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
