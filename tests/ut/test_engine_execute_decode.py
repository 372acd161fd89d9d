"""The C++ decoder, checker, footprints, costs and texts against the Python side of the same table."""

from __future__ import annotations

import random

import pytest
from engine_command_cases import random_command
from engine_execute_cases import TABLE, core_of, fields_of, legal_command

from superkernel import _core
from superkernel.core.errors import InputError
from superkernel.target.aicore import AicoreTarget, load_target
from superkernel.target.engines import Command, check, decode, encode, footprint
from superkernel.target.engines.checking import TouchedBytes
from superkernel.target.engines.formula import evaluate
from superkernel.target.engines.layout import operand_words
from superkernel.target.engines.model import ENGINES_OF, CoreType, Engine
from superkernel.target.engines.table import by_opcode

TARGETS = [load_target(name) for name in ("mini", "a3")]


def accepts(words: tuple[int, ...], engine: Engine, core: CoreType, target: AicoreTarget) -> bool:
    """What the Python side says of a whole window's words, for one core."""
    spec = by_opcode().get(words[-1] & 0xFF)
    if spec is None or core not in spec.cores or engine not in ENGINES_OF[core]:
        return False
    try:
        c = decode((*words[: operand_words(spec)], words[-1]), engine)
        check(c, target)
    except InputError:
        return False
    return c.name not in ("set_flag", "wait_flag") or Engine(c.numbers["peer"]) in ENGINES_OF[core]


def window(c: Command) -> tuple[int, ...]:
    """The 15 operand words, those that a command does not have full of noise, and the doorbell."""
    words = encode(c)
    return (*words[:-1], *[0xDEAD_BEEF] * (16 - len(words)), words[-1])


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_decoder_accepts_what_python_accepts(target: AicoreTarget) -> None:
    rng = random.Random(1)
    bench = _core.EngineBench(fields_of(target))
    seen = {True: 0, False: 0}
    for _ in range(40):
        for name in TABLE:
            c = rng.choice((random_command, lambda n, r: legal_command(n, r, target)))(name, rng)
            words = list(window(c))
            for _ in range(rng.choice((0, 0, 1, 1, 2))):
                place = rng.choice((15, 15, *range(operand_words(c.spec) or 1)))
                words[place] ^= 1 << rng.randrange(64)
            core = rng.choice((CoreType(core_of(c)),) * 4 + tuple(CoreType))
            engine = rng.choice((c.engine,) * 9 + (rng.choice(list(Engine)),))
            wanted = accepts(tuple(words), engine, core, target)
            found = bench.decode(engine.title, core.value, words)
            assert (found is None) == wanted, (str(c), [hex(w) for w in words], engine, core, found)
            seen[wanted] += 1
    assert min(seen.values()) > 500, seen


def test_noise_is_refused_as_python_refuses_it() -> None:
    rng = random.Random(2)
    target = TARGETS[0]
    bench = _core.EngineBench(fields_of(target))
    for _ in range(3000):
        words = tuple(rng.getrandbits(64) & rng.choice((~0 & (1 << 64) - 1, 0xFFFF, 0)) for _ in range(15))
        doorbell = rng.getrandbits(64) & ~0xFF | rng.choice([*by_opcode(), rng.randrange(256)])
        engine, core = rng.choice(list(Engine)), rng.choice(list(CoreType))
        wanted = accepts((*words, doorbell), engine, core, target)
        assert (bench.decode(engine.title, core.value, (*words, doorbell)) is None) == wanted


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_footprint_cost_and_text_are_those_of_python(target: AicoreTarget) -> None:
    rng = random.Random(3)
    bench = _core.EngineBench(fields_of(target))
    for _ in range(25):
        for name, spec in TABLE.items():
            c = legal_command(name, rng, target)
            place = (c.engine.title, core_of(c), encode(c))
            assert bench.footprint(*place) == [as_tuple(c, t) for t in footprint(c, target)], str(c)
            formulas = (spec.start_up, spec.beats, spec.visible)
            assert bench.cost(*place) == tuple(evaluate(f, spec, c.numbers, c.types, target) for f in formulas), str(c)
            assert bench.text(*place) == str(c)


def as_tuple(c: Command, t: TouchedBytes) -> tuple[str, bool, int, int, int, int, int]:
    place = [o.name for o in c.spec.operands].index(t.operand)
    return (t.memory.value if t.memory else "gm", t.writes, place, t.start, t.rows, t.row_bytes, t.stride)
