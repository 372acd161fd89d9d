"""Files are written whole or not at all, and errors are typed: `superkernel.core.files` and those who save by it."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import superkernel as sk
from superkernel.core.errors import InputError, MachineError
from superkernel.core.files import file_name, replacing
from superkernel.frontends.json_form import save_json
from superkernel.registry.canonical import write_json


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
