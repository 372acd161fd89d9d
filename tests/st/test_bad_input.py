"""Bad input ends in a typed error that says where, what was expected and what was found; odd but legal input works.

One case each. What could kill a process (traps, allocation, signals, forks) stands in test_bad_process.py.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

import superkernel as sk
from superkernel.cli import _parser, load_model
from superkernel.cli.npz import read_npz
from superkernel.core.dtypes import DType
from superkernel.core.errors import FileFormatError, UserError
from superkernel.core.tensor import TensorType
from superkernel.frontends.json_form import save_json
from superkernel.ir.graph import Graph, Node

F32 = DType.F32


def relu(shape: tuple[int, ...] = (2, 3), dtype: str = "f32") -> sk.Graph:
    b = sk.GraphBuilder("relu")
    b.output(b.relu(b.input("x", shape, dtype)), name="y")
    return b.graph()


@pytest.fixture(scope="module")
def kernel() -> sk.Kernel:
    return sk.compile(relu(), threads=1)


# Graphs ---------------------------------------------------------------------------------------------------------------


def nodes(*applications: Node, outputs: Any = ("y",), shape: Any = (2, 3), **more: Any) -> Graph:
    return Graph.build(inputs={"x": TensorType(F32, shape)}, nodes=applications, outputs=outputs, **more)


def cycle() -> object:
    g: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    g.add_node("x", op="input", dtype="f32", shape=(2,))
    g.add_node("a", op="add")
    g.add_node("b", op="relu")
    g.add_node("out", op="output")
    for source, target, slot in (("x", "a", 0), ("b", "a", 1), ("a", "b", 0), ("b", "out", 0)):
        g.add_edge(source, target, input_index=slot)
    return sk.compile(g)


def nan_attribute() -> object:
    b = sk.GraphBuilder("g")
    return b.leaky_relu(b.input("x", (2,), "f32"), alpha=float("nan"))


def inner_dimensions() -> object:
    b = sk.GraphBuilder("g")
    return b.matmul(b.input("x", (2, 3), "f32"), b.input("w", (4, 5), "f32"))


def mixed_types() -> object:
    b = sk.GraphBuilder("g")
    return b.add(b.input("x", (2,), "f32"), b.input("z", (2,), "i32"))


def attributes_of_no_operator() -> object:
    g: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    g.add_node("x", dtype="f32", shape=(2,), attrs=3)
    g.add_node("a", op="relu")
    g.add_edge("x", "a")
    return sk.compile(g)


R = Node("a", "relu", ("x",), ("y",))

GRAPHS: dict[str, tuple[Callable[[], object], str]] = {
    "attributes of no operator": (attributes_of_no_operator, "'attrs' is not a mapping"),
    "shape that is a number": (lambda: sk.GraphBuilder("g").input("x", 3), r"not a shape.*\(3,\)"),  # type: ignore[arg-type]
    "shape that is nothing": (lambda: sk.GraphBuilder("g").input("x", None), "not a shape"),  # type: ignore[arg-type]
    "cycle": (cycle, "b -> a -> b: the graph has a cycle"),
    "unknown operator": (lambda: nodes(Node("a", "rellu", ("x",), ("y",))), "node 'a'.*'rellu'.*did you mean relu"),
    "wrong shape": (inner_dimensions, r"matmul.*expected 3.*found 4"),
    "wrong type": (mixed_types, "i32"),
    "unknown value": (lambda: nodes(Node("a", "relu", ("z",), ("y",))), "node 'a': input 0 names an unknown value 'z'"),
    "absent input": (lambda: nodes(Node("a", "add", ("x", None), ("y",))), "required input is absent"),
    "too many inputs": (lambda: nodes(Node("a", "relu", ("x", "x"), ("y",))), "expected 1 to 1; found 2"),
    "unknown attribute": (lambda: nodes(Node("a", "relu", ("x",), ("y",), {"k": 1})), "unknown attribute 'k'"),
    "nan attribute": (nan_attribute, r"'alpha'.*expected float \(not NaN\); found nan"),
    "empty graph": (lambda: sk.compile(nx.DiGraph()), "has no output"),
    "no outputs": (lambda: nodes(R, outputs=()), "has no output.*name at least one"),
    "outputs as text": (lambda: nodes(R, outputs="y"), "expected a sequence of value names; found 'y'"),
    "unknown output": (lambda: nodes(R, outputs=("q",)), "the output 'q' is not a value"),
    "two nodes of a name": (lambda: nodes(R, Node("a", "exp", ("x",), ("z",))), "duplicate node name 'a'"),
    "two values of a name": (lambda: nodes(R, Node("b", "exp", ("x",), ("y",))), "node 'b': duplicate name 'y'"),
    "negative dimension": (lambda: nodes(R, shape=(-1, 2)), r"input 'x': negative dimension; found f32\[-1,2\]"),
    "fractional dimension": (lambda: nodes(R, shape=(1.5,)), "input 'x': a dimension is not an integer"),
    "no type": (
        lambda: Graph.build(inputs={"x": "f32"}, nodes=[R], outputs=["y"]),  # type: ignore[dict-item]
        "input 'x': not a type",
    ),
    "too large": (lambda: nodes(R, shape=(1 << 40, 1 << 40)), "too large to be addressed; expected at most"),
    "argmax of nothing": (
        lambda: nodes(Node("a", "argmax", ("x",), ("y",), {"axis": 0}), shape=(0, 2)),
        "node 'a'.*an empty axis has no extreme",
    ),
    "strings as constant": (lambda: nodes(R, constants={"c": np.array(["a"])}), "constant 'c'"),
    "objects as constant": (lambda: nodes(R, constants={"c": np.array([None])}), "constant 'c'"),
    "number as name": (
        lambda: nodes(Node("a", "relu", ("x",), (2,)), outputs=(2,)),  # type: ignore[arg-type]
        "node 'a': a value's name is not text; expected str; found 2",
    ),
    "update of another type": (
        lambda: nodes(R, states={"s": np.zeros(3, np.float32)}, updates={"s": "y"}),
        r"update of state 's' has another type; expected f32\[3\]; found f32\[2,3\]",
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_bad_graph(name: str) -> None:
    make, text = GRAPHS[name]
    with pytest.raises(sk.GraphError, match=text):
        make()


def test_what_is_no_element_type_or_name() -> None:
    for dtype in (None, "f4,,", (np.float32, -1)):
        with pytest.raises(UserError, match="not an element type"):
            sk.GraphBuilder("g").input("x", (2,), dtype)
    with pytest.raises(sk.InputError, match="not a name for a graph; found 3"):
        sk.GraphBuilder(3)  # type: ignore[arg-type]


def test_all_violations_of_a_graph_at_once() -> None:
    with pytest.raises(sk.GraphError) as raised:
        nodes(Node("a", "rellu", ("q",), ("y",)), outputs=("z",))
    assert len(raised.value.violations) == 3


# Arguments ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [0, -1, 1000, "2", True, 1.0, [2]])
def test_bad_threads(threads: Any) -> None:
    with pytest.raises(sk.InputError, match="bad number of threads; expected an integer, 1 to 64; found"):
        sk.compile(relu(), threads=threads)


def test_integers_of_numpy_are_integers() -> None:
    assert sk.compile(relu(), threads=np.int32(2)).threads == 2  # type: ignore[call-overload]


ARGUMENTS: dict[str, tuple[dict[str, Any], type[sk.SuperKernelError], str]] = {
    "target": ({"target": "gpu"}, sk.InputError, "expected host, .*mini(, toy)?; found 'gpu'"),
    "no target": ({"target": None}, sk.InputError, "not a target"),
    "unknown option": ({"options": {"fuze": True}}, sk.InputError, "expected sync, .*; found fuze"),
    "options as list": ({"options": ["fuse"]}, sk.InputError, "found list"),
    "choice": ({"options": {"sync": "some"}}, sk.InputError, "option 'sync'.*minimal, type-range, full; found 'some'"),
    "number as truth": ({"options": {"fuse": 1}}, sk.InputError, "option 'fuse': not a truth value"),
    "time": ({"options": {"watchdog_ms": float("inf")}}, sk.InputError, "option 'watchdog_ms'.*found inf"),
    "long time": ({"options": {"watchdog_ms": 1e30}}, sk.InputError, "option 'watchdog_ms'"),
    "no patterns": ({"options": {"deny": None}}, sk.InputError, "option 'deny'.*found None"),
    "dims": ({"dims": {"n": "3"}}, sk.InputError, "dimension 'n': not a size.*found '3'"),
    "dims as list": ({"dims": [1]}, sk.InputError, "dims is not a mapping"),
    "dims of a graph": ({"dims": {"n": 3}}, sk.InputError, "only apply to ONNX"),
    "shape": ({"shapes": {"x": (1.5,)}}, sk.InputError, "shape of 'x': not a shape"),
    "shape as number": ({"shapes": {"x": 3}}, sk.InputError, "shape of 'x': not a shape"),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_bad_argument(name: str) -> None:
    arguments, kind, text = ARGUMENTS[name]
    with pytest.raises(kind, match=text):
        sk.compile(relu(), **arguments)


@pytest.mark.parametrize("source", [None, 3, [], object()])
def test_what_is_no_model(source: Any) -> None:
    with pytest.raises(sk.InputError, match="not a source of a graph"):
        sk.compile(source)


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (lambda k: k.run({"x": np.ones((2, 3), np.float32)}, executor="gpu"), "unknown executor; expected host"),
        (lambda k: k.explain("nobody"), "no node or value.*stage_text"),
        (lambda k: k.explain(-1), "expected 0 to 0; found -1"),
        (lambda k: k.stage_text("dreams"), "expected graph, .*; found 'dreams'"),
        (lambda k: k.report(rounds=-1), "argument 'rounds'.*found -1"),
        (lambda k: k.time(rounds=0), "argument 'rounds'"),
        (lambda k: k.time(rounds=10**12), "argument 'rounds'"),
        (lambda k: k.save(None), "not the name of a file; found None"),
        (lambda k: k.save("a\0b"), "not the name of a file"),
    ],
)
def test_bad_arguments_of_a_kernel(kernel: sk.Kernel, act: Callable[[sk.Kernel], object], text: str) -> None:
    with pytest.raises((sk.InputError, sk.UnsupportedError), match=text):
        act(kernel)


def test_an_explanation_of_a_mistyped_name_says_what_was_meant() -> None:
    b = sk.GraphBuilder("near")
    b.output(b.softmax(b.input("x", (2, 3), "f32"), name="attention_softmax"), name="scores")
    k = sk.compile(b.graph(), threads=1)
    for given, meant in (("attention_sofmax", "attention_softmax"), ("score", "scores")):
        with pytest.raises(sk.InputError, match=f"no node or value is called '{given}' .*did you mean '{meant}'"):
            k.explain(given)


# Files ----------------------------------------------------------------------------------------------------------------


def onnx_bytes(external: Path | None = None) -> bytes:
    import onnx
    import onnx.helper as oh

    infos = [oh.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [64]) for n in ("x", "y")]
    weight = onnx.numpy_helper.from_array(np.ones(64, np.float32), "w")
    graph = oh.make_graph([oh.make_node("Add", ["x", "w"], ["y"])], "g", infos[:1], infos[1:], [weight])
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)])
    if external is not None:
        options: dict[str, Any] = {"save_as_external_data": True, "location": "weights", "size_threshold": 0}
        onnx.save(model, str(external), **options)
    return bytes(model.SerializeToString())


def json_text(tmp_path: Path) -> str:
    save_json(relu(), tmp_path / "good.json")
    return (tmp_path / "good.json").read_text()


FILES: dict[str, tuple[str, Callable[[Path], bytes | None], type[sk.SuperKernelError], str]] = {
    "json corrupt": ("m.json", lambda p: b'{"nodes": [}', sk.FileFormatError, "not JSON"),
    "json truncated": ("m.json", lambda p: json_text(p)[:-20].encode(), sk.FileFormatError, "not JSON"),
    "json not text": ("m.json", lambda p: b"\xff\xfe\xff", sk.FileFormatError, "not JSON"),
    "json version": (
        "m.json",
        lambda p: json_text(p).replace('"schema_version": 1', '"schema_version": 9').encode(),
        sk.FileFormatError,
        "another schema version; expected 1; found 9",
    ),
    "json list": ("m.json", lambda p: b"[]", sk.FileFormatError, "not a graph file"),
    "json empty": ("m.json", lambda p: b"", sk.FileFormatError, "not JSON"),
    "onnx corrupt": ("m.onnx", lambda p: b"\xff" * 99, sk.FileFormatError, "not a readable ONNX"),
    "onnx truncated": ("m.onnx", lambda p: onnx_bytes()[:-9], sk.FileFormatError, "ONNX"),
    "onnx empty": ("m.onnx", lambda p: b"", sk.FileFormatError, "not an ONNX model"),
    "missing": ("m.onnx", lambda p: None, sk.InputError, "no such file"),
    "missing pt2": ("m.pt2", lambda p: None, sk.InputError, "no such file"),
    "pt2 empty": ("m.pt2", lambda p: b"", sk.FileFormatError, "torch.export.save"),
    "missing json": ("m.json", lambda p: None, sk.InputError, "no such file"),
    "unknown kind": ("m.txt", lambda p: b"hello", sk.InputError, "expected .onnx, .pt2, .json or .gguf"),
}


@pytest.mark.parametrize("name", FILES)
def test_bad_file(name: str, tmp_path: Path) -> None:
    file, contents, kind, text = FILES[name]
    data = contents(tmp_path)
    if data is not None:
        (tmp_path / file).write_bytes(data)
    with pytest.raises(kind, match=text) as raised:
        sk.compile(tmp_path / file)
    assert file in str(raised.value)


def test_external_data_of_onnx_is_missing(tmp_path: Path) -> None:
    onnx_bytes(tmp_path / "m.onnx")
    (tmp_path / "weights").unlink()
    with pytest.raises(sk.FileFormatError, match=r"m\.onnx.*external data of the model is missing.*weights"):
        sk.compile(tmp_path / "m.onnx")


@pytest.mark.parametrize("name", ["d.onnx", "d.json", "d"])
def test_directory_instead_of_a_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(sk.InputError, match="a directory, not a file"):
        sk.compile(tmp_path / name)
    with pytest.raises(sk.InputError, match="cannot be read"):
        sk.load(tmp_path / name)


def test_a_device_instead_of_a_saved_kernel() -> None:
    with pytest.raises(sk.InputError, match="expected a regular file"):
        sk.load("/dev/zero")


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("m.onnx", sk.compile),
        ("m.json", sk.compile),
        ("m.pt2", sk.compile),
        ("target.toml", lambda path: sk.compile(relu(), target=path)),
        ("machine.json", lambda path: sk.compile(relu(), target=path)),
        ("x.npz", lambda path: read_npz(Path(path), {})),
    ],
)
def test_a_device_instead_of_a_file(tmp_path: Path, name: str, read: Callable[[str], object]) -> None:
    path = tmp_path / name
    path.symlink_to("/dev/zero")
    with pytest.raises(sk.SuperKernelError, match="a device, which may have no end"):
        read(str(path))


def test_a_pipe_instead_of_a_file(tmp_path: Path) -> None:
    model, pipe = onnx_bytes(), tmp_path / "pipe.onnx"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(pipe.write_bytes, model)
        assert [value.name for value in sk.InferenceSession(pipe).get_inputs()] == ["x"]
        assert written.result() == len(model)


def test_a_device_instead_of_a_manifest() -> None:
    with pytest.raises(sk.InputError, match="option 'manifest', file '/dev/zero': no such file"):
        sk.compile(relu(), options={"manifest": ("/dev/zero",)})


@pytest.mark.parametrize("name", ["", "a\0b.json"])
def test_what_is_no_file_name(name: str) -> None:
    for read in (sk.compile, sk.load):
        with pytest.raises(sk.InputError, match="not the name of a file"):
            read(name)


def rewritten(path: Path, change: Callable[[dict[str, bytes], dict[str, Any]], None], **options: Any) -> Path:
    """A saved kernel with other members or another header."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    header = json.loads(members.pop("superkernel.json"))
    change(members, header)
    with zipfile.ZipFile(path, "w", **options) as archive:
        archive.writestr("superkernel.json", json.dumps(header))
        for name, data in members.items():
            archive.writestr(name, data)
    return path


SAVED: dict[str, tuple[Callable[[dict[str, bytes], dict[str, Any]], object], dict[str, Any], str]] = {
    "version": (lambda m, h: h.update(schema=99), {}, "saved by another version; expected schema 2; found 99"),
    "no cores": (lambda m, h: h.update(cores=0), {}, "not a whole saved kernel; found 0 cores"),
    "other kind": (
        lambda m, h: h.update(kind="abacus"),
        {},
        "not a whole.*'abacus', known are cpu, microcontroller, aicore",
    ),
    "not saved": (
        lambda m, h: h.update(kind="aicore"),
        {},
        "whose kernels are not saved; found aicore",
    ),
    "cores as list": (lambda m, h: h.update(cores=[1]), {}, "not a whole saved kernel"),
    "unknown option": (lambda m, h: h["options"].update(fuze=1), {}, "not a whole saved kernel.*fuze"),
    "options as list": (lambda m, h: h.update(options=[]), {}, "not a whole saved kernel"),
    "no checksums": (lambda m, h: h.update(sha256=[1]), {}, "not a saved kernel"),
    "other graph": (lambda m, h: m.update({"graph.json": b"{}"}), {}, "checksums differ; found graph.json"),
    "no graph": (lambda m, h: (m.pop("graph.json"), h["sha256"].pop("graph.json")), {}, "found graph.json"),
    "added member": (lambda m, h: m.update({"objects/x.o": b"evil"}), {}, "checksums differ; found objects/x.o"),
    "compressed": (lambda m, h: None, {"compression": zipfile.ZIP_DEFLATED}, "a compressed member"),
}


@pytest.mark.parametrize("name", SAVED)
def test_foreign_saved_kernel(kernel: sk.Kernel, tmp_path: Path, name: str) -> None:
    change, options, text = SAVED[name]
    kernel.save(tmp_path / "k.skm")
    rewritten(tmp_path / "k.skm", lambda m, h: h.pop("kind"))  # rewriting alone does no harm; files once had no kind
    assert sk.load(tmp_path / "k.skm").name == "relu"
    with pytest.raises(sk.FileFormatError, match=text):
        sk.load(rewritten(tmp_path / "k.skm", lambda m, h: (change(m, h), None)[1], **options))


def test_damaged_bits_of_a_saved_kernel(kernel: sk.Kernel, tmp_path: Path) -> None:
    kernel.save(tmp_path / "k.skm")
    whole = (tmp_path / "k.skm").read_bytes()
    rng = np.random.default_rng(5)
    for position in rng.integers(0, len(whole), 60):
        data = bytearray(whole)
        data[position] ^= 1 << int(rng.integers(8))
        (tmp_path / "k.skm").write_bytes(data)
        try:
            assert sk.load(tmp_path / "k.skm").name == "relu"  # a bit that nobody reads (a time stamp of the archive)
        except sk.FileFormatError:
            continue


def test_inputs_of_a_module_are_no_target() -> None:
    with pytest.raises(sk.InputError, match=r"not a target.*found a tuple.*example_inputs="):
        sk.compile(sk.Graph, (np.ones(3),))  # type: ignore[call-overload]


def test_a_saved_kernel_that_was_cut_short(kernel: sk.Kernel, tmp_path: Path) -> None:
    kernel.save(tmp_path / "k.skm")
    whole = (tmp_path / "k.skm").read_bytes()
    for end, text in ((len(whole) // 2, "cut short.*hint: copy the file again"), (20, "not a saved kernel")):
        (tmp_path / "k.skm").write_bytes(whole[:end])
        with pytest.raises(sk.FileFormatError, match=text):
            sk.load(tmp_path / "k.skm")


def test_a_model_is_no_saved_kernel_and_the_other_way_round(kernel: sk.Kernel, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(onnx_bytes())
    with pytest.raises(sk.FileFormatError, match="not a saved kernel"):
        sk.load(tmp_path / "m.onnx")
    kernel.save(tmp_path / "k.onnx")
    with pytest.raises(sk.InputError, match=r"read it with superkernel\.load"):
        sk.compile(tmp_path / "k.onnx")


def test_environment_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value, kind in (
        ("SK_DUMP", "dreams", sk.InputError),
        ("SK_CPU", "z80", sk.InputError),
        ("SK_CACHE_DIR", "~nobody-has-this-name/x", sk.InputError),
        ("SK_TRACE", str(tmp_path / "none" / "t.json"), sk.MachineError),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            with pytest.raises(kind, match=name):
                sk.compile(relu())


def test_a_cache_of_others_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("SK_CACHE_DIR", str(shared))
    with pytest.warns(UserWarning, match="writable by others"):
        sk.compile(relu())
    assert not list(shared.iterdir())


def test_hints_say_what_helps_here(tmp_path: Path) -> None:
    """The critical path on the host; half a saved kernel on the command line; a tensor that wants a gradient."""
    b = sk.GraphBuilder("g")
    b.output(b.relu(b.input("x", (2, 4))), "y")
    kernel = sk.compile(b.graph(), threads=1)
    with pytest.raises(sk.UnsupportedError, match=r"have a critical path.*`report` says what synchronisation costs"):
        kernel.critical()
    kernel.save(tmp_path / "whole.skm")
    (tmp_path / "half.skm").write_bytes((tmp_path / "whole.skm").read_bytes()[:700])
    with pytest.raises(FileFormatError, match="cut short"):
        load_model(_parser().parse_args(["run", str(tmp_path / "half.skm")]))

    class WithGradient:
        requires_grad = True

        def __dlpack__(self, **given: Any) -> Any:
            raise BufferError("no")

    with pytest.raises(sk.InputError, match=r"call \.detach\(\) on it"):
        kernel(WithGradient())
