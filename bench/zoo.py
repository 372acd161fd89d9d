"""The model zoo: networks of transformers, timm and torchvision with random weights, each compiled and held against
torch.

    python bench/zoo.py [--only 'transformers/*'] [--json FILE] [--rivals] [--backend] [--threads 2]

Each network has a process of its own, which ends after `--seconds` or beyond `--gigabytes`. It is exported, compiled
with an empty cache of code, run, and its outputs compared with torch's eager mode: *difference* is the largest one of
any element, over the largest element of that output. A network passes where all of it is one kernel without a fallback
to NumPy and every difference is at most 1e-4; integer outputs must be equal. One that is farther apart is *rounded*
otherwise, and not wrong, where it is at most twice as far from eager mode in float64 as eager mode in f32 is.

Columns: millions of parameters; sub-operators; seconds that torch's export and the import took, and that compiling
took; megabytes that these two and the first run held at most beyond what the process held before; milliseconds of a
call of ours, and how many times as long the others take (fastest calls, taken in turn). `--rivals` adds inductor,
onnxruntime and OpenVINO where they are installed. `--backend` runs the networks that are named for it through
torch.compile with this package as its backend and batches of 2, 3, 5 and 2 again (torch gives a batch of 1 a graph of
its own, always): how many graphs torch made, kernels of them all, differences from eager mode, seconds of each call.

With `--json` results are kept as they come, and a further run goes on where the last one ended.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Any

TOLERANCE = 1e-4
ROUNDED = 2.0  # times torch's own distance from float64
BATCHES = (2, 3, 5, 2)
SLICE_SECONDS = 0.1
PASSED = "pass"

Row = dict[str, Any]


# In a network's process -----------------------------------------------------------------------------------------------


def tensors(value: Any) -> list[Any]:
    """The tensors among what a module returned, in order."""
    import torch

    return [t for t in torch.utils._pytree.tree_flatten(value)[0] if isinstance(t, torch.Tensor)]


def difference(found: Any, wanted: Any) -> float:
    """The largest difference of an element over the largest element; infinite where shapes or integers differ."""
    import torch

    found, wanted = torch.as_tensor(found), torch.as_tensor(wanted)
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return float("inf")
    if not wanted.is_floating_point():
        return 0.0 if torch.equal(found, wanted) else float("inf")
    found, wanted = found.double(), wanted.double()
    same = (found == wanted) | (found.isnan() & wanted.isnan())  # infinities of masks
    finite = wanted.isfinite()
    if not wanted.numel() or bool(same.all()):
        return 0.0
    largest = float(wanted[finite].abs().max()) if bool(finite.any()) else 1.0
    apart = torch.where(same, torch.zeros_like(wanted), (found - wanted).abs()).max()
    return float(torch.nan_to_num(apart, nan=float("inf"), posinf=float("inf"))) / max(largest, 1e-30)


def differences(found: Sequence[Any], wanted: Sequence[Any]) -> float:
    """The largest difference of any output."""
    if len(found) != len(wanted):
        return float("inf")
    return max(map(difference, found, wanted), default=float("inf"))


def verdict(apart: float, fallbacks: Sequence[object], exact: tuple[float, float] | None = None) -> str:
    """A row's status. `exact`: how far ours and torch's own outputs are from float64."""
    if not apart <= TOLERANCE:
        if exact is not None and exact[0] <= ROUNDED * exact[1]:
            return f"rounded: {exact[0]:.1e} from float64, torch itself {exact[1]:.1e}"
        return f"wrong: difference {apart:.1e}"
    return "fallback: " + ", ".join(sorted(set(map(str, fallbacks))))[:200] if fallbacks else PASSED


def held_mb(field: str) -> float:
    """Of this process: "VmRSS", what it holds, or "VmHWM", the most it held since `forget_peak`."""
    line = next(n for n in Path("/proc/self/status").read_text().splitlines() if n.startswith(field))
    return int(line.split()[1]) / 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def compiled(name: str, threads: int, rivals: bool, rounds: int) -> Row:
    """One network: see the module docstring."""
    import torch
    import zoo_networks
    from torch.utils import _pytree as pytree

    import superkernel
    from superkernel.frontends import load_graph

    module, inputs = zoo_networks.made(name)
    row: Row = {"parameters": sum(p.numel() for p in module.parameters())}
    with torch.inference_mode():
        wanted = tensors(zoo_networks.run(module, inputs))
    before = held_mb("VmRSS")
    forget_peak()
    start = time.perf_counter()
    graph = load_graph(module, example_inputs=inputs)
    row["export_s"] = time.perf_counter() - start
    start = time.perf_counter()
    kernel = superkernel.compile(graph, threads=threads)
    row["compile_s"] = time.perf_counter() - start
    given = [t for t in pytree.tree_flatten(inputs)[0] if isinstance(t, torch.Tensor)]
    arrays = [t.numpy() for t in given]
    results = kernel(*arrays)
    row["peak_mb"] = held_mb("VmHWM")
    row["added_mb"] = row["peak_mb"] - before
    summary = kernel.summary()
    row |= {"nodes": summary["nodes"], "sub_operators": summary["sub_operators"], "fallbacks": summary["fallbacks"]}
    found = [torch.as_tensor(a) for a in (results if isinstance(results, tuple) else (results,))]
    row["difference"] = differences(found, wanted)
    exact = None
    if row["difference"] > TOLERANCE:
        with torch.inference_mode():
            wide = pytree.tree_map(lambda t: t.double() if torch.is_floating_point(t) else t, inputs)
            real = tensors(zoo_networks.run(copy.deepcopy(module).double(), wide))
        ours, own = ([t.to(r.dtype) for t, r in zip(o, real, strict=True)] for o in (found, wanted))
        exact = differences(ours, real), differences(own, real)
    row["status"] = verdict(row["difference"], row["fallbacks"], exact)
    if row["status"].startswith((PASSED, "rounded")) and rounds:
        calls: dict[str, Callable[[], object]] = {"superkernel": lambda: kernel(*arrays)}
        calls["torch"] = in_inference(lambda: zoo_networks.run(module, inputs))
        for rival, load in (RIVALS if rivals else {}).items():
            add_rival(row, calls, rival, lambda load=load: load(module, inputs, threads), wanted)  # type: ignore[misc]
        row["ms"] = measured(calls, rounds)
    return row


def in_inference(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call in torch's inference mode."""
    import torch

    def run() -> Any:
        with torch.inference_mode():
            return call()

    return run


def measured(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """ms of each one's fastest call, in slices that alternate."""
    fastest = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            end = time.perf_counter() + SLICE_SECONDS
            while True:
                start = time.perf_counter()
                call()
                stop = time.perf_counter()
                fastest[name] = min(fastest[name], (stop - start) * 1e3)
                if stop > end:
                    break
    return fastest


# Rivals ---------------------------------------------------------------------------------------------------------------


def add_rival(
    row: Row, calls: dict[str, Callable[[], object]], rival: str, load: Callable[[], Any], wanted: Sequence[Any]
) -> None:
    """Adds a rival's call where it can be had and is right; else the reason."""
    try:
        start = time.perf_counter()
        call = load()
        off = differences(tensors(call()), wanted)
        row.setdefault("rivals_load_s", {})[rival] = time.perf_counter() - start
        if off > 1e-2:
            raise RuntimeError(f"difference {off:.1e}")
        calls[rival] = call
    except Exception as error:  # every failure of a rival is a line of the results, not the end of the run
        lines = str(error).strip().splitlines() or [""]
        row.setdefault("rivals_absent", {})[rival] = f"{type(error).__name__}: {lines[0][:200]}"


def _inductor(module: Any, inputs: Any, threads: int) -> Callable[[], Any]:
    import torch
    import zoo_networks

    faster = torch.compile(module, dynamic=False)
    return in_inference(lambda: zoo_networks.run(faster, inputs))


def _onnx_file(module: Any, inputs: Any, folder: str) -> str:
    import torch

    path = str(Path(folder) / "model.onnx")
    args, kwargs = ((), inputs) if isinstance(inputs, dict) else (inputs, None)
    with torch.no_grad():
        torch.onnx.export(module, args, path, kwargs=kwargs, dynamo=True, verbose=False)
    return path


def _fed(module: Any, inputs: Any) -> list[Any]:
    import torch

    return [t.numpy() for t in tensors(inputs) if isinstance(t, torch.Tensor)]


def _onnxruntime(module: Any, inputs: Any, threads: int) -> Callable[[], Any]:
    import onnxruntime
    import torch

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    with tempfile.TemporaryDirectory() as folder:
        session = onnxruntime.InferenceSession(
            _onnx_file(module, inputs, folder), options, providers=["CPUExecutionProvider"]
        )
    feeds = dict(zip([i.name for i in session.get_inputs()], _fed(module, inputs), strict=True))
    return lambda: [torch.as_tensor(a) for a in session.run(None, feeds)]


def _openvino(module: Any, inputs: Any, threads: int) -> Callable[[], Any]:
    import openvino
    import torch

    core = openvino.Core()
    with tempfile.TemporaryDirectory() as folder:
        model = core.read_model(_onnx_file(module, inputs, folder))
        config = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": str(threads),
        }
        request = core.compile_model(model, "CPU", config).create_infer_request()
    for index, array in enumerate(_fed(module, inputs)):
        request.set_input_tensor(index, openvino.Tensor(array, shared_memory=True))
    count = len(model.outputs)

    def call() -> Any:
        request.infer()
        return [torch.as_tensor(request.get_output_tensor(i).data) for i in range(count)]

    return call


RIVALS: dict[str, Callable[[Any, Any, int], Callable[[], Any]]] = {
    "inductor": _inductor,
    **({"onnxruntime": _onnxruntime} if find_spec("onnxruntime") and find_spec("onnxscript") else {}),
    **({"openvino": _openvino} if find_spec("openvino") and find_spec("onnxscript") else {}),
}


# torch.compile --------------------------------------------------------------------------------------------------------


def through_torch_compile(name: str, threads: int, rivals: bool, rounds: int) -> Row:
    """One network as a graph of torch.compile with batches that change."""
    import torch
    import zoo_networks

    from superkernel import dynamo

    graphs: list[dynamo.DynamoGraph] = []

    def backend(*args: Any, **options: Any) -> Any:
        graphs.append(dynamo.DynamoGraph(args[0], args[1], {"threads": threads, "fallback": "forbid"}))
        return graphs[-1]

    module, inputs = zoo_networks.made(name)
    quick = torch.compile(module, backend=backend)
    row: Row = {"difference": 0.0, "seconds": []}
    with torch.inference_mode():
        for batch in BATCHES:
            given = batched(inputs, batch)
            start = time.perf_counter()
            found = tensors(zoo_networks.run(quick, given))
            row["seconds"].append(time.perf_counter() - start)
            row["difference"] = max(row["difference"], differences(found, tensors(zoo_networks.run(module, given))))
    row["graphs"] = len(graphs)
    row["kernels"] = sum(len(g._kernels) for g in graphs)
    row["peak_mb"] = held_mb("VmHWM")
    row["status"] = verdict(row["difference"], ())
    return row


def batched(inputs: Any, batch: int) -> Any:
    """Inputs for another batch, the first axis of every tensor."""
    import torch

    def more(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        wide = torch.cat([value.roll(i, -1) for i in range(batch)])
        torch._dynamo.mark_dynamic(wide, 0)
        return wide

    return {k: more(v) for k, v in inputs.items()} if isinstance(inputs, Mapping) else tuple(map(more, inputs))


# The run --------------------------------------------------------------------------------------------------------------


def child(channel: Any, name: str, job: str, asked: argparse.Namespace) -> None:
    """What a network's process does: sends its row, or the error as one."""
    warnings.simplefilter("ignore")
    if not asked.verbose:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
    limit = int(asked.gigabytes * 1e9)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with tempfile.TemporaryDirectory() as cache:
        os.environ["SK_CACHE_DIR"] = cache
        try:
            import torch

            torch.set_num_threads(asked.threads)
            work = {"compiled": compiled, "backend": through_torch_compile}[job]
            row = work(name, asked.threads, asked.rivals, asked.rounds)
        except Exception as error:  # a network's failure is a line of the table, not the end of the run
            row = {"status": f"{type(error).__name__}: " + " ".join(str(error).split())[:600]}
            if asked.verbose:
                traceback.print_exc()
        channel.send(row)


def measure(context: Any, name: str, job: str, asked: argparse.Namespace) -> Row:
    """A network in a process of its own."""
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(theirs, name, job, asked))
    start = time.perf_counter()
    process.start()
    theirs.close()
    try:
        row: Row = ours.recv() if ours.poll(asked.seconds) else {"status": f"not done after {asked.seconds} s"}
    except EOFError:
        process.join()
        row = {"status": f"ended with status {process.exitcode}"}
    process.kill()
    process.join()
    row["whole_s"] = time.perf_counter() - start
    return row


def text(name: str, row: Row, rivals: Sequence[str]) -> str:
    """A line of the table."""
    if "compile_s" not in row:
        return f"{name:<44} {row['status']}"
    times = row.get("ms", {})
    ours = times.get("superkernel")
    speed = [f"{times[r] / ours:>11.2f}" if r in times else f"{'-':>11}" for r in rivals] if ours else []
    return (
        f"{name:<44} {row['parameters'] / 1e6:>6.1f} {row['sub_operators']:>6} {row['difference']:>9.1e} "
        f"{row['export_s']:>6.1f} {row['compile_s']:>7.1f} {row['added_mb']:>7.0f} "
        + (f"{ours:>8.2f} {''.join(speed)}" if ours else "")
        + ("" if row["status"] == PASSED else f"  {row['status']}")
    )


def backend_text(name: str, row: Row) -> str:
    """A line of the table of torch.compile."""
    if "graphs" not in row:
        return f"{name:<44} {row['status']}"
    seconds = " ".join(f"{s:6.2f}" for s in row["seconds"])
    return (
        f"{name:<44} {row['graphs']:>6} {row['kernels']:>7} {row['difference']:>9.1e} {seconds} {row['peak_mb']:>7.0f}"
        + ("" if row["status"] == PASSED else f"  {row['status']}")
    )


def main() -> int:
    """See the module docstring. Exit status 1 where a network neither passed nor is only rounded otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="networks to take, patterns between commas")
    parser.add_argument("--json", type=Path, help="where results are kept; those that stand there are not repeated")
    parser.add_argument("--rivals", action="store_true")
    parser.add_argument("--backend", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="of timing; 0: none")
    parser.add_argument("--seconds", type=float, default=300, help="a network may take")
    parser.add_argument("--gigabytes", type=float, default=16, help="of address space")
    parser.add_argument("--verbose", action="store_true", help="show what networks' processes print, errors in full")
    asked = parser.parse_args()

    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["zoo_networks", "torchvision", "timm", "transformers.modeling_utils"])
    import zoo_networks

    job = "backend" if asked.backend else "compiled"
    names = zoo_networks.DYNAMIC if asked.backend else tuple(zoo_networks.NETWORKS)
    names = tuple(n for n in names if any(fnmatchcase(n, p) for p in asked.only.split(",")))
    kept: dict[str, Any] = {"schema": "superkernel.zoo/1"}
    if asked.json and asked.json.exists():
        kept = json.loads(asked.json.read_text())
    rows: dict[str, Row] = kept.setdefault(job, {})
    rivals = ["torch", *(RIVALS if asked.rivals else {})]
    head = f"{'network':<44} "
    if asked.backend:
        print(f"{head}{'graphs':>6} {'kernels':>7} {'differ':>9} seconds of each call {'peak MB':>20}")
    else:
        print(
            f"{head}{'M par.':>6} {'subops':>6} {'differ':>9} {'export':>6} {'compile':>7} {'MB':>7} {'ms':>8} "
            + "".join(f"{r:>11}" for r in rivals)
        )
    for name in names:
        if name not in rows:
            rows[name] = measure(context, name, job, asked)
            if asked.json:
                asked.json.write_text(json.dumps(kept, indent=1))
        print(backend_text(name, rows[name]) if asked.backend else text(name, rows[name], rivals), flush=True)
    rows = {name: rows[name] for name in names}
    print(summary(rows, rivals))
    return 0 if all(r["status"].startswith((PASSED, "rounded")) for r in rows.values()) else 1


def summary(rows: Mapping[str, Row], rivals: Sequence[str]) -> str:
    """What the table comes to."""
    passed = [r for r in rows.values() if r["status"] == PASSED]
    wrong, rounded = (sum(r["status"].startswith(s) for r in rows.values()) for s in ("wrong", "rounded"))
    seconds = sum(r["whole_s"] for r in rows.values())
    lines = [f"{len(passed)} of {len(rows)} pass, {rounded} rounded otherwise, {wrong} wrong; {seconds:.0f} s in all"]
    if passed:
        lines.append(f"largest difference {max(r['difference'] for r in passed):.1e}")
        lines.append(f"the largest process held {max(r['peak_mb'] for r in passed):.0f} MB")
    for field, unit in (("compile_s", "s to compile"), ("added_mb", "MB more than torch held")):
        found = [r[field] for r in passed if field in r]
        if found:
            lines.append(f"{statistics.median(found):.1f} {unit} in the median, {max(found):.1f} at most")
    for rival in rivals:
        pairs = [r["ms"] for r in passed if rival in r.get("ms", {})]
        ratios = [ms[rival] / ms["superkernel"] for ms in pairs]
        if ratios:
            times, faster = statistics.geometric_mean(ratios), sum(x < 1 for x in ratios)
            lines.append(f"{rival} takes {times:.2f} times as long over {len(ratios)}, and is faster on {faster}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
