"""What a row of the engine command table consists of.

Model: a command is an opcode, up to two element types and operands. Operands are bit fields; `layout.py` places them in
the words of the register page. What a command touches is said by `CommandAccess`es and how long it takes by formulas,
both in the language of `formula.py`, so that the simulator, the checker and the documentation read the same text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from superkernel.core.dtypes import DType

GLOBAL_BITS = 48
LOCAL_BITS = 20  # the schema bounds local memories by the same number
OPCODE_BITS = 8
TYPE_BITS = 4

# The code of an element type in a doorbell word; 0 says that the command has none in that place.
TYPE_CODES: dict[DType, int] = {
    DType.F32: 1,
    DType.F16: 2,
    DType.BF16: 3,
    DType.I32: 4,
    DType.I16: 5,
    DType.I8: 6,
    DType.U32: 7,
    DType.U16: 8,
    DType.U8: 9,
}


class CoreType(Enum):
    """Who has a register page; the value is the name in texts."""

    AIC = "aic"
    AIV = "aiv"
    AICPU = "aicpu"


class Engine(Enum):
    """Who executes a command; the value is the number of its window in the register page."""

    CONTROL = 0  # not a queue: the store itself waits until the command is done
    MTE2 = 1
    MTE1 = 2
    M = 3
    FIX = 4
    V = 5
    MTE3 = 6
    SDMA = 7  # one per device: the queue is shared by all cores

    @property
    def title(self) -> str:
        """The name in texts."""
        return self.name.lower()


ENGINES_OF: dict[CoreType, tuple[Engine, ...]] = {
    CoreType.AIC: (Engine.CONTROL, Engine.MTE2, Engine.MTE1, Engine.M, Engine.FIX, Engine.SDMA),
    CoreType.AIV: (Engine.CONTROL, Engine.MTE2, Engine.V, Engine.MTE3, Engine.SDMA),
    CoreType.AICPU: (Engine.CONTROL, Engine.SDMA),
}


class Local(Enum):
    """A local memory; the value is the name in texts."""

    L1 = "l1"
    L0A = "l0a"
    L0B = "l0b"
    L0C = "l0c"
    UB = "ub"

    @property
    def size_path(self) -> str:
        """The field of the target description that has its size."""
        return f"memory.{self.value}_bytes"

    @property
    def align_path(self) -> str:
        """The field that has the alignment of its addresses."""
        name = {Local.L0A: "fractal_bytes", Local.L0B: "fractal_bytes", Local.L0C: "accumulator_bytes"}
        return f"memory.{name.get(self, 'block_bytes')}"


class Kind(Enum):
    """What the number in an operand means."""

    GLOBAL = "global address"
    LOCAL = "local address"
    COUNT = "count"
    BYTES = "bytes"
    STRIDE = "stride in bytes"
    NUMBER = "number"
    FLOAT = "f32 bits"
    ELEMENT = "element bits"
    CHOICE = "choice"


class Overlap(Enum):
    """How the bytes a command writes may meet the bytes it reads."""

    FREE = "it writes no bytes that it reads"
    DISJOINT = "written bytes must not be among the bytes read"
    IN_PLACE = (
        "written bytes must not be among the bytes read, except that the destination may be a matrix operand itself: "
        "same address, same stride, same element size"
    )


@dataclass(frozen=True, slots=True)
class CommandOperand:
    """One operand. `low` and `high` bound the number (both inclusive); `default` None means it must be given."""

    name: str
    kind: Kind
    bits: int
    doc: str
    low: int = 0
    high: int = 0
    default: int | None = None
    memory: Local | None = None
    align: str = ""  # formula of the alignment, in terms of the target and the element types; "" = any
    choices: tuple[str, ...] = ()
    element_slot: int = 0  # ELEMENT: whose element type the bits are of


@dataclass(frozen=True, slots=True)
class CommandAccess:
    """Bytes that a command touches: `rows` runs of `row_bytes`, `stride` apart, from an address operand on.

    The three are formulas. `when` is a formula too: where it is 0 there is no access.
    """

    operand: str
    writes: bool
    rows: str
    row_bytes: str
    stride: str = "0"
    when: str = "1"


@dataclass(frozen=True, slots=True, eq=False)
class CommandSpec:
    """A row of the table, which has it once: rows are told apart by identity, for what is kept of each.

    `types` has the legal combinations of element types, all of one length (0 to 2); `type_names` names the places.
    Time: an engine is busy `start_up` + `beats` cycles; others see the effect `visible` cycles after its end.
    `ulp` is how far a result may be from the correctly rounded one, in units of its last place.
    """

    name: str
    opcode: int
    engines: tuple[Engine, ...]
    semantics: str
    operands: tuple[CommandOperand, ...]
    types: tuple[tuple[DType, ...], ...] = ((),)
    type_names: tuple[str, ...] = ()
    accesses: tuple[CommandAccess, ...] = ()
    overlap: Overlap = Overlap.FREE
    start_up: str = "0"
    beats: str = "0"
    visible: str = "0"
    ulp: int = 0
    not_on: tuple[CoreType, ...] = ()

    @property
    def cores(self) -> tuple[CoreType, ...]:
        """The core types that have an engine for it and the memories it names, without those it is not for."""
        return tuple(
            core
            for core, engines in ENGINES_OF.items()
            if core not in self.not_on
            and set(engines) & set(self.engines)
            and all(_has(core, o.memory) for o in self.operands if o.memory)
        )

    def operand(self, name: str) -> CommandOperand:
        """The operand of a name; KeyError where there is none."""
        for operand in self.operands:
            if operand.name == name:
                return operand
        raise KeyError(name)


def _has(core: CoreType, memory: Local) -> bool:
    return core is (CoreType.AIV if memory is Local.UB else CoreType.AIC)
