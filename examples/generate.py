"""A language model token by token: a Llama-like and a GPT-2-like one, beside transformers.

    python examples/generate.py [--tokens N] [--prompt N] [--threads N] [--full] [--json]

Needs the packages torch and transformers. Shows: a folder with config.json and safetensors as one object for prompts
and single tokens, the same tokens as `generate` of transformers (greedy), and tokens per second. Weights are random:
nothing is downloaded. `--full` takes 12 blocks of 768 instead of 4 of 256.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import superkernel

try:
    import torch
    import transformers
except ImportError:
    sys.exit("torch or transformers is not installed. Run: pip install 'superkernel-compiler[torch]' transformers")

VOCABULARY, POSITIONS = 4000, 1024


def models(width: int, blocks: int) -> dict[str, Any]:
    """The two, in evaluation mode, with random weights."""
    torch.manual_seed(0)
    heads = width // 64
    no_words = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    llama = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=width * 8 // 3 // 64 * 64,
        num_hidden_layers=blocks,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 4),
        max_position_embeddings=POSITIONS,
        **no_words,
    )
    gpt2 = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=width, n_layer=blocks, n_head=heads, n_positions=POSITIONS, **no_words
    )
    return {
        "llama": transformers.LlamaForCausalLM(llama).eval(),
        "gpt2": transformers.GPT2LMHeadModel(gpt2).eval(),
    }


def theirs(model: Any, prompt: np.ndarray, count: int) -> tuple[list[int], float, float]:
    """Greedy tokens behind the prompt, seconds for the prompt with the first of them, seconds for each of the rest."""
    ids = torch.tensor(prompt)[None]

    def generate(length: int) -> tuple[list[int], float]:
        start = time.perf_counter()
        with torch.inference_mode():
            mask = torch.ones_like(ids)
            found = model.generate(ids, attention_mask=mask, max_new_tokens=length, do_sample=False)
        return found[0, len(prompt) :].tolist(), time.perf_counter() - start

    generate(2)
    first = generate(1)[1]
    tokens, seconds = generate(count)
    return tokens, first, (seconds - first) / (count - 1)


def ours(model: superkernel.CausalLM, prompt: np.ndarray, count: int) -> tuple[list[int], float, float]:
    """The same of ours."""
    list(model.generate(prompt, 2))  # compiles
    model.rewind()
    start = time.perf_counter()
    steps = model.generate(prompt, count)
    tokens = [next(steps)]
    first = time.perf_counter() - start
    tokens += steps
    return tokens, first, (time.perf_counter() - start - first) / (count - 1)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=64, help="tokens to generate, 2 or more (default 64)")
    parser.add_argument("--prompt", type=int, default=200, help="tokens of the prompt (default 200)")
    parser.add_argument("--threads", type=int, default=None, help="worker threads (default: all allowed CPUs)")
    parser.add_argument("--full", action="store_true", help="models of a size that is used")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    args = parser.parse_args(arguments)
    if not 2 <= args.tokens <= POSITIONS - args.prompt:
        parser.error(f"2 tokens or more, and with the prompt {POSITIONS} at most")
    prompt = np.random.default_rng(0).integers(0, VOCABULARY, args.prompt)
    results = {}
    for name, model in models(*((768, 12) if args.full else (256, 4))).items():
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            fused = superkernel.from_pretrained(folder, threads=args.threads)
            torch.set_num_threads(fused.kernel().threads)
            found, first, each = ours(fused, prompt, args.tokens)
            wanted, their_first, their_each = theirs(model, prompt, args.tokens)
        results[name] = {
            "same_tokens": found == wanted,
            "tokens_per_second": round(1 / each, 1),
            "transformers_tokens_per_second": round(1 / their_each, 1),
            "prompt_ms": round(first * 1e3, 1),
            "transformers_prompt_ms": round(their_first * 1e3, 1),
        }
    if args.json:
        print(json.dumps(results))
    else:
        for name, result in results.items():
            print(f"{name}: " + ", ".join(f"{what} {value}" for what, value in result.items()))
    return 0 if all(result["same_tokens"] for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
