"""Quantised models from f32 ones: ranges of values are found on data, pairs of quantise and dequantise inserted by
onnxruntime's own quantiser, and the result is held against the model as it was, layer by layer and in its outputs.

Model: activations are codes of 8 or 16 bits with a zero point and a scale per tensor, weights i8 without zero points
and with a scale per channel or tensor, biases i32. What such a model computes here is in docs/numerics.md.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.api import compile as compile_graph
from superkernel.core.counted import counted
from superkernel.core.errors import InputError, MachineError, UnsupportedError, Violation, raise_all
from superkernel.core.files import replacing
from superkernel.frontends.onnx import read_model

METHODS = {"minmax": "MinMax", "percentile": "Percentile", "entropy": "Entropy"}
"""How the range of a tensor follows from its values: all of them; without outliers; by the least lost information."""
_OPSET_LEAST, _IR_LEAST = 13, 7  # of ONNX 1.8: scales per channel; inputs that are not constants as well
ACTIVATIONS = {"u8": "QUInt8", "i8": "QInt8", "u16": "QUInt16", "i16": "QInt16"}

Array = NDArray[Any]
Sample = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Layer:
    """How well a tensor of the quantised model agrees with the same of the f32 model: ratio of signal to difference in
    decibels, 20 log10(|x| / |x - q|), over all samples."""

    tensor: str
    decibels: float


@dataclass(frozen=True, slots=True)
class OutputAgreement:
    """An output: the largest difference over the largest magnitude, and the share of rows of the last axis whose
    largest element is the same one."""

    name: str
    relative_difference: float
    same_largest: float


@dataclass(frozen=True, slots=True)
class Quantisation:
    """What `quantise` did."""

    output: str
    samples: int
    method: str
    per_channel: bool
    activations: str
    layers: tuple[Layer, ...]
    """In the model's order."""
    outputs: tuple[OutputAgreement, ...]
    computed_in: Mapping[str, int]
    """Sub-operators of the quantised model on this machine, by what they compute in ("bytes", "f32", ...)."""

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON has them."""
        return {"schema": "superkernel.quantisation/1", **asdict(self)}

    def __str__(self) -> str:
        scope = "per channel" if self.per_channel else "per tensor"
        lines = [
            f"{self.output}: activations {self.activations}, weights i8 {scope}, ranges by {self.method} over "
            f"{counted(self.samples, 'sample')}",
            "",
            "signal over difference from f32, dB",
            *(f"  {layer.decibels:6.1f}  {layer.tensor}" for layer in self.layers),
            "",
            "sub-operators computed in " + ", ".join(f"{form}: {count}" for form, count in self.computed_in.items()),
            "outputs: largest difference over largest magnitude; rows whose largest element is the same",
            *(f"  {o.relative_difference:.2e}  {o.same_largest:6.1%}  {o.name}" for o in self.outputs),
        ]
        return "\n".join(lines)


def quantise(
    model: str | Path,
    output: str | Path,
    data: Sequence[Sample],
    *,
    method: str = "minmax",
    per_channel: bool = True,
    activations: str = "u8",
    threads: int | None = None,
) -> Quantisation:
    """Writes the ONNX model in `model`, quantised, to `output`.

    data: samples of the model's inputs by name, such as the model will meet; all of them find ranges and are compared.
    method: one of `METHODS`. activations: one of `ACTIVATIONS`. threads: of the comparison's kernels.

    Raises InputError (data that are not the model's, no such method), FileFormatError, UnsupportedError (not a model
    that onnxruntime can quantise), MachineError (onnxruntime is not installed, a file cannot be written)."""
    proto = read_model(model)
    samples = _checked(proto, data)
    if method not in METHODS or activations not in ACTIVATIONS:
        expected = f"{' | '.join(METHODS)}, {' | '.join(ACTIVATIONS)}"
        raise InputError("no such quantisation", expected=expected, found=f"{method}, {activations}")
    tools = _tools()
    with tempfile.TemporaryDirectory(prefix="superkernel-") as folder, _quiet():
        prepared, written = Path(folder, "prepared.onnx"), Path(folder, "quantised.onnx")
        try:
            current = _current(proto, Path(model), Path(folder))
            tools.shape_inference.quant_pre_process(str(current), str(prepared), skip_symbolic_shape=True)
            tools.quantize_static(
                str(prepared),
                str(written),
                _reader(tools, samples),
                quant_format=tools.QuantFormat.QDQ,
                per_channel=per_channel,
                activation_type=getattr(tools.QuantType, ACTIVATIONS[activations]),
                weight_type=tools.QuantType.QInt8,
                calibrate_method=getattr(tools.CalibrationMethod, METHODS[method]),
            )
            layers = _layers(tools, prepared, written, samples, Path(folder))
        except OSError as error:
            hint = "free space there, or name another folder in TMPDIR"
            raise MachineError(
                "the quantiser's temporary files cannot be written",
                location=f"folder {folder!r}",
                found=str(error),
                hint=hint,
            ) from error
        except Exception as error:  # the quantiser raises whatever its steps meet
            where, found = f"file {str(model)!r}", f"{type(error).__name__}: {error}"[:300]
            raise UnsupportedError("onnxruntime cannot quantise the model", location=where, found=found) from error
        outputs, computed_in = _compared(model, written, samples, threads)
        with replacing(Path(output), "the quantised model") as file:
            file.write(written.read_bytes())
    return Quantisation(str(output), len(samples), method, per_channel, activations, layers, outputs, computed_in)


def stacked_samples(model: str | Path, arrays: Sample) -> list[Sample]:
    """The samples of one file's arrays: one of the inputs' own ranks, or as many as a further first axis has. Raises
    InputError where arrays disagree on their number."""
    ranks = {i.name: len(i.type.tensor_type.shape.dim) for i in read_model(model).graph.input}
    stacked = {name: a for name, a in arrays.items() if a.ndim == ranks.get(name, a.ndim) + 1}
    counts = {len(a) for a in stacked.values()}
    if not stacked:
        return [arrays]
    if len(counts) != 1 or stacked.keys() != arrays.keys():
        raise InputError("arrays of different numbers of samples", found=", ".join(map(str, sorted(counts))))
    return [{name: a[i] for name, a in stacked.items()} for i in range(counts.pop())]


def _tools() -> Any:
    try:
        import onnxruntime.quantization as tools
        from onnxruntime.quantization import shape_inference  # noqa: F401  # an attribute of `tools` from here on
    except ImportError as error:
        hint = "pip install 'superkernel-compiler[quantise]'"
        raise MachineError("onnxruntime's quantiser is not installed", found=str(error), hint=hint) from error
    return tools


def _checked(proto: Any, data: Sequence[Sample]) -> list[Sample]:
    """The samples, each with exactly the model's inputs. Raises InputError with all problems."""
    constant = {t.name for t in proto.graph.initializer}
    names = [i.name for i in proto.graph.input if i.name not in constant]
    wrong = [] if data else [Violation("no data", hint="ranges are found on samples of the model's inputs")]
    for index, sample in enumerate(data):
        where = f"sample {index}"
        wrong += [Violation("missing", f"{where}, input {name!r}") for name in names if name not in sample]
        unknown, expected = [name for name in sample if name not in names], ", ".join(names)
        wrong += [Violation(f"the model has no input {name!r}", where, expected) for name in unknown]
    raise_all(InputError, wrong)
    return [dict(sample) for sample in data]


def _current(proto: Any, model: Path, folder: Path) -> Path:
    """The file of the model, or of the same in an opset that has scales per channel. Constants are inputs to the
    converter of old files (IR version 3), and no inputs behind it: the quantiser takes inputs for values."""
    import onnx

    opset = next((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), _OPSET_LEAST)
    if opset >= _OPSET_LEAST:
        return model
    old = onnx.ModelProto()
    old.CopyFrom(proto)
    named = {value.name for value in proto.graph.input}
    constants = [tensor for tensor in proto.graph.initializer if tensor.name not in named]
    old.graph.input.extend(onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in constants)
    converted = onnx.version_converter.convert_version(old, _OPSET_LEAST)
    constant = {tensor.name for tensor in converted.graph.initializer}
    inputs = [value for value in converted.graph.input if value.name not in constant]
    del converted.graph.input[:]
    converted.graph.input.extend(inputs)
    converted.ir_version = max(converted.ir_version, _IR_LEAST)
    path = folder / "current.onnx"
    onnx.save(converted, str(path))
    return path


def _reader(tools: Any, samples: Sequence[Sample]) -> Any:
    """The samples as the quantiser reads them."""

    class Reader(tools.CalibrationDataReader):  # type: ignore[misc]  # a class of an optional package
        def __init__(self) -> None:
            self.samples = iter(samples)

        def get_next(self) -> Sample | None:
            return next(self.samples, None)

    return Reader()


def _layers(tools: Any, f32: Path, quantised: Path, samples: Sequence[Sample], folder: Path) -> tuple[Layer, ...]:
    from onnxruntime.quantization import qdq_loss_debug as loss

    values = []
    for index, model in enumerate((f32, quantised)):
        watched = folder / f"watched{index}.onnx"
        loss.modify_model_output_intermediate_tensors(str(model), str(watched))
        values.append(loss.collect_activations(str(watched), _reader(tools, samples)))
    errors = loss.compute_activation_error(loss.create_activation_matching(values[1], values[0]))
    found = {name: error["xmodel_err"] for name, error in errors.items() if "xmodel_err" in error}
    order = {name: place for place, node in enumerate(read_model(f32).graph.node) for name in node.output}
    return tuple(Layer(name, round(found[name], 2)) for name in sorted(found, key=lambda n: (order.get(n, -1), n)))


def _compared(
    model: str | Path, quantised: Path, samples: Sequence[Sample], threads: int | None
) -> tuple[tuple[OutputAgreement, ...], dict[str, int]]:
    """The outputs of both models, as this package computes them, over all samples; what the second computes in."""
    results: list[dict[str, list[Array]]] = []
    computed_in: dict[str, int] = {}
    for path in (Path(model), quantised):
        kernels: dict[tuple[tuple[int, ...], ...], Any] = {}
        found: dict[str, list[Array]] = {}
        for sample in samples:
            shapes = {name: tuple(a.shape) for name, a in sample.items()}
            key = tuple(shapes.values())
            if key not in kernels:
                kernels[key] = compile_graph(path, threads=threads, shapes=shapes)
                computed_in = kernels[key].summary()["computed_in"]
            for name, array in kernels[key].run(sample).outputs.items():
                found.setdefault(name, []).append(np.asarray(array, np.float64))
        results.append(found)
    return tuple(_agreement(name, mine, results[1][name]) for name, mine in results[0].items()), computed_in


def _agreement(name: str, f32: Sequence[Array], quantised: Sequence[Array]) -> OutputAgreement:
    largest = max(float(np.abs(a).max(initial=0.0)) for a in f32) or 1.0
    difference = max(float(np.abs(a - b).max(initial=0.0)) for a, b in zip(f32, quantised, strict=True))
    same = [np.atleast_1d(a).argmax(-1) == np.atleast_1d(b).argmax(-1) for a, b in zip(f32, quantised, strict=True)]
    return OutputAgreement(name, difference / largest, float(np.concatenate([s.reshape(-1) for s in same]).mean()))


@contextmanager
def _quiet() -> Iterator[None]:
    """The quantiser logs advice about steps that are taken here anyway, and prints what it is at."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with redirect_stdout(StringIO()):
            yield
    finally:
        logging.disable(level)
