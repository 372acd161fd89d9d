"""Warnings name the line of the caller, however deep in the package they arise."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import superkernel
from superkernel.builder import GraphBuilder
from superkernel.codegen.cache import CacheWarning
from superkernel.compilation.scoping import ScopeWarning
from superkernel.core.warn import warn
from superkernel.ir.graph import Graph


def _graph() -> Graph:
    b = GraphBuilder()
    x = b.input("x", (4, 8))
    b.output(b.relu(b.matmul(x, b.constant(np.ones((8, 8), np.float32), name="w"), name="first"), name="second"))
    return b.graph()


def _raised_at(call: Callable[[], object], category: type[Warning]) -> list[tuple[str, int]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [(w.filename, w.lineno) for w in caught if w.category is category]


def test_a_cache_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SK_CACHE_DIR", str(tmp_path / "file"))
    graph, line = _graph(), sys._getframe().f_lineno
    found = _raised_at(lambda: superkernel.compile(graph), CacheWarning)
    assert found == [(__file__, line + 1)]


def test_scopes_that_share_nodes() -> None:
    b = GraphBuilder()
    x = b.input("x", (8,))
    for name in ("one", "two", "three"):
        x = b.relu(x, name=name)
    b.output(x)
    graph, line = b.graph(), sys._getframe().f_lineno
    found = _raised_at(lambda: superkernel.compile(graph, options={"scopes": ("a:*o*", "b:t*")}), ScopeWarning)
    assert found == [(__file__, line + 1)]
    assert not _raised_at(lambda: superkernel.compile(graph, options={"scopes": ("a:o*", "b:t*")}), ScopeWarning)


def test_a_thread_without_a_caller_is_no_matter() -> None:
    names = _raised_at(lambda: _in_thread(lambda: warn("deep")), UserWarning)
    assert [name for name, _ in names] == [__file__]
    space: dict[str, Any] = {"__name__": "superkernel.deep", "warn": warn}
    exec("def deep(): warn('deep', UserWarning)", space)
    assert len(_raised_at(lambda: _in_thread(space["deep"]), UserWarning)) == 1


def _in_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_lines_of_libraries_between_are_passed_over() -> None:
    space: dict[str, Any] = {"__name__": "superkernel.deep", "warn": warn}
    exec("def deep():\n    yield\n    warn('deep', UserWarning)", space)

    def use() -> None:
        with contextmanager(space["deep"])():
            pass

    ((name, line),) = _raised_at(use, UserWarning)
    assert name == __file__
    assert use.__code__.co_firstlineno < line <= use.__code__.co_firstlineno + 2


def test_each_line_warns_once_by_default() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            warn("again")
        warn("again")
    assert len(caught) == 2
