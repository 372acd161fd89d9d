"""`CausalLM`: a language model with its cache, one object for prompts and single tokens.

Model: the context holds `position` tokens; keys and values of these lie in the caches, which are states that all
kernels share. Tokens are appended in *chunks*, each one launch: a kernel per size of chunk, made when it is first
needed. A chunk that has room for more than there is to append is filled up with tokens that do not count: what they
leave in the caches lies behind `position`, where nothing is read before it is written again. Going back is only a
smaller position.

Sampling is the caller's: what comes out are logits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import index
from threading import RLock
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from superkernel.core.dtypes import DType
from superkernel.core.errors import InputError, UnsupportedError
from superkernel.frontends.dynamic import DynamicSource
from superkernel.frontends.dynamic_axes import Axis, DynamicInput
from superkernel.frontends.pretrained.decoder import Decoder
from superkernel.frontends.pretrained.graph import POSITION, ROWS, TOKENS, decoder_graph
from superkernel.ir.graph import Graph
from superkernel.runtime.dynamic import DynamicKernel, Make
from superkernel.runtime.kernel import Kernel

Array = NDArray[Any]
Tokens: TypeAlias = Sequence[int] | Array


class CausalLM:
    """See the module docstring. Made by `superkernel.from_pretrained`.

    Call: `model(tokens)` appends the tokens (one or more whole numbers below `vocabulary`) and returns the logits of
    the token that follows them, f32 [vocabulary]. Raises InputError on tokens that are none and where the context is
    full. Calls of several threads take turns."""

    def __init__(
        self, decoder: Decoder, context: int, chunks: Sequence[int], make: Make, *, dtype: DType, cache_dtype: DType
    ) -> None:
        self._decoder, self._context = decoder, context
        self._chunks = tuple(sorted({1, *(size for size in chunks if size <= context)}))

        def graph(sizes: Mapping[str, int]) -> Graph:
            return decoder_graph(decoder, context=context, dtype=dtype, cache_dtype=cache_dtype, **sizes)

        self._kernels = DynamicKernel(_source(graph, self._chunks[-1]), make)
        self._kernels.kernels_max = 2 * len(self._chunks)
        self._position = 0
        self._lock = RLock()
        self._dtype, self._cache_dtype = dtype, cache_dtype

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return self._decoder.vocabulary

    @property
    def context(self) -> int:
        """How many tokens there is room for."""
        return self._context

    @property
    def position(self) -> int:
        """How many tokens the context holds."""
        return self._position

    @property
    def dtype(self) -> DType:
        """What is computed in."""
        return self._dtype

    @property
    def cache_dtype(self) -> DType:
        """What the caches hold, and attention is computed in."""
        return self._cache_dtype

    @property
    def chunks(self) -> tuple[int, ...]:
        """Numbers of tokens that one launch appends."""
        return self._chunks

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights of all products, as they are stored."""
        return self._decoder.nbytes

    def kernel(self, tokens: int = 1, rows: int = 1) -> Kernel:
        """The kernel that appends a chunk of `tokens` and gives logits of `rows` of them: to report, explain, verify.
        Compiled where there is none. Raises InputError on what is no chunk."""
        if tokens not in self._chunks or rows not in (1, tokens):
            expected = f"tokens in {', '.join(map(str, self._chunks))}; rows 1 or as many"
            raise InputError("no such chunk", expected=expected, found=f"{tokens} tokens, {rows} rows")
        return self._kernels.at(tokens=tokens, rows=rows)

    def prepare(self) -> None:
        """Compile the kernels of all chunks now, so that no later call has to."""
        for size in self._chunks:
            self.kernel(size)

    def __call__(self, tokens: Tokens | int) -> Array:
        logits: Array = self._append(self._checked(tokens), every=False)[-1]
        return logits

    def score(self, tokens: Tokens | int) -> Array:
        """Append the tokens and return the logits behind each of them, f32 [tokens, vocabulary]: to check a draft of
        several tokens in one go (`rewind` takes back what was not accepted), or to measure a text."""
        return self._append(self._checked(tokens), every=True)

    def rewind(self, position: int = 0) -> None:
        """Forget all tokens from `position` on. Raises InputError where the context holds fewer."""
        with self._lock:
            if not isinstance(position, (int, np.integer)) or not 0 <= position <= self._position:
                raise InputError("not a position", expected=f"0 to {self._position}", found=repr(position))
            self._position = int(position)

    def generate(
        self,
        tokens: Tokens | int,
        count: int | None = None,
        *,
        choose: Callable[[Array], int] | None = None,
        stop: Collection[int] = (),
    ) -> Iterator[int]:
        """Append `tokens`, then yield one token after another, each appended when the next is asked for: `count` of
        them, or until the context is full; a token of `stop` is the last. `choose`: logits [vocabulary] -> token; the
        most likely one unless it is given."""
        given = self._checked(tokens)
        if count is not None and (isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 0):
            raise InputError("not a number of tokens", location="count", expected="0 or more", found=repr(count))
        if not isinstance(stop, Collection):
            raise InputError("not tokens", location="stop", expected="a collection of tokens", found=repr(stop))
        pick = choose or _most_likely
        left = self._context - self._position - len(given) + 1 if count is None else count
        logits = self._append(given, every=False)[-1]
        for number in range(left):
            token = self._token(pick(logits))
            yield token
            if token in stop or number == left - 1:
                return
            logits = self(token)

    def __reduce__(self) -> NoReturn:
        what, hint = (
            "a language model cannot be copied or pickled",
            "from_pretrained makes another one, with its own cache",
        )
        raise UnsupportedError(what, location=f"model {self._decoder.name!r}", hint=hint)

    def __repr__(self) -> str:
        name, of = self._decoder.name, f"{self._position} of {self._context} tokens"
        return f"<superkernel.CausalLM {name!r}: {len(self._decoder.blocks)} blocks of {self._decoder.width}, {of}>"

    def _checked(self, tokens: Tokens | int) -> Array:
        try:
            found = np.atleast_1d(np.asarray(tokens))
        except Exception as error:  # a foreign object's own code, or lists of several lengths
            expected, said = "one or more whole numbers", f"{type(tokens).__name__}: {error}"
            raise InputError("not tokens", expected=expected, found=said) from error
        if found.ndim != 1 or not found.size or found.dtype.kind not in "iu":
            expected = "one or more whole numbers"
            raise InputError("not tokens", expected=expected, found=f"{found.dtype}{list(found.shape)}")
        if found.min() < 0 or found.max() >= self.vocabulary:
            outside = found[(found < 0) | (found >= self.vocabulary)]
            expected = f"0 to {self.vocabulary - 1}"
            raise InputError("not in the vocabulary", location="tokens", expected=expected, found=str(outside[:5]))
        return found.astype(np.int64)

    def _token(self, chosen: Any) -> int:
        """What `choose` has chosen. Raises InputError where that is no token."""
        try:
            token = index(chosen)
        except TypeError as error:
            raise InputError("not a token", location="choose", expected="a whole number", found=repr(chosen)) from error
        if not 0 <= token < self.vocabulary:
            expected = f"0 to {self.vocabulary - 1}"
            raise InputError("not in the vocabulary", location="choose", expected=expected, found=str(token))
        return token

    def _append(self, tokens: Array, *, every: bool) -> Array:
        with self._lock:
            if len(tokens) > self._context - self._position:
                raise InputError(
                    "the context is full",
                    expected=f"{self._context - self._position} tokens at most",
                    found=str(len(tokens)),
                    hint="a larger context=, or rewind",
                )
            before, logits = self._position, []
            try:
                while len(tokens):
                    size = self._size(len(tokens))
                    given, tokens = tokens[:size], tokens[size:]
                    logits.append(self._launch(given, size, every))
            except BaseException:
                self._position = before  # all of them or none, also where Ctrl-C comes between two chunks
                raise
            return np.concatenate(logits)

    def _size(self, left: int) -> int:
        """Of the next chunk: the largest that is full, or one that is at least half full and fits."""
        room = self._context - self._position
        full = max(size for size in self._chunks if size <= left)
        ample = [size for size in self._chunks if left < size <= min(2 * left, room)]
        return min(ample) if ample and left > full else full

    def _launch(self, tokens: Array, size: int, every: bool) -> Array:
        count = len(tokens)
        if count < size:
            tokens = np.concatenate([tokens, np.zeros(size - count, np.int64)])
        rows = np.arange(size) if every else np.array([count - 1])
        logits = self.kernel(size, len(rows))(tokens, np.array([self._position]), rows)
        self._position += count
        return np.asarray(logits[:count] if every else logits)


def _source(graph: Callable[[Mapping[str, int]], Graph], largest: int) -> DynamicSource:
    sized = {name: DynamicInput(DType.I64, (Axis(0, {name: 1}),)) for name in (TOKENS, ROWS)}
    inputs = {TOKENS: sized[TOKENS], POSITION: DynamicInput(DType.I64, (Axis(1, {}),)), ROWS: sized[ROWS]}
    ranges = {TOKENS: (1, largest), ROWS: (1, largest)}
    return DynamicSource(ranges, inputs, graph)


def _most_likely(logits: Array) -> int:
    return int(np.argmax(logits))
