"""The node tests of the ONNX standard, every one of them, through the ONNX frontend.

Each case: model -> Graph -> engine -> compared with the suite's own outputs at the suite's own tolerances. Graph
inputs that decide shapes are fixed to the case's data, exactly those that the frontend names.
`onnx_backend_exclude.txt` lists the cases that do not pass, each with its engines (or "all") and a reason; a case that
is not listed must pass, a listed one must not.

`python tests/st/test_onnx_backend.py [reference|transforms|host]` prints the list as it would have to be, for review.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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


@cache
def cases() -> dict[str, Any]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = load_model_tests(kind="node")
    return {case.name: case for case in found}


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
    """The graph, with those inputs fixed that the frontend needs to know."""
    from superkernel.frontends.onnx.call import StaticValueError

    constants: dict[str, Any] = {}
    while True:
        try:
            return load_graph(model, constants=constants)
        except StaticValueError as error:
            missing = {name: inputs[name] for name in error.inputs if name not in constants}
            if not missing:
                raise
            constants.update(missing)


def as_array(value: Any) -> Any:
    """The suite keeps some data as TensorProto."""
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def run_case(case: Any, engine: Engine) -> None:
    """Raises SuperKernelError or AssertionError where the case does not pass."""
    from onnx.backend.test.runner import Runner

    for inputs, expected in (tuple([as_array(v) for v in side] for side in pair) for pair in case.data_sets):
        names = [i.name for i in case.model.graph.input]
        given = dict(zip(names, inputs, strict=True))
        graph = import_case(case.model, given)
        results = engine(graph, {name: given[name] for name in graph.inputs})
        outputs = [results[o.name] for o in case.model.graph.output]
        with np.errstate(all="ignore"):
            Runner.assert_similar_outputs(expected, outputs, rtol=case.rtol, atol=case.atol)


def is_excluded(name: str, engine: str) -> bool:
    return name in excluded() and not {"all", engine}.isdisjoint(excluded()[name][0].split(","))


def every_case() -> list[Any]:
    """Every case on every engine. The host compiles each, which takes minutes in all: without `slow`, every 16th
    runs."""
    return [
        pytest.param(name, engine, marks=pytest.mark.slow if engine == "host" and index % 16 else ())
        for engine in ENGINES
        for index, name in enumerate(cases())
    ]


@pytest.mark.parametrize(("name", "engine"), every_case())
def test_node(name: str, engine: str) -> None:
    case = cases()[name]
    if not is_excluded(name, engine):
        run_case(case, ENGINES[engine])
        return
    with pytest.raises((SuperKernelError, AssertionError)):
        run_case(case, ENGINES[engine])


@pytest.mark.parametrize("engine", list(ENGINES))
def test_enough_pass(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    unknown = excluded().keys() - cases().keys()
    assert not unknown, f"listed, but not in the suite: {sorted(unknown)}"
    passing = [name for name in cases() if not is_excluded(name, engine)]
    folded = sum(1 for name in passing if not graph_of(name).nodes)
    with capsys.disabled():
        print(f"\nONNX node tests, {engine}: {len(passing)} of {len(cases())}; {folded} are computed wholly at import")
    assert len(passing) - folded >= PASSES_MIN


def graph_of(name: str) -> Graph:
    """The graph of a case, with the first data set's values where the frontend needs them."""
    case = cases()[name]
    names = [i.name for i in case.model.graph.input]
    return import_case(case.model, dict(zip(names, map(as_array, case.data_sets[0][0]), strict=True)))


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
    for name, case in cases().items():
        reason = failure(case, ENGINES[engine])
        count += reason is None
        if reason is not None:
            print(f"{name} {engine} {reason}")
    print(f"{count} of {len(cases())}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1] if len(sys.argv) > 1 else "reference"))
