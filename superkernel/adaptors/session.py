"""`superkernel.InferenceSession`: an ONNX model as ONNX Runtime's Python code holds it.

Model: names, types and shapes as the model declares them; one kernel where all extents are known, else one for each
choice of shapes that was met, and of contents of inputs that decide shapes (axes, sizes), and of initialisers that
calls override. What only makes sense there (devices, binding to their memory) is not here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from math import prod
from os import PathLike
from threading import Lock
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from superkernel.adaptors.kept import Kept
from superkernel.api import compile as compile_graph
from superkernel.core.errors import InputError, UnsupportedError, Violation, raise_all
from superkernel.core.option import did_you_mean
from superkernel.core.options import Options
from superkernel.frontends.onnx import declared_values, own_model, without_values
from superkernel.runtime.inputs import shape_of

if TYPE_CHECKING:
    from superkernel.runtime.kernel import Kernel

DECIDING_MAX = 64
"""Elements of an input that may decide shapes: kernels for each contents of larger ones would hardly be used again."""
PROVIDER = "CPUExecutionProvider"


@dataclass(frozen=True)
class NodeArg:
    """An input or output: `type` as "tensor(float)", `shape` with names, or None, of extents that may change; empty
    where there is none, `has_shape` tells it from a scalar."""

    name: str
    type: str
    shape: list[int | str | None]
    has_shape: bool = True

    @property
    def is_sequence(self) -> bool:
        """Whether it is a list of arrays."""
        return self.type.startswith("seq(")

    @property
    def is_fixed(self) -> bool:
        """Whether all extents are known."""
        return self.has_shape and not self.is_sequence and all(isinstance(d, int) for d in self.shape)


@dataclass(frozen=True)
class ModelMetadata:
    """What a model says of itself."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


class InferenceSession:
    """An ONNX model to be run by names, as `onnxruntime.InferenceSession`.

    path_or_bytes: a path, the bytes of a model, or an onnx.ModelProto.
    sess_options: an object with `intra_op_num_threads` (0: the default), if any; nothing else of it is read.
    providers: if given, "CPUExecutionProvider" must be among them; of their options nothing is read.
    options: as of `superkernel.compile`.

    Compiles at once where the model declares all extents. Raises InputError, FileFormatError, UnsupportedError,
    MachineError."""

    def __init__(
        self,
        path_or_bytes: str | PathLike[str] | bytes | Any,
        sess_options: Any = None,
        providers: Sequence[Any] | str | None = None,
        provider_options: Sequence[Mapping[Any, Any]] | None = None,
        *,
        options: Options | Mapping[str, Any] | None = None,
    ) -> None:
        del provider_options  # CPUExecutionProvider has none that change results
        listed = [providers] if isinstance(providers, str) or not isinstance(providers, Iterable) else list(providers)
        names = [p[0] if isinstance(p, tuple) and p else p for p in listed if p is not None]
        if names and PROVIDER not in names:
            found = ", ".join(map(str, names))
            raise InputError("no provider that is here", location="providers", expected=PROVIDER, found=found)
        self._model = own_model(path_or_bytes)
        self._options = Options.of(options)
        self._threads = getattr(sess_options, "intra_op_num_threads", 0) or None
        declared = declared_values(self._model)
        self._inputs, self._outputs, self._preset = ([NodeArg(*value) for value in values] for values in declared)
        self._deciding: list[str] = []  # inputs whose contents must be known to compile
        self._kernels: Kept[Kernel] = Kept()
        self._lock = Lock()  # of the deciding inputs
        if all(value.is_fixed for value in self._inputs):
            try:
                self._kernel((), {}, {})
            except UnsupportedError as error:
                sizes = {value.name: prod(d for d in value.shape if isinstance(d, int)) for value in self._inputs}
                self._decide(error, {}, sizes)

    def get_inputs(self) -> list[NodeArg]:
        """The inputs that `run` takes, in the model's order."""
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        """The outputs, in the model's order."""
        return list(self._outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """The inputs that have a value where `run` gives none."""
        return list(self._preset)

    def get_modelmeta(self) -> ModelMetadata:
        """What the model says of itself."""
        model, own = self._model, {entry.key: entry.value for entry in self._model.metadata_props}
        says = (model.domain, model.doc_string, model.graph.doc_string, model.model_version)
        return ModelMetadata(model.producer_name, model.graph.name, *says, own)

    def get_providers(self) -> list[str]:
        """What it runs on."""
        return [PROVIDER]

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[NDArray[Any] | list[NDArray[Any]]]:
        """The outputs of these names (None or empty: all), as NumPy arrays; of a sequence, a list of its elements.
        Raises InputError on names that there are not, on inputs that are missing and on types and shapes that are not
        the model's."""
        del run_options  # of logging and of stopping
        are_names = output_names is None or (isinstance(output_names, Iterable) and not isinstance(output_names, str))
        if not isinstance(input_feed, Mapping) or not are_names:
            found = f"{type(output_names).__name__}, {type(input_feed).__name__}"
            raise InputError("not what a session runs", expected="a list of names, {name: array}", found=found)
        known = [value.name for value in self._outputs]
        wanted = [*(() if output_names is None else output_names)] or known
        needs = [value.name for value in self._inputs]
        takes = [*needs, *(value.name for value in self._preset)]
        wrong = [Violation(f"no output {n!r}", "", ", ".join(known), hint=did_you_mean([n], known))
                 for n in wanted if n not in known]  # fmt: skip
        wrong += [Violation(f"no input {n!r}", "", ", ".join(takes), hint=did_you_mean([n], takes))
                  for n in input_feed if n not in takes]  # fmt: skip
        wrong += [Violation("missing", f"input {n!r}") for n in needs if n not in input_feed]
        raise_all(InputError, wrong)
        outputs = self._run(input_feed)
        return [outputs[name] if name in outputs else _elements(outputs, name) for name in wanted]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled and copied as the model that it was made of; kernels are compiled again, or come from the cache."""
        return _again, (self._model, self._threads, self._options)

    def _run(self, feed: Mapping[str, Any]) -> Mapping[str, NDArray[Any]]:
        overridden = [v for v in self._preset if v.name in feed]
        replaced = tuple(v.name for v in overridden)
        while True:
            deciding = [name for name in self._deciding if name in feed]
            asked = [v for v in (*self._inputs, *overridden) if not v.is_fixed or v.name in deciding]
            known = {v.name: _shape(v, feed[v.name]) for v in asked}
            raise_all(InputError, [_misfit(v, known[v.name]) for v in asked if not _fits(v, known[v.name])])
            shapes = {v.name: known[v.name] for v in asked if not v.is_fixed}
            decided = {name: np.asarray(feed[name]) for name in deciding}
            key = *replaced, *shapes.values(), *((a.dtype, a.shape, a.tobytes()) for a in decided.values())
            try:
                kernel = self._kernel(key, shapes, decided, replaced)
            except UnsupportedError as error:
                named = [(name, feed[name]) for name in _named(error) if name in feed]
                sizes = {name: prod(shape_of(value, "an array", f"input {name!r}")) for name, value in named}
                self._decide(error, decided, sizes)
            else:
                lists = {v.name for v in asked if v.is_sequence}
                given = {name: value for name, value in feed.items() if name not in decided and name not in lists}
                given |= {f"{name}.{i}": element for name in lists for i, element in enumerate(feed[name])}
                return kernel.run(given).outputs

    def _kernel(
        self,
        key: tuple[object, ...],
        shapes: Mapping[str, Any],
        decided: Mapping[str, Any],
        replaced: Collection[str] = (),
    ) -> Kernel:
        def make() -> Kernel:
            model = without_values(self._model, replaced) if replaced else self._model
            return compile_graph(model, threads=self._threads, options=self._options, shapes=shapes, constants=decided)

        return self._kernels.get(key, make)

    def _decide(self, error: UnsupportedError, decided: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
        """Has the inputs that an error names as deciding shapes be known from now on. Raises it where there are none,
        or they are too large, or were known already."""
        new = [name for name in _named(error) if name not in decided]
        if not new or any(sizes.get(name, DECIDING_MAX + 1) > DECIDING_MAX for name in _named(error)):
            raise error
        with self._lock:
            self._deciding = list(dict.fromkeys([*self._deciding, *new]))


def _again(model: Any, threads: int | None, options: Options) -> InferenceSession:
    return InferenceSession(model, SimpleNamespace(intra_op_num_threads=threads), options=options)


def _named(error: UnsupportedError) -> Sequence[str]:
    """The inputs that a StaticValueError names, whose module needs the onnx package."""
    names: Sequence[str] = getattr(error, "inputs", ())
    return names


def _elements(outputs: Mapping[str, NDArray[Any]], name: str) -> list[NDArray[Any]]:
    """Those of an output that is a sequence."""
    names = takewhile(outputs.__contains__, (f"{name}.{i}" for i in count()))
    return [outputs[element] for element in names]


def _shape(value: NodeArg, given: Any) -> tuple[Any, ...]:
    """That of an array, those of a sequence's elements."""
    where = f"input {value.name!r}"
    if not value.is_sequence:
        return shape_of(given, value.type, where)
    if not isinstance(given, (list, tuple)):
        raise InputError("not a list of arrays", location=where, expected=value.type, found=type(given).__name__)
    return tuple(shape_of(element, value.type, f"{where}, element {i}") for i, element in enumerate(given))


def _fits(value: NodeArg, shape: tuple[Any, ...]) -> bool:
    if not value.has_shape or value.is_sequence:
        return True
    if len(shape) != len(value.shape):
        return False
    return all(not isinstance(d, int) or d == n for d, n in zip(value.shape, shape, strict=True))


def _misfit(value: NodeArg, shape: tuple[Any, ...]) -> Violation:
    return Violation("wrong shape", f"input {value.name!r}", str(value.shape), str(list(shape)))
