"""What all models of the tests compute, bit for bit, and what code they become: taken before a change and after it.

    python bench/digests.py --out before.json [--only PATTERN ...] [--way PATTERN ...] [--cpu-seconds N]
    python bench/digests.py --compare before.json after.json [--ignore FIELD ...]

A case is a model on a way: `host TIER PRECISION THREADS`, or `PRESET PRECISION` on the simulated accelerator. Fields:

    graph      of the model itself: where it differs, all else may
    outputs    of the bytes of outputs and states (two runs where there are states), from seeded inputs
    cycles     simulated (accelerator)
    code       of the LLVM IR, kernels by family without their hashes, in an order of its own
    constants  of what kernels' constants are packed into (host)
    plan       of the plan's text
    error      in place of all these: what was raised

A tier that this machine lacks is compiled as if it had it, and not run: its cases have no outputs. The other fields
depend on the machine too (features, sizes of caches): compare files of one machine. The script asks for nothing that
is not public, but for the packed constants, and so runs on other versions of the package: models are those of the tree
that `superkernel` is imported from. Each tier runs in a process of its own; a case that takes longer than
`--cpu-seconds` is an error.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import hashlib
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

TIERS = ("plain", "avx2", "avx512")
AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd", "avx512vnni", "avx512bf16")
RANDOM_GRAPHS = 40
LIGHT_HOST = ("shufflenet", "squeezenet", "resnet50", "inception_v1", "densenet121")
LIGHT_A3 = ("shufflenet", "squeezenet")
Make = Callable[[], Any]
Way = tuple[str, dict[str, Any]]  # name, arguments of superkernel.compile


def models() -> dict[str, Make]:
    """All models by name, from the tests of the tree in force."""
    import superkernel

    sys.path.insert(0, str(Path(superkernel.__file__).resolve().parent.parent / "tests"))
    import models as plain
    import models_aicore as images
    from random_models import random_graph

    found: dict[str, Make] = {
        f.__name__: f
        for f in (
            plain.mlp, plain.transformer, plain.decode_step, plain.moe_layer, plain.ragged_attention,
            images.residual_chain, images.branching, images.inception,
        )
    }  # fmt: skip
    found["mlp_wide"] = lambda: plain.mlp((256, 512, 64), batch=9)
    found["encoder"] = lambda: plain.transformer(layers=1, tokens=128, width=384, heads=12)
    found["decode"] = lambda: plain.decode_step(layers=2, width=512, heads=8, kv_heads=8, inner=1408, positions=128)
    for seed in range(RANDOM_GRAPHS):
        found[f"random{seed:02}"] = lambda seed=seed: random_graph(random.Random(seed))  # type: ignore[misc]
    try:
        import onnx  # noqa: F401
    except ImportError:
        return found
    from superkernel.frontends import load_graph

    for name in LIGHT_HOST:
        found[f"light_{name}"] = lambda name=name: load_graph(plain.light_model(name, gain=0.75))  # type: ignore[misc]
    return found


def ways(tier: str, best: str) -> list[Way]:
    """The ways of a tier; those of the accelerator go with the machine's best tier."""
    precisions = ("f32",) if tier == "plain" else ("f32", "tf32-like", "bf16", "int8")
    found: list[Way] = [
        (f"host {tier} {precision} 2", {"threads": 2, "options": {"precision": precision}}) for precision in precisions
    ]
    if tier != best:
        return found
    found.append((f"host {tier} f32 1", {"threads": 1}))
    found.append(("mini f16", {"target": "mini"}))
    found.append(("mini f32", {"target": "mini", "options": {"precision": "f32"}}))
    found.append(("a3 f16", {"target": "a3"}))
    return found


def wanted(model: str, way: str) -> bool:
    """Whether a case is cheap enough: large models are not simulated, and go one way per tier on the host."""
    if not model.startswith("light_"):
        return True
    if way.startswith("host"):
        return way.endswith(" 2") and "tf32" not in way
    return way == "a3 f16" and model.removeprefix("light_") in LIGHT_A3


def chosen(way: str, arguments: argparse.Namespace) -> bool:
    """Whether the command line asks for a way."""
    return any(fnmatch.fnmatch(way, pattern) for pattern in arguments.way)


def digest(parts: Iterable[bytes]) -> str:
    """One short hash of many byte strings."""
    made = hashlib.sha256()
    for part in parts:
        made.update(len(part).to_bytes(8, "little"))
        made.update(part)
    return made.hexdigest()[:16]


def of_arrays(arrays: Mapping[str, Any]) -> Iterator[bytes]:
    """Names, types and bytes."""
    for name, array in sorted(arrays.items()):
        yield f"{name} {array.dtype} {array.shape}".encode()
        yield np.ascontiguousarray(array).tobytes()


def of_graph(graph: Any) -> str:
    """What is computed, and with which constants."""
    text = [*(f"{n}: {t}" for n, t in graph.inputs.items()), *map(str, graph.nodes), *graph.outputs]
    return digest([*(t.encode() for t in text), *of_arrays(graph.constants), *of_arrays(graph.states)])


def of_code(dumped: str) -> str:
    """The definitions in the dumped modules, whatever their order and their kernels' hashes, and however many modules
    have the functions that kernels call."""
    text = re.sub(r"\b(k_\w+?)_[0-9a-f]{16,20}\b", r"\1", dumped)
    lines = (line for line in text.splitlines() if not line.startswith((";", "---", "declare", "source_filename")))
    text = re.sub(r"^@.*$", r"\g<0>\n", "\n".join(lines), flags=re.MULTILINE)  # constants are no function's
    blocks = [block.strip() for block in re.split(r"\n\s*\n", text)]
    kernels = [block for block in blocks if re.match(r'(define \w+ )?@"?k_', block)]
    return digest(sorted(block.encode() for block in [*kernels, *set(blocks).difference(kernels)]))


def inputs_of(kernel: Any) -> dict[str, Any]:
    """Seeded arrays: standard normal floats, all else 0 or 1."""
    made = {}
    rng = np.random.default_rng(7)
    for name, kind in kernel.inputs.items():
        values = rng.standard_normal(kind.shape) if kind.dtype.is_float else rng.integers(0, 2, kind.shape)
        made[name] = np.ascontiguousarray(np.asarray(values).astype(kind.dtype.numpy)).reshape(kind.shape)
    return made


def packed_constants(kernel: Any) -> str | None:
    """The one thing that is not public: what was made of the constants; None where it is kept elsewhere."""
    found = getattr(getattr(getattr(kernel, "_compiled", None), "image", None), "constants", None)
    return digest([b"".join(found.image())]) if hasattr(found, "image") else None


def case(graph: Any, arguments: dict[str, Any], run: bool) -> dict[str, Any]:
    """All fields of one case."""
    import superkernel as sk

    options = {"fallback": "allow", "cache": False, **arguments.get("options", {})}
    dumped = io.StringIO()
    with contextlib.redirect_stderr(dumped):
        kernel = sk.compile(graph, **{**arguments, "options": options})
    found: dict[str, Any] = {"code": of_code(dumped.getvalue()), "plan": digest([str(kernel.plan).encode()])}
    if "target" not in arguments:
        found["constants"] = packed_constants(kernel)
    if run:
        results: list[bytes] = []
        for _ in range(2 if graph.states else 1):
            result = kernel.run(inputs_of(kernel))
            results += of_arrays(result.outputs)
        found["outputs"] = digest([*results, *of_arrays(kernel.states)])
        if "target" in arguments:
            found["cycles"] = result.report.cycles
    return found


class CaseTimeout(Exception):
    """A case took longer than allowed."""


def _stop(*_: object) -> None:
    raise CaseTimeout("too slow")


def one_tier(tier: str, best: str, run: bool, arguments: argparse.Namespace) -> dict[str, Any]:
    """All cases of a tier by "model / way"."""
    os.environ["SK_DUMP"] = "ir"
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGPROF, _stop)
    rows: dict[str, Any] = {}
    for model, make in models().items():
        kept = [way for way in ways(tier, best) if wanted(model, way[0]) and chosen(way[0], arguments)]
        if not kept or not any(fnmatch.fnmatch(model, p) for p in arguments.only):
            continue
        graph = make()
        start = time.process_time()
        for name, how in kept:
            try:
                signal.setitimer(signal.ITIMER_PROF, arguments.cpu_seconds)
                rows[f"{model} / {name}"] = {"graph": of_graph(graph), **case(graph, how, run)}
            except Exception as error:
                rows[f"{model} / {name}"] = {"error": f"{type(error).__name__}: {error}"[:400]}
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
        print(f"{tier} {model}: {time.process_time() - start:.1f} s", file=sys.stderr, flush=True)
    return rows


def pretend_avx512() -> None:
    """LLVM says that the machine has all of the tier: code can be made for it, not run."""
    import llvmlite.binding as llvm

    real = llvm.get_host_cpu_features()
    llvm.get_host_cpu_features = lambda: {**real, **dict.fromkeys(AVX512, True)}


def is_lacking(tier: str) -> bool:
    """Whether this machine cannot run a tier."""
    code = "import superkernel as sk; b = sk.GraphBuilder('t'); b.output(b.relu(b.input('x', (4,)))); "
    code += "sk.compile(b.graph(), options={'cache': False})"
    made = subprocess.run([sys.executable, "-c", code], env={**os.environ, "SK_CPU": tier}, capture_output=True)
    return made.returncode != 0


def child(arguments: argparse.Namespace) -> None:
    """One tier's rows to standard output."""
    if not arguments.run:
        pretend_avx512()
    rows = one_tier(arguments.child, arguments.best, arguments.run, arguments)
    json.dump(rows, sys.stdout)


def collect(arguments: argparse.Namespace) -> dict[str, Any]:
    """All rows, each tier in a process of its own."""
    runs = {tier: not is_lacking(tier) for tier in TIERS}
    best = max((t for t in TIERS if runs[t]), key=TIERS.index)
    rows: dict[str, Any] = {}
    for tier in TIERS:
        if not runs[tier] and tier != "avx512":
            continue
        if not any(chosen(way, arguments) for way, _ in ways(tier, best)):
            continue
        given = [f"--{name}={value}" for name in ("only", "way") for value in getattr(arguments, name)]
        command = [sys.executable, __file__, *given, f"--cpu-seconds={arguments.cpu_seconds}"]
        command += [f"--child={tier}", f"--best={best}", *(["--run"] if runs[tier] else [])]
        made = subprocess.run(command, env={**os.environ, "SK_CPU": tier}, stdout=subprocess.PIPE, check=True)
        rows |= json.loads(made.stdout)
    return rows


def differences(before: Mapping[str, Any], after: Mapping[str, Any], ignore: Sequence[str]) -> list[str]:
    """What differs, one line per case and field; a case that only one side has is a difference."""
    lines = [f"{key}: only before" for key in sorted(before.keys() - after.keys())]
    lines += [f"{key}: only after" for key in sorted(after.keys() - before.keys())]
    for key in sorted(before.keys() & after.keys()):
        a, b = before[key], after[key]
        for field in sorted((a.keys() | b.keys()) - set(ignore)):
            if a.get(field) != b.get(field):
                lines.append(f"{key}: {field}: {a.get(field)} -> {b.get(field)}")
    return lines


def compare(paths: Sequence[str], ignore: Sequence[str]) -> int:
    """Print what differs between two files; 1 where anything does."""
    before, after = (json.loads(Path(path).read_text()) for path in paths)
    lines = differences(before, after, ignore)
    print("\n".join(lines))
    count = Counter(line.split(": ")[1] for line in lines)
    total = f"{len(before.keys() & after.keys())} cases compared, {len(lines)} differences"
    print(f"{total}: {dict(count)}" if lines else total)
    return bool(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="where to write the digests (default: standard output)")
    parser.add_argument("--only", action="append", help="models whose names match (fnmatch)")
    parser.add_argument("--way", action="append", help="ways whose names match, e.g. 'host avx2*'")
    parser.add_argument("--cpu-seconds", type=float, default=120.0, help="of this process per case (default 120)")
    parser.add_argument("--compare", nargs=2, metavar=("BEFORE", "AFTER"))
    parser.add_argument("--ignore", action="append", default=[], metavar="FIELD", help="do not compare this field")
    for hidden in ("--child", "--best"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.only, arguments.way = arguments.only or ["*"], arguments.way or ["*"]
    if arguments.compare:
        return compare(arguments.compare, arguments.ignore)
    if arguments.child:
        child(arguments)
        return 0
    text = json.dumps(collect(arguments), indent=1, sort_keys=True) + "\n"
    if arguments.out:
        Path(arguments.out).write_text(text)
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
