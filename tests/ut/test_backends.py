"""Backends: one pipeline for all of them, and nobody else asks which kind of target there is."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping

import pytest
import target_kinds

from superkernel.backends import all_backends, backend_of, register
from superkernel.compilation.backend import Backend
from superkernel.core.errors import InternalError
from superkernel.target.aicore import load_target

PIPELINE = ("superkernel/compilation/pipeline.py", "superkernel/compilation/planning.py")


@pytest.fixture(scope="module")
def sources() -> Mapping[str, ast.Module]:
    return target_kinds.read_sources(target_kinds.ROOT)


def test_nobody_else_asks_for_a_kind(sources: Mapping[str, ast.Module]) -> None:
    assert not target_kinds.asked(sources)


def test_every_target_has_its_type(sources: Mapping[str, ast.Module]) -> None:
    assert not target_kinds.unknown_targets(sources)
    assert target_kinds.unknown_targets({"planted.py": ast.parse("def cost_ns(self, *, target: Any): ...")})


def test_kinds_are_found(sources: Mapping[str, ast.Module]) -> None:
    assert {"AicoreTarget", "CpuTarget", "AicoreTiling", "MatmulTiling", "HostKernel", "SimExecutable"} <= (
        target_kinds.kinds(sources)
    )


QUESTIONS = (
    "isinstance(x, AicoreTarget)",
    "isinstance(x, (int, cpu.CpuTarget))",
    "isinstance(x, int | MatmulTiling)",
    "issubclass(kind, HostKernel)",
    "type(x) is HostCompiled",
    "match x:\n    case SimExecutable():\n        pass",
)


def test_planted_questions_are_found(sources: Mapping[str, ast.Module]) -> None:
    trees = {f"planted{n}.py": ast.parse(question) for n, question in enumerate(QUESTIONS)}
    abroad = {f"superkernel/compilation/{name}": tree for name, tree in trees.items()}
    at_home = {f"superkernel/backends/host/{name}": tree for name, tree in trees.items()}
    found = target_kinds.asked({**sources, **abroad, **at_home})
    assert len(found) == len(QUESTIONS)
    assert all(any(path in text for text in found) for path in abroad)


def stages(sources: Mapping[str, ast.Module]) -> Counter[tuple[str, str]]:
    """(file, name) of every stage that is entered."""
    return Counter(
        (path, ast.literal_eval(node.args[0]))
        for path, tree in sources.items()
        for node in target_kinds.nodes(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "stage"
    )


def test_there_is_one_pipeline(sources: Mapping[str, ast.Module]) -> None:
    """Every stage is entered at one place, and all of them in the pipeline and its part up to the plan."""
    found = stages(sources)
    assert {path for path, _ in found} == {*PIPELINE}
    assert set(found.values()) == {1}
    names = [name for _, name in found]
    assert sorted(names) == sorted(
        ["look up", "simplify", "lower", "group", "place", "sync", "keep", "verify", "image", "attest", "bind"]
    )
    twice = {**sources, "superkernel/backends/host/backend.py": ast.parse("run.stage('verify')")}
    assert {path for path, _ in stages(twice)} != {*PIPELINE}


def test_every_backend_is_one() -> None:
    found = list(all_backends())
    assert all(isinstance(backend, Backend) for backend in found)
    names = [name for backend in found for name in backend.names()]
    assert len({*names}) == len(names)
    for backend in found:
        for name in backend.names():
            target = backend.named(name)
            assert target is not None
            assert backend_of(target) is backend
        assert backend.named("no such target") is None


def test_a_kind_has_one_backend() -> None:
    register("aicore", "superkernel.backends.aicore")
    with pytest.raises(InternalError, match="two backends"):
        register("aicore", "elsewhere")
    assert backend_of(load_target("mini")).names()
