"""The interface of backends of the ONNX standard (`onnx.backend.base`), for tools that run models through it:

import superkernel.adaptors.onnx_backend as backend

outputs = backend.prepare(model).run(inputs)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep

from superkernel.adaptors.session import InferenceSession
from superkernel.core.errors import InputError


class SuperKernelRep(BackendRep):
    """A prepared model."""

    def __init__(self, session: InferenceSession) -> None:
        self.session = session

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs in the model's order. `inputs`: a sequence in its order, a mapping, or a single array."""
        names = [value.name for value in self.session.get_inputs()]
        if isinstance(inputs, Mapping):
            feed = dict(inputs)
        else:
            listed = list(inputs) if isinstance(inputs, Sequence) else [inputs]
            if len(listed) > len(names):
                raise InputError("too many inputs", expected=str(len(names)), found=str(len(listed)))
            feed = dict(zip(names, listed, strict=False))
        return tuple(self.session.run(None, feed))


class SuperKernelBackend(Backend):
    """Models and single nodes on the host."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether there is such a device; `prepare` says what of a model cannot be compiled."""
        return cls.supports_device(device)

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> SuperKernelRep:
        """The model, compiled. `kwargs`: options of `superkernel.compile`. Raises as it does."""
        if not cls.supports_device(device):
            raise InputError("no such device", location="device", expected="CPU", found=repr(device))
        if not isinstance(model, onnx.ModelProto):
            raise InputError("not a model", expected="an onnx.ModelProto", found=type(model).__name__)
        super().prepare(model, device)  # the standard's checker
        return SuperKernelRep(InferenceSession(model, options=kwargs))

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> Any:
        """`prepare` and `run`."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls, node: onnx.NodeProto, inputs: Sequence[Any], device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> Any:
        """One node of the newest operator set, on arrays in the order of its inputs."""
        if not isinstance(node, onnx.NodeProto):
            raise InputError("not a node", expected="an onnx.NodeProto", found=type(node).__name__)
        names = [name for name in node.input if name]
        if not isinstance(inputs, Sequence):
            raise InputError("not inputs of a node", expected="a sequence of arrays", found=type(inputs).__name__)
        if len(inputs) != len(names):
            expected = f"{len(names)} ({', '.join(names)})"
            raise InputError("not an array per input of the node", expected=expected, found=str(len(inputs)))
        feed = dict(zip(names, map(np.asarray, inputs), strict=True))
        given = [
            onnx.helper.make_tensor_value_info(name, _tensor_type(array.dtype), array.shape)
            for name, array in feed.items()
        ]
        outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name]
        graph = onnx.helper.make_graph([node], node.op_type or "node", given, outputs)
        return SuperKernelRep(InferenceSession(onnx.helper.make_model(graph), options=kwargs)).run(feed)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """ "CPU", with a number or without."""
        return isinstance(device, str) and device.partition(":")[0] == "CPU"


def _tensor_type(dtype: np.dtype[Any]) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(dtype.newbyteorder("=")))


is_compatible = SuperKernelBackend.is_compatible
prepare = SuperKernelBackend.prepare
run_model = SuperKernelBackend.run_model
run_node = SuperKernelBackend.run_node
supports_device = SuperKernelBackend.supports_device
