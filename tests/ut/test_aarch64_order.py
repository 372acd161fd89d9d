"""Waits and sets of emitted entries as AArch64 assembly: on x86-64 every load acquires and every store releases, so
that nothing that runs there would notice their ordering gone. Held: a worker's straight line is the program's, each
wait one load-acquire, each set one store-release, in their places among the tasks; nobody compares a counter that a
plain load brought; nobody stores plainly to anything but the stack and the time stamps."""

from __future__ import annotations

import re

import pytest

from superkernel.codegen.host.entry import emit_entries, emit_waits
from superkernel.codegen.host.entry_spec import BasePointer, EntrySpec, Location, RunTask, SetCount, TaskSpec, WaitFor
from superkernel.codegen.host.lower import assembly
from superkernel.target.cpu import CpuTarget, cpu_target

OPERANDS = (Location(BasePointer.ARENA, 0), Location(BasePointer.IO, 64, 1))
HANDED_OVER = (Location(BasePointer.ARENA, 128), Location(BasePointer.IO, 0, 1))
SPEC = EntrySpec(
    tasks=(
        TaskSpec(0, 0, "k", OPERANDS, 0, 4),
        TaskSpec(0, 1, "k", OPERANDS, 4, 8),
        TaskSpec(1, 0, None, (), 0, 0),
        TaskSpec(2, 1, "k", OPERANDS, 0, 1, checked=1),
    ),
    programs=(
        (WaitFor(1, 1, 0, OPERANDS[1], 256, HANDED_OVER), RunTask(0), SetCount(1), RunTask(2), SetCount(2)),
        (RunTask(1), SetCount(1), *(WaitFor(p, 1, 1 + p) for p in (0, 2, 3, 4)), RunTask(3), WaitFor(0, 2, 6)),
        (SetCount(1), WaitFor(1, 1, 7)),
        (SetCount(1),),
        (WaitFor(0, 1, 8), WaitFor(0, 2, 9), SetCount(1)),
    ),
    sets=(2, 1, 1, 1, 1),
    subops=3,
)
WAITS_OF_A_TABLE = 4

_LOADED = re.compile(r"ld(?:r|ur|p)\s+(x\d+)(?:, (x\d+))?,")
_STORE = re.compile(r"(?:st(?!lr)\w+|swp\w*|cas\w*|ldadd\w*)\s.*\[(\w+)")


@pytest.fixture(scope="module")
def cpu() -> CpuTarget:
    return cpu_target("aarch64-unknown-linux-gnu", "plain", ())


def functions(text: str) -> dict[str, list[str]]:
    """Instructions and labels by function."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in (line.split("//")[0].strip() for line in text.splitlines()):
        if named := re.fullmatch(r"(\w+):", line):
            lines = found[named[1]] = []
        elif line and (not line.startswith(".") or line.endswith(":")):
            lines.append(line)
    return found


def line_of(code: list[str]) -> list[str]:
    """What a worker's function does, as far as others can tell."""
    steps: list[str] = []
    for instruction in code:
        name, _, rest = instruction.partition("\t")
        if name in ("ldar", "ldapr", "stlr"):
            steps.append("set" if name == "stlr" else "wait")
        elif name == "bl" and rest != "sk_wait":
            steps.append("waits" if rest == "sk_wait_many" else rest)
    return steps


def wanted_line(core: int) -> list[str]:
    steps: list[str] = []
    for step in SPEC.programs[core]:
        if isinstance(step, RunTask):
            steps.append(f"task_{step.task}")
        else:
            steps.append("set" if isinstance(step, SetCount) else "wait")
    waits = " ".join(["wait"] * WAITS_OF_A_TABLE)
    return " ".join(steps).replace(waits, "waits").split()


def plain_compares(code: list[str]) -> list[str]:
    """Comparisons of 64-bit words that plain loads brought."""
    plain: set[str] = set()
    wrong: list[str] = []
    for instruction in code:
        name, _, rest = instruction.partition("\t")
        if name == "cmp" and plain & set(re.findall(r"x\d+", rest)):
            wrong.append(instruction)
        if found := _LOADED.match(instruction):
            plain |= {register for register in found.groups() if register}
        elif defined := re.match(r"(x\d+),", rest):
            plain.discard(defined[1])
    return wrong


def program(cpu: CpuTarget) -> tuple[str, str]:
    """The text of the entries, and of what they call to wait."""
    return emit_entries(SPEC, cpu), emit_waits(cpu)


def wrong_in(texts: tuple[str, str], cpu: CpuTarget) -> list[str]:
    """Everything that breaks a rule."""
    entries, waits = texts
    code = functions(assembly(entries, cpu, level=0)) | functions(assembly(waits, cpu))
    wrong: list[str] = []
    for core in range(len(SPEC.programs)):
        for kind in ("core", "profiled"):
            found, want = line_of(code[f"{kind}_{core}"]), wanted_line(core)
            wrong += [f"{kind}_{core}: {found}, not {want}"] * (found != want)
    for name in ("sk_wait", "sk_wait_many"):
        wrong += [f"{name} acquires nothing"] * ("wait" not in line_of(code[name]))
    for name, lines in code.items():
        wrong += [f"{name}: {line}" for line in plain_compares(lines)]
        stores = [line for line in lines if (to := _STORE.match(line)) and to[1] != "sp"]
        if not name.startswith("profiled_") and name != "sk_wait_many":  # which store time stamps
            wrong += [f"{name}: {line}" for line in stores]
    return wrong


def test_waits_acquire_and_sets_release_where_they_stand(cpu: CpuTarget) -> None:
    assert wrong_in(program(cpu), cpu) == []


def test_ordering_that_is_dropped_anywhere_is_found(cpu: CpuTarget) -> None:
    texts = program(cpu)
    places = [(which, m.span()) for which in (0, 1) for m in re.finditer(r"\b(acquire|release)\b", texts[which])]
    steps = [step for program in SPEC.programs for step in program if not isinstance(step, RunTask)]
    assert len(places) == 2 * (len(steps) - WAITS_OF_A_TABLE) + 2  # both entries; the two functions that wait
    for which, (start, end) in places:
        text = texts[which]
        changed = f"{text[:start]}monotonic{text[end:]}"
        both = (texts[0], changed) if which else (changed, texts[1])
        assert wrong_in(both, cpu), text[text.rindex("\n", 0, start) : end]


def test_a_set_ahead_of_its_task_is_found(cpu: CpuTarget) -> None:
    text, waits = program(cpu)
    head, body = text.split("@core_1(", 1)
    call = "  call i32 @task_1(ptr %ctx)\n"
    store = re.search(r"  store atomic [^\n]*\n", body)
    assert store is not None
    early = body.replace(store[0], store[0] + call, 1).replace(call, "", 1)
    assert [w.split(":")[0] for w in wrong_in((f"{head}@core_1({early}", waits), cpu)] == ["core_1"]
