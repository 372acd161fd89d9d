"""Ours and what a user could pick instead, each as a call without arguments that runs a workload once.

Model: a `Peer` says what it needs, its precision and which workloads it takes; its `load` runs inside a process of its
own (`worker.py`) and prepares everything that may be prepared ahead of a call: compilation, packing of weights, binding
of buffers. Inputs do not change between calls, so every peer is given its cheapest way of passing them. Everybody
gets the same number of threads and the same CPUs.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray
from workloads import Workload

from superkernel.ir.graph import Graph

Arrays = Mapping[str, NDArray[Any]]
Outputs = dict[str, NDArray[Any]]
OURS, PACKAGE = "superkernel", "superkernel-compiler"
F32, BF16, INT8 = "f32", "bf16", "int8"


@dataclass
class Runner:
    """A loaded workload. `call` runs it once and returns when it is done; `outputs` runs it once and gives arrays."""

    call: Callable[[], object]
    outputs: Callable[[], Outputs]
    facts: Mapping[str, Any]


@dataclass
class Task:
    """What a peer is asked to load."""

    workload: Workload
    graph: Graph
    inputs: Arrays
    threads: int

    def states(self) -> Outputs:
        """The states' first contents, arrays of their own."""
        return {name: np.array(array) for name, array in self.graph.states.items()}


@dataclass(frozen=True)
class Peer:
    """`package`: what pip calls it; `module`: what must be importable; `kinds`: workload kinds it takes (None: all)."""

    name: str
    package: str
    module: str
    load: Callable[[Task], Runner]
    precision: str = F32
    kinds: frozenset[str] | None = None
    own: bool = False  # one of ours: not a rival
    threads: int | None = None

    @property
    def installed(self) -> bool:
        return find_spec(self.module) is not None

    @property
    def version(self) -> str:
        try:
            return version(self.package)
        except PackageNotFoundError:
            return "absent"

    def takes(self, workload: Workload) -> bool:
        return self.kinds is None or workload.kind in self.kinds


def _named(graph: Graph, arrays: Any) -> Outputs:
    return {name: np.array(a) for name, a in zip(graph.outputs, arrays, strict=True)}


# Ours -----------------------------------------------------------------------------------------------------------------


def _superkernel(task: Task, precision: str = "f32") -> Runner:
    import superkernel

    kernel = superkernel.compile(task.graph, threads=task.threads, options={"precision": precision})
    arguments = [task.inputs[name] for name in kernel.inputs]
    call = partial(kernel, *arguments)
    if hasattr(kernel, "bind"):  # fixed buffers, where this version has them
        kernel.bind(*arguments)
        call = getattr(kernel, "run_bound")  # noqa: B009
    summary = kernel.summary()
    launches = kernel.time(task.inputs, rounds=30)
    facts = {
        "sub_operators": summary["sub_operators"],
        "waits": summary.get("waits"),
        "computed_in": summary.get("computed_in"),
        "launch_ns": float(np.median(launches)),  # without Python around it
    }
    return Runner(call, lambda: {n: np.array(a) for n, a in kernel.run(task.inputs).outputs.items()}, facts)


# ONNX Runtime ---------------------------------------------------------------------------------------------------------


def _onnx_model(task: Task, contrib: bool = False) -> Any:
    from emit_onnx import to_onnx

    return task.workload.onnx() if task.workload.onnx is not None else to_onnx(task.graph, contrib=contrib)


def _session(model: Any, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    source = model if isinstance(model, str) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def _onnxruntime(task: Task) -> Runner:
    """`session.run` with NumPy arrays, as most programs do; states go in and out as arrays."""
    session = _session(_onnx_model(task), task.threads)
    feeds = {**task.inputs, **task.states()}
    names = [o.name for o in session.get_outputs()]
    call = partial(session.run, names, feeds)
    return Runner(call, lambda: _without_states(task.graph, dict(zip(names, call(), strict=True))), {})


def _without_states(graph: Graph, found: Mapping[str, Any]) -> Outputs:
    """Outputs by our names, which for ONNX files may differ from theirs: their order is the same."""
    outputs = [a for name, a in found.items() if not name.endswith(".next")]
    return _named(graph, outputs[: len(graph.outputs)])


def _bound(task: Task, session: Any) -> Runner:
    """I/O binding: fixed input and output buffers, states updated in place."""
    import onnxruntime

    binding = session.io_binding()
    value = onnxruntime.OrtValue.ortvalue_from_numpy
    kept = {name: value(np.array(a)) for name, a in {**task.inputs, **task.states()}.items()}
    for name, held in kept.items():
        binding.bind_ortvalue_input(name, held)
    outputs: dict[str, Any] = {}
    dtypes = {"tensor(float)": np.float32}
    for info in session.get_outputs():
        state = info.name.removesuffix(".next")
        if info.name.endswith(".next") and state in kept:
            outputs[info.name] = kept[state]
        else:
            outputs[info.name] = value(np.zeros(info.shape, dtypes[info.type]))
        binding.bind_ortvalue_output(info.name, outputs[info.name])
    call = partial(session.run_with_iobinding, binding)

    def results() -> Outputs:
        call()
        return _without_states(task.graph, {n: v.numpy() for n, v in outputs.items()})

    return Runner(call, results, {})


def _onnxruntime_bound(task: Task) -> Runner:
    return _bound(task, _session(_onnx_model(task), task.threads))


def _onnxruntime_fused(task: Task) -> Runner:
    """The contrib operators: GroupQueryAttention for decoders; for encoders MultiHeadAttention and what ONNX Runtime's
    own transformer optimiser makes of the rest. Refuses where nothing fused: it would be the same as I/O binding."""
    if task.workload.kind == "decoder":
        return _bound(task, _session(_onnx_model(task, contrib=True), task.threads))
    import onnx
    from onnxruntime.transformers.fusion_options import FusionOptions
    from onnxruntime.transformers.optimizer import optimize_model

    attention = next(n for n in task.graph.nodes if n.op == "attention")
    _, heads, _, depth = task.graph.types[str(attention.inputs[0])].shape
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "model.onnx")
        onnx.save(_onnx_model(task, contrib=True), path)
        options = FusionOptions("bert")
        model = optimize_model(path, "bert", heads, heads * depth, opt_level=0, optimization_options=options)
    fused = {n.op_type: 0 for n in model.model.graph.node if n.domain == "com.microsoft"}
    for node in model.model.graph.node:
        if node.op_type in fused:
            fused[node.op_type] += 1
    if not fused:
        raise NotImplementedError("the transformer optimiser fused nothing")
    runner = _bound(task, _session(model.model, task.threads))
    runner.facts = {"fused": fused}
    return runner


# OpenVINO -------------------------------------------------------------------------------------------------------------


def _openvino(task: Task, precision: str) -> Runner:
    """A latency-hinted model, states as OpenVINO's variables, inputs and outputs as shared tensors."""
    import onnx
    import openvino as ov

    core = ov.Core()
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "model.onnx")
        onnx.save(_onnx_model(task), path)
        model = core.read_model(path)
        if task.graph.states:
            from openvino._offline_transformations import apply_make_stateful_transformation

            apply_make_stateful_transformation(model, {name: f"{name}.next" for name in task.graph.states})
        config = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": precision,
            "INFERENCE_NUM_THREADS": str(task.threads),
        }
        request = core.compile_model(model, "CPU", config).create_infer_request()
    for name, array in task.inputs.items():
        request.set_tensor(name, ov.Tensor(array, shared_memory=True))
    for state in request.query_state():
        name = max((n for n in task.graph.states if n in state.name), key=len)  # OpenVINO joins both ends' names
        state.state = ov.Tensor(np.array(task.graph.states[name]))

    def results() -> Outputs:
        request.infer()
        found = [request.get_output_tensor(i).data for i in range(len(task.graph.outputs))]
        return _named(task.graph, found)

    return Runner(request.infer, results, {})


# torch ----------------------------------------------------------------------------------------------------------------


def _torch_inputs(task: Task) -> list[Any]:
    import torch

    torch.set_num_threads(task.threads)
    torch.set_grad_enabled(False)
    return [torch.from_numpy(np.array(task.inputs[name])) for name in task.graph.inputs]


def _torch_runner(task: Task, function: Callable[..., Any], inputs: list[Any], facts: Mapping[str, Any]) -> Runner:
    call = partial(function, *inputs)
    return Runner(call, lambda: _named(task.graph, [t.numpy() for t in call()]), facts)


def _torch_compile(task: Task) -> Runner:
    """torch.compile with frozen weights and max-autotune."""
    import torch
    from emit_torch import to_torch

    inputs = _torch_inputs(task)
    torch._inductor.config.freezing = True
    module = torch.compile(to_torch(task.graph), mode="max-autotune", fullgraph=True, dynamic=False)
    return _torch_runner(task, module, inputs, {"mode": "max-autotune, freezing"})


def _torch_aot(task: Task) -> Runner:
    """AOTInductor: exported, compiled ahead of time, called through its C++ loader."""
    import torch
    from emit_torch import to_torch

    inputs = _torch_inputs(task)
    torch._inductor.config.freezing = True
    exported = torch.export.export(to_torch(task.graph), tuple(inputs))
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "model.pt2")
        torch._inductor.aoti_compile_and_package(
            exported, package_path=path, inductor_configs={"max_autotune": True, "freezing": True}
        )
        module = torch._inductor.aoti_load_package(path)
    return _torch_runner(task, module, inputs, {"mode": "max_autotune, freezing"})


# JAX, NumPy -----------------------------------------------------------------------------------------------------------


def _jax(task: Task) -> Runner:
    """jit with closed-over weights; states are donated, so that they may be updated in place."""
    import jax
    from emit_array import to_jax

    jax.config.update("jax_enable_x64", any(t.dtype.numpy == np.int64 for t in task.graph.inputs.values()))
    inputs = {name: jax.device_put(a) for name, a in task.inputs.items()}
    states = {name: jax.device_put(a) for name, a in task.states().items()}
    compiled = jax.jit(to_jax(task.graph), donate_argnums=(1,)).lower(inputs, states).compile()

    def call() -> Any:
        nonlocal states
        found, states = compiled(inputs, states)
        for array in found:
            array.block_until_ready()
        return found

    return Runner(call, lambda: _named(task.graph, call()), {})


def _numpy(task: Task) -> Runner:
    """The operators one by one in f32, products by the BLAS that NumPy brings."""
    from emit_array import to_numpy

    function, states = to_numpy(task.graph), task.states()
    call = partial(function, task.inputs, states)
    return Runner(call, lambda: _named(task.graph, call()[0]), {})


# The list -------------------------------------------------------------------------------------------------------------

_TRANSFORMERS = frozenset({"encoder", "decoder"})
_ALL = (
    Peer(OURS, PACKAGE, "superkernel._core", _superkernel, own=True),
    Peer(f"{OURS}-again", PACKAGE, "superkernel._core", _superkernel, own=True),  # the control: the noise
    Peer(f"{OURS}-1t", PACKAGE, "superkernel._core", _superkernel, own=True, threads=1),
    Peer(
        f"{OURS}-bf16",
        PACKAGE,
        "superkernel._core",
        partial(_superkernel, precision=BF16),
        precision=BF16,
        own=True,
    ),
    Peer(
        f"{OURS}-int8",
        PACKAGE,
        "superkernel._core",
        partial(_superkernel, precision=INT8),
        precision=INT8,
        own=True,
    ),
    Peer("onnxruntime", "onnxruntime", "onnxruntime", _onnxruntime),
    Peer("onnxruntime-bound", "onnxruntime", "onnxruntime", _onnxruntime_bound),
    Peer("onnxruntime-fused", "onnxruntime", "onnxruntime", _onnxruntime_fused, kinds=_TRANSFORMERS),
    Peer("openvino", "openvino", "openvino", partial(_openvino, precision="f32")),
    Peer("openvino-bf16", "openvino", "openvino", partial(_openvino, precision="bf16"), precision=BF16),
    Peer("torch-compile", "torch", "torch", _torch_compile),
    Peer("torch-aot", "torch", "torch", _torch_aot),
    Peer("jax", "jax", "jax", _jax),
    Peer("numpy", "numpy", "numpy", _numpy),
)
PEERS: dict[str, Peer] = {peer.name: peer for peer in _ALL}


def thread_environment(threads: int) -> dict[str, str]:
    """What must be in the environment before the libraries are loaded."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {**dict.fromkeys(names, str(threads)), "TOKENIZERS_PARALLELISM": "false"}


def import_peer(peer: Peer) -> None:
    """Load the library itself, apart from the workload: its start-up is nobody's compile time."""
    import_module(peer.module)
