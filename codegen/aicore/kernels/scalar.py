"""aicore.scalar: the host's emitters at work on a control unit.

Model: `ControlBuilder` is the host's kernel builder writing into an accelerator kernel: operands are addresses in
global memory, elements are loaded and stored one by one by the control unit. What an emitter keeps on the stack or in
registers it keeps there. All waits, and the drain ahead of the first store, stand at the kernel's beginning.
"""

from __future__ import annotations

from llvmlite import ir

from superkernel.codegen.aicore.commands import SCRATCH, Address
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.scalar import Number, Scalar
from superkernel.codegen.host.builder import I32, I64, Index, storage_type
from superkernel.codegen.host.builder import KernelBuilder as HostBuilder
from superkernel.codegen.host.emitters import emitter_of as host_emitter_of
from superkernel.core.dtypes import DType
from superkernel.ir.body import Body
from superkernel.scheduler.families.aicore.base import AicoreTiling
from superkernel.scheduler.families.aicore.scalar import ScalarTiling, control_unit


class ControlBuilder(HostBuilder):
    """See the module docstring. A pointer of an emitter is an `Address` where it leads to global memory."""

    def __init__(self, kb: KernelBuilder, operands: int, units: int, vector_bytes: int) -> None:
        # The host's constructor would make a function: this one is there already.
        self.kb, self.cpu = kb, control_unit(vector_bytes)
        self.module, self.function, self.b = kb.module, kb.function, kb.b
        self.entry = kb.function.entry_basic_block
        self.operands = [kb.operand(k) for k in range(operands)]
        self.scratch = Address(SCRATCH, 0)
        self.begin, self.end = ir.Constant(I64, 0), ir.Constant(I64, units)  # of the host's tiling, all of them
        self._sizes = None  # of tensors: all are known

    def offset(self, base: ir.Value | Address, nbytes: Index) -> ir.Value | Address:
        """`base` moved on by bytes; an `Address` stays one."""
        if isinstance(base, Address):
            return base.at(self._number(nbytes))
        return super().offset(base, nbytes)

    def load_raw(
        self, base: ir.Value | Address, element: Index, dtype: DType, lanes: int = 1, stride: int = 1
    ) -> ir.Value:
        """`lanes` elements from `element` on, `stride` apart, as they lie in memory; from global memory one by one."""
        if not isinstance(base, Address):
            return super().load_raw(base, element, dtype, lanes, stride)
        if lanes == 1 or stride == 0:
            return self.splat(self._load_one(base, element, dtype), lanes)
        value: ir.Value = ir.Constant(ir.VectorType(storage_type(dtype), lanes), ir.Undefined)
        for lane in range(lanes):
            one = self._load_one(base, self.add(element, lane * stride), dtype)
            value = self.b.insert_element(value, one, ir.Constant(I32, lane))
        return value

    def store(self, value: ir.Value, base: ir.Value | Address, element: Index, dtype: DType, stride: int = 1) -> None:
        """A value or vector, converted to `dtype`, to `element` and those `stride` apart; to global memory one by
        one."""
        if not isinstance(base, Address):
            super().store(value, base, element, dtype, stride)
            return
        raw = self.narrow(value, dtype)
        if not isinstance(raw.type, ir.VectorType):
            self._store_one(raw, base, element, dtype)
            return
        for lane in range(raw.type.count):
            one = self.b.extract_element(raw, ir.Constant(I32, lane))
            self._store_one(one, base, self.add(element, lane * stride), dtype)

    def _number(self, index: Index) -> Number:
        return index if isinstance(index, int) else Scalar(self.b, index)

    def _address(self, base: Address, element: Index, dtype: DType) -> Address:
        return base.at(self._number(self.mul(element, dtype.itemsize)))

    def _load_one(self, base: Address, element: Index, dtype: DType) -> ir.Value:
        """In storage form: the layer's bits, cut to the element's."""
        found = self.kb.load(self._address(base, element, dtype), dtype).value
        kind = storage_type(dtype)
        width = 8 * dtype.itemsize
        bits = found if width == 64 else self.b.trunc(found, ir.IntType(width))
        return bits if isinstance(kind, ir.IntType) else self.b.bitcast(bits, kind)

    def _store_one(self, raw: ir.Value, base: Address, element: Index, dtype: DType) -> None:
        width = 8 * dtype.itemsize
        bits = raw if isinstance(raw.type, ir.IntType) else self.b.bitcast(raw, ir.IntType(width))
        wide = bits if width == 64 else self.b.zext(bits, I64)
        self.kb.store(self._address(base, element, dtype), Scalar(self.b, wide), dtype)


def emit(kb: KernelBuilder, body: Body, tiling: AicoreTiling) -> None:
    """The kernel's function."""
    assert isinstance(tiling, ScalarTiling)
    kb.acquire(*kb.wait_operands, stores=True)
    with kb.when(kb.compare("<", kb.begin, kb.end)):
        control = ControlBuilder(kb, len(body.operands), tiling.inner.units, tiling.lanes * tiling.width)
        if tiling.divided:
            assert isinstance(kb.begin, Scalar)
            assert isinstance(kb.end, Scalar)
            control.begin, control.end = kb.begin.value, kb.end.value
        host_emitter_of(tiling.kernel)(control, body, tiling.inner)
