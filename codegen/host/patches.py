"""Copies the patch of a block of outputs to scratch: zero-padded, split by stride phase (see
scheduler/families/conv_form).

The values come from a strided operand or from a prologue program. Columns whose validity is known when compiling are
copied as whole vectors with an exact rest; where the block may start anywhere (one-dimensional inputs cut along their
length) vectors that reach over an edge are assembled lane by lane. Many phases are walked by loops.

Invariant: nothing outside the input is read; every element of the patch is written.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from superkernel.codegen.host.builder import I32, I64, Index, KernelBuilder, register_type
from superkernel.codegen.host.loops import strips
from superkernel.codegen.host.program import ProgramEmitter
from superkernel.core.dtypes import DType
from superkernel.scheduler.families.conv_form import ConvForm, Patch

_UNROLLED = 16
"""So many phases get code of their own each, in which what is padding is known; more are walked by loops."""

LoadRow = Callable[[Index, int], ir.Value]  # (first input column, lanes) -> values, `column stride` apart


class PatchCopier:
    """Emits the copy for one convolution form and patch. `fill` is what padding holds; values are stored as `acc`."""

    def __init__(
        self, kb: KernelBuilder, form: ConvForm, patch: Patch, moving: bool, acc: DType = DType.F32, fill: float = 0.0
    ) -> None:
        self.kb, self.form, self.patch, self.moving, self.acc = kb, form, patch, moving, acc
        self.lanes = max(1, kb.cpu.vector_bytes // acc.itemsize)
        self.fill = fill
        self.program = ProgramEmitter(kb, form.prologue) if form.prologue is not None else None

    def copy(self, to: ir.Value, image: Index, channel: Index, count: Index, row0: Index, column0: Index) -> None:
        """`count` channels from `channel` on into consecutive channel planes at `to`. The block starts at output
        (row0, column0)."""
        kb, p = self.kb, self.patch
        plane = p.patch_rows * p.pitch
        with kb.loop(0, count, name="channel") as c, kb.loop(0, p.patch_rows, name="patch_row") as r:
            at, row = kb.add(kb.mul(c, p.channel), kb.mul(r, p.pitch)), kb.add(row0, r)
            if len(p.phases) <= _UNROLLED:
                for index, (phase_row, phase_column) in enumerate(p.phases):
                    start = kb.add(at, index * plane)
                    self._line(to, start, image, kb.add(channel, c), row, phase_row, column0, phase_column)
                return
            rows, columns = (sorted({phase[axis] for phase in p.phases}) for axis in (0, 1))
            with kb.loop(0, len(rows), name="row_phase") as i, kb.loop(0, len(columns), name="column_phase") as j:
                start = kb.add(at, kb.mul(kb.add(kb.mul(i, len(columns)), j), plane))
                phase_row, phase_column = self._phase(rows, i), self._phase(columns, j)
                self._line(to, start, image, kb.add(channel, c), row, phase_row, column0, phase_column)

    def _phase(self, phases: list[int], index: Index) -> Index:
        """One of these, in rising order."""
        if isinstance(index, int):
            return phases[index]
        step = phases[1] - phases[0]
        if phases == list(range(phases[0], phases[-1] + 1, step)):
            return self.kb.add(self.kb.mul(index, step), phases[0])
        address = self.kb.at(self.kb.table("phases", phases, DType.I32), index, DType.I32)
        return self.kb.b.sext(self.kb.b.load(address, typ=I32, align=4), I64)

    def _line(
        self,
        to: ir.Value,
        start: Index,
        image: Index,
        channel: Index,
        row: Index,
        phase_row: Index,
        column0: Index,
        phase_column: Index,
    ) -> None:
        """A row of the patch: of one input line, or padding."""
        kb, form = self.kb, self.form
        line = kb.add(kb.mul(row, form.strides[0]), kb.sub(phase_row, form.pads[0]))
        if self._always_inside():
            self._row(to, start, image, channel, line, column0, phase_column)
            return
        inside = kb.b.icmp_unsigned("<", kb.i64(line), kb.i64(form.height))
        with kb.b.if_else(inside) as (then, otherwise):
            with then:
                self._row(to, start, image, channel, line, column0, phase_column)
            with otherwise:
                self._blank(to, start, 0, self.patch.pitch)

    def _always_inside(self) -> bool:
        """True where no row of any block's patch can lie outside the input."""
        form, p = self.form, self.patch
        blocks = -(-form.out_height // p.rows)
        last = ((blocks - 1) * p.rows + p.patch_rows - 1) * form.strides[0] + max(a for a, _ in p.phases) - form.pads[0]
        return form.pads[0] == 0 and last < form.height

    def _row(
        self, to: ir.Value, start: Index, image: Index, channel: Index, line: Index, column0: Index, phase: Index
    ) -> None:
        load = self._loader(image, channel, line)
        if self.moving or not isinstance(phase, int):
            self._moving_row(to, start, load, column0, phase)
        else:
            self._fixed_row(to, start, load, phase)

    def _loader(self, image: Index, channel: Index, line: Index) -> LoadRow:
        kb, form = self.kb, self.form
        step = form.strides[1]
        if self.program is not None:
            coords = [image, channel, line, 0][: 2 + form.spatial] if form.spatial == 2 else [image, channel, 0]
            row = self.program.row(coords)

            def evaluated(column: Index, lanes: int) -> ir.Value:
                if step == 1 or lanes == 1:
                    return row.eval(column, lanes, store=False)[0]
                value: ir.Value = ir.Constant(register_type(form.dtype, lanes), ir.Undefined)
                for lane in range(lanes):
                    one = row.eval(kb.add(column, lane * step), 1, store=False)[0]
                    value = kb.b.insert_element(value, one, ir.Constant(ir.IntType(32), lane))
                return value

            return evaluated
        base = kb.operands[form.operand]
        s = form.x_strides
        at = kb.element(form.x_offset, (image, channel, line), s)

        def loaded(column: Index, lanes: int) -> ir.Value:
            return kb.load(base, kb.add(at, kb.mul(column, s[3])), form.dtype, lanes, s[3] * step)

        return loaded

    def _fixed_row(self, to: ir.Value, start: Index, load: LoadRow, phase: int) -> None:
        """A row whose block starts at column 0: the valid range is known."""
        kb, form, p = self.kb, self.form, self.patch
        step, shift = form.strides[1], phase - form.pads[1]
        low = min(p.pitch, max(0, -(shift // step)))
        high = max(low, min(p.pitch, -(-(form.width - shift) // step)))
        self._blank(to, start, 0, low)
        self._strips(
            to, kb.add(start, low), high - low, lambda at, n: load(kb.add(kb.mul(at, step), low * step + shift), n)
        )
        self._blank(to, start, high, p.pitch)

    def _moving_row(self, to: ir.Value, start: Index, load: LoadRow, column0: Index, phase: Index) -> None:
        """A row whose first column is known at run time only."""
        kb, form, p = self.kb, self.form, self.patch
        step, shift = form.strides[1], kb.sub(phase, form.pads[1])
        columns = [phase] if isinstance(phase, int) else [column for _, column in p.phases]
        last = ((form.out_width - p.columns) + p.pitch - 1) * step + max(columns) - form.pads[1]
        if min(columns) >= form.pads[1] and last < form.width:
            self._strips(to, start, p.pitch, lambda at, n: load(kb.add(kb.mul(kb.add(column0, at), step), shift), n))
        elif step == 1 and self.program is None and form.x_strides[3] == 1 and self.lanes > 1:
            self._masked_strips(to, start, load, column0, shift)
        else:
            with kb.loop(0, p.pitch, name="column") as at:
                column = kb.add(kb.mul(kb.add(column0, at), step), shift)
                kb.store(kb.const(self.fill, self.acc), to, kb.add(start, at), self.acc)
                with kb.when(kb.b.icmp_unsigned("<", kb.i64(column), kb.i64(form.width))):
                    kb.store(load(column, 1), to, kb.add(start, at), self.acc)

    def _masked_strips(self, to: ir.Value, start: Index, load: LoadRow, column0: Index, shift: Index) -> None:
        """Vectors wholly inside the input load plainly; those that reach over an edge load their valid lanes only."""
        kb, form, p = self.kb, self.form, self.patch

        def part(at: Index, lanes: int) -> ir.Value:
            column = kb.add(kb.add(column0, at), shift)
            inside = kb.b.and_(kb.compare(">=", column, 0), kb.compare("<=", column, form.width - lanes))
            result = kb.carry(register_type(self.acc, lanes))
            with kb.b.if_else(inside) as (then, otherwise):
                with then:
                    result.set(load(column, lanes))
                with otherwise:
                    result.set(self._edge(column, lanes, load))
            return result.get()

        self._strips(to, start, p.pitch, part)

    def _edge(self, column: Index, lanes: int, load: LoadRow) -> ir.Value:
        """Lanes whose column lies in [0, width), `fill` elsewhere, lane by lane."""
        kb, form = self.kb, self.form
        value = kb.const(self.fill, self.acc, lanes)
        result = kb.carry(value.type, value)
        for lane in range(lanes):
            here = kb.add(column, lane)
            with kb.when(kb.b.icmp_unsigned("<", kb.i64(here), kb.i64(form.width))):
                one = load(here, 1)
                old = result.get()
                result.set(one if lanes == 1 else kb.b.insert_element(old, one, ir.Constant(ir.IntType(32), lane)))
        return result.get()

    def _strips(self, to: ir.Value, start: Index, extent: int, load: LoadRow) -> None:
        kb = self.kb
        strips(kb, extent, self.lanes, lambda at, lanes: kb.store(load(at, lanes), to, kb.add(start, at), self.acc))

    def _blank(self, to: ir.Value, start: Index, low: int, high: int) -> None:
        self._strips(
            to, self.kb.add(start, low), max(0, high - low), lambda _, n: self.kb.const(self.fill, self.acc, n)
        )
