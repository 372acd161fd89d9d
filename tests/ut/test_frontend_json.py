"""The JSON form: round trips, and every way in which a file can be bad."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from superkernel.builder import GraphBuilder
from superkernel.core.errors import FileFormatError, GraphError, InputError
from superkernel.frontends import load_graph
from superkernel.frontends.json_form import save_json
from superkernel.ir.graph import Graph


def sample() -> Graph:
    rng = np.random.default_rng(0)
    b = GraphBuilder("sample")
    x = b.input("x", (2, 40))
    small = b.constant(np.float32(2.5), name="small")
    large = b.constant(rng.standard_normal((40, 40)).astype(ml_dtypes.bfloat16), name="large/weight")
    state = b.state("s", rng.standard_normal((2, 40), np.float32))
    y = x * small + b.cast(large, dtype="f32")[:2]
    b.update(state, y + state)
    b.output(y, name="y")
    return b.graph()


@pytest.mark.parametrize("weights", ["npz", "safetensors"])
@pytest.mark.parametrize("inline_bytes", [0, 1024, 1 << 20])
def test_round_trip(tmp_path: Path, weights: str, inline_bytes: int) -> None:
    graph = sample()
    path = tmp_path / "g.json"
    save_json(graph, path, weights=weights, inline_bytes=inline_bytes)
    assert (tmp_path / f"g.{weights}").exists() == (inline_bytes < 1 << 20)
    again = load_graph(path)
    assert str(again) == str(graph)
    for mine, theirs in ((graph.constants, again.constants), (graph.states, again.states)):
        for name, array in mine.items():
            assert array.dtype == theirs[name].dtype
            assert array.tobytes() == theirs[name].tobytes()


def test_hand_written(tmp_path: Path) -> None:
    document = {
        "schema_version": 1,
        "nodes": [
            {"id": "x", "op": "input", "dtype": "f32", "shape": [2]},
            {"id": "c", "op": "constant", "value": {"dtype": "f32", "shape": [2], "data": [1, 2.5]}},
            {"id": "y", "op": "add"},
        ],
        "links": [
            {"source": "x", "target": "y", "input_index": 0},
            {"source": "c", "target": "y", "input_index": 1},
        ],
    }
    path = tmp_path / "hand.json"
    path.write_text(json.dumps(document))
    assert load_graph(str(path)).constants["c"].tolist() == [1.0, 2.5]


def saved(tmp_path: Path, weights: str = "npz") -> tuple[Path, dict[str, Any]]:
    path = tmp_path / "g.json"
    save_json(sample(), path, weights=weights)
    return path, json.loads(path.read_text())


def constant(document: dict[str, Any], name: str) -> dict[str, Any]:
    value: dict[str, Any] = next(n for n in document["nodes"] if n["id"] == name)["value"]
    return value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(schema_version=2), "schema version"),
        (lambda d: d.pop("schema_version"), "schema version"),
        (lambda d: d.update(format="other"), "not a graph file"),
        (lambda d: d.pop("nodes"), "'nodes' is not a list"),
        (lambda d: d.update(links=[1]), "'links' is not a list"),
        (lambda d: d.update(files=[]) or d.update(graph=3), "are objects"),
        (lambda d: d["nodes"][0].pop("id"), "without 'id'"),
        (lambda d: d["nodes"].append(dict(d["nodes"][0])), "two nodes with one id"),
        (lambda d: d["links"][0].update(source="nobody"), "unknown node"),
        (lambda d: constant(d, "small").update(base64="!!"), "does not read"),
        (lambda d: constant(d, "small").update(base64="AAAA"), "does not read"),
        (lambda d: constant(d, "small").update(shape=[-1]), "does not read"),
        (lambda d: constant(d, "small").update(dtype="f8"), "does not read"),
        (lambda d: constant(d, "small").pop("dtype"), "an array has"),
        (lambda d: constant(d, "large/weight").update(shape=[1600]), "declared type"),
        (lambda d: constant(d, "large/weight").update(dtype="i16"), "declared type"),
        (lambda d: constant(d, "large/weight").update(key="none"), "lacks the array"),
        (lambda d: constant(d, "large/weight").update(file="none.npz"), "is missing"),
        (lambda d: constant(d, "large/weight").update(file="../g.npz"), "outside the folder"),
        (lambda d: constant(d, "large/weight").update(file="/etc/passwd"), "outside the folder"),
        (lambda d: constant(d, "large/weight").update(file="g.json"), "is .npz or .safetensors"),
        (lambda d: d["files"]["g.npz"].update(sha256="0" * 64), "another content hash"),
    ],
)
def test_bad_file(tmp_path: Path, change: Any, message: str) -> None:
    path, document = saved(tmp_path)
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(FileFormatError, match=message):
        load_graph(path)


@pytest.mark.parametrize("weights", ["npz", "safetensors"])
def test_truncated_at_every_place(tmp_path: Path, weights: str) -> None:
    path, document = saved(tmp_path, weights)
    text = path.read_text()
    for length in range(0, len(text) - 1, max(1, len(text) // 23)):
        path.write_text(text[:length])
        with pytest.raises(FileFormatError):
            load_graph(path)
    side = tmp_path / f"g.{weights}"
    whole = side.read_bytes()
    document["files"] = {}  # without the hash the side file's own format must notice
    path.write_text(json.dumps(document))
    for length in range(0, len(whole) - 1, max(1, len(whole) // 23)):
        side.write_bytes(whole[:length])
        with pytest.raises(FileFormatError):
            load_graph(path)


def test_side_file_behind_a_link_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    path, _ = saved(folder)
    (folder / "g.npz").rename(tmp_path / "out.npz")
    (folder / "g.npz").symlink_to(tmp_path / "out.npz")
    with pytest.raises(FileFormatError, match="outside the folder"):
        load_graph(path)


def test_pickled_array_is_refused(tmp_path: Path) -> None:
    path, document = saved(tmp_path)
    with (tmp_path / "g.npz").open("wb") as file:
        np.savez(file, **{"large/weight": np.array([{}], dtype=object)})  # type: ignore[arg-type]
    document["files"] = {}
    path.write_text(json.dumps(document))
    with pytest.raises(FileFormatError, match="does not read"):
        load_graph(path)


def test_missing_and_unreadable(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_graph(tmp_path / "none.json")
    (tmp_path / "bad.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(FileFormatError, match="not JSON"):
        load_graph(tmp_path / "bad.json")


def test_graph_errors_stay_graph_errors(tmp_path: Path) -> None:
    path, document = saved(tmp_path)
    for node in document["nodes"]:
        if node["op"] == "mul":
            node["op"] = "mull"
    path.write_text(json.dumps(document))
    with pytest.raises(GraphError, match="unknown operator"):
        load_graph(path)


def test_unknown_form_of_weights(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown form"):
        save_json(sample(), tmp_path / "g.json", weights="pickle")
