"""The node tests of the ONNX standard, every one of them, through the ONNX frontend.

The suite makes its cases when its modules are imported, some in seconds: so a test is all cases of a module on an
engine, and imports them when it runs. On the host, which compiles each case, a run has half of the modules, as its seed
draws them; a soak run has all. Each case: model -> Graph -> engine -> compared with the suite's own outputs at
the suite's own tolerances. Graph inputs that decide shapes are fixed to the case's data, exactly those that the
frontend names.
`onnx_backend_exclude.txt` lists the cases that do not pass, each with its engines (or "all") and a reason; a case that
is not listed must pass, a listed one must not.

`PYTHONPATH=tests python tests/st/test_onnx_backend.py [reference|transforms|host]` prints the list as it would have to
be, for review.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soak

from superkernel.core.errors import SuperKernelError
from superkernel.frontends import load_graph
from superkernel.ir.graph import Graph
from superkernel.transforms import simplify

onnx = pytest.importorskip("onnx")

EXCLUDE = Path(__file__).with_name("onnx_backend_exclude.txt")
PASSES_MIN = 450

Engine = Callable[[Graph, Mapping[str, Any]], Mapping[str, Any]]


def by_reference(graph: Graph, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    from superkernel.reference import evaluate

    return evaluate(graph, inputs)


def on_host(graph: Graph, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    import superkernel

    return superkernel.compile(graph, threads=2).run(inputs).outputs


def by_transforms(graph: Graph, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The reference on the graph after the standard transforms."""
    return by_reference(simplify(graph), inputs)


ENGINES: dict[str, Engine] = {"reference": by_reference, "transforms": by_transforms, "host": on_host}


def modules() -> list[str]:
    """Where the suite's cases are made, below `onnx.backend.test.case.node`: found without an import."""
    home = Path(onnx.__file__).parent / "backend/test/case/node"
    return sorted(".".join(p.relative_to(home).with_suffix("").parts) for p in home.rglob("[!_]*.py"))


@cache
def cases(module: str) -> dict[str, Any]:
    """The cases of a module by name: what its import adds to the list of all."""
    from onnx.backend.test.case import node

    before = len(node._NodeTestCases)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import_module(f"{node.__name__}.{module}")
    return {case.name: case for case in node._NodeTestCases[before:]}


def all_cases() -> dict[str, Any]:
    return {name: case for module in modules() for name, case in cases(module).items()}


@cache
def excluded() -> dict[str, tuple[str, str]]:
    """Case -> (engines, reason)."""
    found = {}
    for line in EXCLUDE.read_text().splitlines():
        if line and not line.startswith("#"):
            name, engine, reason = line.split(maxsplit=2)
            assert set(engine.split(",")) <= {"all", *ENGINES}, line
            assert name not in found, f"listed twice: {name}"
            found[name] = (engine, reason)
    return found


def import_case(model: Any, inputs: Mapping[str, Any]) -> Graph:
    """The graph, with those inputs fixed that the frontend needs to know; sequences as long as the case's."""
    from superkernel.frontends.onnx.call import StaticValueError

    constants: dict[str, Any] = {name: None for name, value in inputs.items() if value is None}
    shapes: dict[str, Any] = {
        name: [np.shape(v) for v in value] if isinstance(value, list) else np.shape(value)
        for name, value in inputs.items()
        if value is not None
    }
    while True:
        try:
            return load_graph(model, constants=constants, shapes=shapes)
        except StaticValueError as error:
            missing = {name: inputs[name] for name in error.inputs if name not in constants}
            if not missing:
                raise
            constants.update(missing)


def as_array(value: Any) -> Any:
    """The suite keeps some data as TensorProto."""
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


_imported: dict[tuple[str, int], tuple[Graph, dict[str, Any]]] = {}


def imported(case: Any, number: int = 0) -> tuple[Graph, dict[str, Any]]:
    """The graph of a case with a data set's values where the frontend needs them, and those values by name. Imported
    once for all engines: graphs do not change."""
    key = (case.name, number)
    if key not in _imported:
        names = [i.name for i in case.model.graph.input]
        given = dict(zip(names, map(as_array, case.data_sets[number][0]), strict=True))
        _imported[key] = import_case(case.model, given), given
    return _imported[key]


def run_case(case: Any, engine: Engine) -> None:
    """Raises SuperKernelError or AssertionError where the case does not pass."""
    from onnx.backend.test.runner import Runner

    for number, pair in enumerate(case.data_sets):
        expected = [as_array(v) for v in pair[1]]
        graph, given = imported(case, number)
        elements = {f"{n}.{i}": v for n, vs in given.items() if isinstance(vs, list) for i, v in enumerate(vs)}
        results = engine(graph, {name: {**given, **elements}[name] for name in graph.inputs})
        outputs = [output(o, results) for o in case.model.graph.output]
        with np.errstate(all="ignore"):
            Runner.assert_similar_outputs(flat(expected), flat(outputs), rtol=case.rtol, atol=case.atol)


def flat(values: Any) -> list[Any]:
    """Values with the elements of sequences in their places, which the suite cannot compare where one is a scalar."""
    return [item for value in values for item in (value if isinstance(value, list) else [value])]


def output(declared: Any, results: Mapping[str, Any]) -> Any:
    """An output of a model: an array, the list of a sequence's elements, None for an empty optional."""
    name = declared.name
    if name in results:
        return results[name]
    kind = declared.type
    listed = kind.HasField("sequence_type") or kind.optional_type.elem_type.HasField("sequence_type")
    elements = [results[f"{name}.{i}"] for i in range(len(results)) if f"{name}.{i}" in results]
    assert listed, f"no output {name}"
    return elements or (None if kind.HasField("optional_type") else [])


def is_excluded(name: str, engine: str) -> bool:
    return name in excluded() and not {"all", engine}.isdisjoint(excluded()[name][0].split(","))


def every_module() -> list[Any]:
    """Every module on every engine, on the host those that are drawn."""
    names = modules()
    on = dict.fromkeys(ENGINES, names) | {"host": soak.drawn(names, len(names) // 2)}
    return [
        pytest.param(name, engine, marks=pytest.mark.slow if engine == "host" else ())
        for name in names
        for engine in ENGINES
        if name in on[engine]
    ]


@pytest.mark.usefixtures("mostly_translated")
@pytest.mark.parametrize(("module", "engine"), every_module())
def test_node(module: str, engine: str) -> None:
    wrong = {}
    for name, case in cases(module).items():
        reason = failure(case, ENGINES[engine])
        if is_excluded(name, engine):
            if reason is None or reason.startswith("CRASH"):
                wrong[name] = reason or "listed, but passes"
        elif reason is not None:
            wrong[name] = reason
    assert not wrong


def test_enough_pass(capsys: pytest.CaptureFixture[str]) -> None:
    cases = all_cases()
    unknown = excluded().keys() - cases.keys()
    assert not unknown, f"listed, but not in the suite: {sorted(unknown)}"
    passing = {engine: [name for name in cases if not is_excluded(name, engine)] for engine in ENGINES}
    for engine, names in passing.items():
        folded = sum(1 for name in names if not imported(cases[name])[0].nodes)
        with capsys.disabled():
            print(f"\nONNX node tests, {engine}: {len(names)} of {len(cases)}; {folded} are computed wholly at import")
        assert len(names) - folded >= PASSES_MIN


def test_no_case_is_missed() -> None:
    """What the suite itself finds, whatever order it imports its modules in."""
    from onnx.backend.test.loader import load_model_tests

    mine = all_cases()
    found = load_model_tests(kind="node")
    assert len({case.name for case in found}) == len(found)
    assert {case.name for case in found} == mine.keys()


def failure(case: Any, engine: Engine) -> str | None:
    """Why the case does not pass, in one line; None where it does."""
    try:
        run_case(case, engine)
    except SuperKernelError as error:
        first = error.violations[0]
        return f"{first.message} {first.found}".strip().replace("\n", " ")[:150]
    except AssertionError as error:
        return "MISMATCH " + " ".join(str(error).split())[:120]
    except Exception as error:
        return f"CRASH {type(error).__name__}: {error}".replace("\n", " ")[:200]
    return None


def main(engine: str) -> int:
    count = 0
    cases = all_cases()
    for name, case in cases.items():
        reason = failure(case, ENGINES[engine])
        count += reason is None
        if reason is not None:
            print(f"{name} {engine} {reason}")
    print(f"{count} of {len(cases)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1] if len(sys.argv) > 1 else "reference"))
