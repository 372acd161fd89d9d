"""Language models of random weights: time per token and of a prompt, ours beside other runtimes.

    python bench/generation.py [--model 60m] [--formats f32,bf16,q8_0,q4_0] [--runners ...] [--threads 2] [--json FILE]

Each runner has a process of its own and loads the same weights: the folder (f32, bf16), or a GGUF file in the format
(q8_0, q4_0; llama.cpp reads GGUF files for all). Two read them in their own way. The builder of ONNX Runtime GenAI
takes the folder in f32 and rounds it itself, in blocks of 32 too: its logits are those of other codes. OpenVINO GenAI
reads GGUF files with codes, f16 and no other floats; its pipeline fails to compile what it read (2026.4), so OpenVINO
runs that model without it. Runners take turns, a prompt and some tokens at a time, in an order
drawn anew each round, while the others sleep. Printed are medians over rounds with the least and the largest, ours
against each rival within rounds, and how many times as long a token takes as plain reads of as many bytes as it has to
read: weights, and keys and values of the context. Logits of all runners behind the prompt are compared first.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from decoders import CONTEXT, SIZES, Sizes, tensors, write_folder, write_gguf
from machine import read_gb_per_s
from numpy.typing import NDArray

Array = NDArray[Any]
OURS = "superkernel"
WEIGHT_BYTES = {"f32": 4.0, "bf16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
"""Of a weight; blocks of 32 codes have a scale in f16."""
CACHE_BYTES = {"f32": 4, "bf16": 2, "q8_0": 2, "q4_0": 2}
"""Of an element of the keys and values, in ours and in llama.cpp but for bf16, which it keeps as f16."""
FORMATS = tuple(WEIGHT_BYTES)
ROUNDS = 5


@dataclass
class Session:
    """A loaded model: `prompt` forgets everything, appends tokens and gives the logits behind them, `step` appends one
    token and gives logits."""

    prompt: Callable[[Array], Array]
    step: Callable[[int], Array]


def load_ours(source: Path, kind: str, threads: int, *, precision: str = "auto") -> Session:
    import superkernel

    options = {"precision": precision}
    model = superkernel.from_pretrained(source, threads=threads, context=CONTEXT, options=options)
    model.prepare()

    def prompt(tokens: Array) -> Array:
        model.rewind()
        return model(tokens)

    return Session(prompt, model)


def load_ours_f32(source: Path, kind: str, threads: int) -> Session:
    """What meets codes stays f32; by default it is rounded to 8 bits, as llama.cpp has it."""
    return load_ours(source, kind, threads, precision="f32")


def load_transformers(source: Path, kind: str, threads: int) -> Session:
    import torch
    import transformers

    torch.set_num_threads(threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype="auto").eval()
    cache: list[Any] = [None]

    def append(tokens: Array) -> Array:
        with torch.inference_mode():
            found = model(torch.as_tensor(tokens)[None], past_key_values=cache[0], use_cache=True, logits_to_keep=1)
        cache[0] = found.past_key_values
        return np.asarray(found.logits[0, -1].float().numpy())

    def prompt(tokens: Array) -> Array:
        cache[0] = None
        return append(tokens)

    return Session(prompt, lambda token: append(np.array([token])))


def load_llama_cpp(source: Path, kind: str, threads: int, *, flash: bool = False) -> Session:
    import ctypes

    import llama_cpp

    llama_cpp.llama_backend_init()
    silent = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p())
    of_model = llama_cpp.llama_model_default_params()
    if "amx_tile" in Path("/proc/cpuinfo").read_text():
        of_model.use_extra_bufts = False  # repacked buffers crash on such CPUs
    model = llama_cpp.llama_model_load_from_file(str(source).encode(), of_model)
    setup = llama_cpp.llama_context_default_params()
    setup.n_ctx, setup.n_batch, setup.n_threads, setup.n_threads_batch = CONTEXT, 512, threads, threads
    if hasattr(setup, "flash_attn_type"):
        setup.flash_attn_type = int(flash)
    else:
        setup.flash_attn = flash
    if kind == "f32":
        setup.type_k = setup.type_v = llama_cpp.GGML_TYPE_F32
    context = llama_cpp.llama_init_from_model(model, setup)
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))

    def append(tokens: Array) -> Array:
        given = (llama_cpp.llama_token * len(tokens))(*map(int, tokens))
        if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(given, len(tokens))):
            raise RuntimeError("llama_decode failed")
        logits = llama_cpp.llama_get_logits_ith(context, -1)
        return np.ctypeslib.as_array(logits, (vocabulary,)).copy()

    def prompt(tokens: Array) -> Array:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        return append(tokens)

    prompt.kept = (silent, model)  # type: ignore[attr-defined]  # they live as long as what calls them
    return Session(prompt, lambda token: append(np.array([token])))


def load_llama_cpp_flash(source: Path, kind: str, threads: int) -> Session:
    return load_llama_cpp(source, kind, threads, flash=True)


def load_onnxruntime_genai(source: Path, kind: str, threads: int) -> Session:
    """Its builder wants a tokenizer in the folder: words for the numbers."""
    import onnxruntime_genai as genai
    from tokenizers import Tokenizer, models

    precision = {"f32": "fp32", "bf16": "bf16", "q8_0": "int8", "q4_0": "int4"}[kind]
    kept = tempfile.TemporaryDirectory()
    given, built = (Path(kept.name) / name for name in ("given", "built"))
    given.mkdir()
    for file in source.iterdir():
        (given / file.name).symlink_to(file.resolve())
    words = {f"<{i}>": i for i in range(json.loads((source / "config.json").read_text())["vocab_size"])}
    Tokenizer(models.WordLevel(words, unk_token="<0>")).save(str(given / "tokenizer.json"))
    (given / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    command: list[Any] = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-e", "cpu", "-p", precision]
    command += ["-i", given, "-o", built, "-c", Path(kept.name) / "cache"]
    ran = subprocess.run(command, env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True)
    if ran.returncode:
        raise RuntimeError(ran.stderr[-2000:])
    settings = json.loads((built / "genai_config.json").read_text())
    settings["model"]["decoder"]["session_options"]["intra_op_num_threads"] = threads
    (built / "genai_config.json").write_text(json.dumps(settings))
    model = genai.Model(str(built))
    held: list[Any] = []

    def append(tokens: Array) -> Array:
        held[0].append_tokens(np.asarray(tokens, np.int32))
        return np.asarray(held[0].get_logits()).reshape(-1).astype(np.float32)

    def prompt(tokens: Array) -> Array:
        setup = genai.GeneratorParams(model)
        setup.set_search_options(max_length=CONTEXT, do_sample=False)
        held[:] = [genai.Generator(model, setup), kept]
        return append(tokens)

    return Session(prompt, lambda token: append(np.array([token])))


def load_openvino(source: Path, kind: str, threads: int) -> Session:
    """What OpenVINO GenAI makes of the file, which it keeps beside it."""
    import openvino
    import openvino_genai

    with suppress(RuntimeError):  # of its own pipeline, behind the conversion
        openvino_genai.LLMPipeline(str(source), "CPU", enable_save_ov_model=True)
    core, hints = openvino.Core(), {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    model = core.read_model(source.parent / "openvino_model.xml")
    request = core.compile_model(model, "CPU", {**hints, "INFERENCE_NUM_THREADS": str(threads)}).create_infer_request()
    appended = 0

    def append(tokens: Array) -> Array:
        nonlocal appended
        start, appended = appended, appended + len(tokens)
        request.infer(
            {
                "input_ids": np.asarray(tokens, np.int64)[None],
                "attention_mask": np.ones((1, appended), np.int64),
                "position_ids": np.arange(start, appended)[None],
                "beam_idx": np.zeros(1, np.int32),
            }
        )
        return np.array(request.get_tensor("logits").data[0, -1])

    def prompt(tokens: Array) -> Array:
        nonlocal appended
        request.reset_state()
        appended = 0
        return append(tokens)

    return Session(prompt, lambda token: append(np.array([token])))


@dataclass(frozen=True)
class Runner:
    """`load`: (file or folder, format, threads) -> session; `module`: what must be importable; `reads`: the form of
    weights, if not the format's own."""

    load: Callable[[Path, str, int], Session]
    module: str
    formats: tuple[str, ...] = FORMATS
    reads: str = ""

    def form(self, kind: str) -> tuple[str, str]:
        """What it reads for a format, "folder", "gguf" or "gguf with words", and the format therein."""
        if self.reads:
            return self.reads, "f32" if self.reads == "folder" else kind
        return "gguf" if kind.startswith("q") else "folder", kind


RUNNERS = {
    OURS: Runner(load_ours, "superkernel"),
    f"{OURS}-f32": Runner(load_ours_f32, "superkernel", ("q8_0", "q4_0")),
    "transformers": Runner(load_transformers, "transformers", ("f32", "bf16")),
    "llama.cpp": Runner(load_llama_cpp, "llama_cpp", reads="gguf"),
    "llama.cpp-flash": Runner(load_llama_cpp_flash, "llama_cpp", reads="gguf"),
    "onnxruntime-genai": Runner(load_onnxruntime_genai, "onnxruntime_genai", ("f32", "q8_0", "q4_0"), reads="folder"),
    "openvino": Runner(load_openvino, "openvino_genai", ("q8_0", "q4_0"), reads="gguf with words"),
}


# A runner's process ---------------------------------------------------------------------------------------------------


def serve(runner: str, source: Path, kind: str, threads: int) -> int:
    """Answers lines of JSON: {"prompt": N, "steps": M} -> seconds of the prompt and of each step; {"logits": N}."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print does not stand between answers
    start = time.perf_counter()
    session = RUNNERS[runner].load(source, kind, threads)
    print(json.dumps({"load_s": time.perf_counter() - start}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        tokens = np.random.default_rng(1).integers(0, asked["vocabulary"], asked["prompt"])
        clock = time.process_time if asked["cpu"] else time.perf_counter
        start = clock()
        logits = session.prompt(tokens)
        marks = [clock()]
        for _ in range(asked["steps"]):
            session.step(int(tokens[0]))
            marks.append(clock())
        answer: dict[str, Any] = {"prompt_s": marks[0] - start, "step_s": np.diff(marks).tolist()}
        if not asked["steps"]:
            answer["logits"] = logits.astype(float).tolist()
        print(json.dumps(answer), file=answers, flush=True)
    return 0


class Process:
    """A runner at work."""

    def __init__(self, runner: str, source: Path, kind: str, threads: int) -> None:
        self.runner = runner
        command = [sys.executable, __file__, "--serve", runner, str(source), kind, str(threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.load_s = self._answer()["load_s"]

    def ask(self, **what: int) -> dict[str, Any]:
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.runner} ended with status {self.process.wait()}")
        return dict(json.loads(line))

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


# Measuring ------------------------------------------------------------------------------------------------------------


def measure(
    kind: str,
    sizes: Sizes,
    folder: Path,
    runners: Sequence[str],
    threads: int,
    rounds: int,
    prompt: int,
    steps: int,
    cpu: bool,
) -> dict[str, Any]:
    """All runners on one format."""
    weights: dict[tuple[str, str], Path] = {}

    def source(form: str, own: str) -> Path:
        if (form, own) not in weights:
            path = folder / form.replace(" ", "-") / own
            path.parent.mkdir(exist_ok=True)
            if form == "folder":
                write_folder(path, sizes, own)
            else:
                path = write_gguf(path.with_suffix(".gguf"), sizes, own.upper(), words=form != "gguf")
            weights[form, own] = path
        return weights[form, own]

    results: dict[str, Any] = {}
    processes: list[Process] = []
    for name in runners:
        if kind not in RUNNERS[name].formats:
            results[name] = {"absent": f"it does not run {kind}"}
            continue
        if find_spec(RUNNERS[name].module) is None:
            results[name] = {"absent": f"{RUNNERS[name].module} is not installed"}
            continue
        try:
            processes.append(Process(name, source(*RUNNERS[name].form(kind)), kind, threads))
        except RuntimeError as error:
            results[name] = {"absent": str(error)}
    rng = np.random.default_rng(0)
    asked = {"prompt": prompt, "vocabulary": sizes.vocabulary, "cpu": cpu}
    logits = {p.runner: np.array(p.ask(**asked, steps=0)["logits"]) for p in processes}
    taken: dict[str, list[tuple[float, float]]] = {p.runner: [] for p in processes}
    nbytes = _bytes_per_token(kind, sizes, prompt + steps // 2)
    bounds = []
    for _ in range(rounds):
        bounds.append(nbytes / read_gb_per_s(nbytes, threads) * 1e-9)
        for index in rng.permutation(len(processes)):
            answer = processes[index].ask(**asked, steps=steps)
            taken[processes[index].runner].append((answer["prompt_s"], float(np.median(answer["step_s"]))))
    for process in processes:
        name, times = process.runner, np.array(taken[process.runner])
        reference = logits[OURS] if OURS in logits else logits[name]
        results[name] = {
            "load_s": round(process.load_s, 2),
            "logits_off": float(np.abs(logits[name] - reference).max() / np.abs(reference).max()),
            "prompt_tokens_per_s": _spread(prompt / times[:, 0]),
            "tokens_per_s": _spread(1 / times[:, 1]),
            "times_the_bound": _spread(times[:, 1] / bounds),
        }
        if OURS in taken and name != OURS:
            ours = np.array(taken[OURS])
            results[name]["ours_is_faster"] = {
                "prompt": _spread(times[:, 0] / ours[:, 0]),
                "token": _spread(times[:, 1] / ours[:, 1]),
            }
        process.close()
    for form in folder.iterdir():
        shutil.rmtree(form)
    return results


def _bytes_per_token(kind: str, sizes: Sizes, context: int) -> int:
    """What a step has to read: all matrices but the embedding, which only hands out a row, and the keys and values of
    `context` tokens."""
    matrices = [array.size for _, _, array in tensors(sizes) if array.ndim == 2]
    kept = 2 * context * sizes.blocks * sizes.kv_heads * sizes.head_size
    return round(sum(matrices[1:]) * WEIGHT_BYTES[kind]) + kept * CACHE_BYTES[kind]


def _spread(values: Array) -> list[float]:
    """Median, least, largest."""
    return [round(float(v), 3) for v in (np.median(values), values.min(), values.max())]


def main(arguments: Sequence[str] | None = None) -> int:
    if arguments is None and sys.argv[1:2] == ["--serve"]:
        runner, source, kind, threads = sys.argv[2:]
        return serve(runner, Path(source), kind, int(threads))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=SIZES, default="60m")
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--runners", default=",".join(RUNNERS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--prompt", type=int, default=512, help="tokens (default 512)")
    parser.add_argument("--steps", type=int, default=32, help="tokens behind it in each round (default 32)")
    parser.add_argument("--cpu", action="store_true", help="CPU time of one thread, for a machine that others use too")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(arguments)
    if args.cpu and args.threads != 1:
        parser.error("--cpu takes --threads 1: threads that wait for one another take CPU time as well")
    sizes, results = SIZES[args.model], {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in args.formats.split(","):
            runners = args.runners.split(",")
            results[kind] = found = measure(
                kind, sizes, Path(folder), runners, args.threads, args.rounds, args.prompt, args.steps, args.cpu
            )
            print(f"{args.model}, {kind}, {args.threads} threads: median, least and largest of {args.rounds} rounds")
            for name, row in found.items():
                print(f"  {name}: " + ", ".join(f"{what} {value}" for what, value in row.items()), flush=True)
    if args.json:
        args.json.write_text(json.dumps({"model": args.model, "threads": args.threads, "formats": results}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
