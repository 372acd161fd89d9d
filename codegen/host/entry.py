"""The fused kernel's entries: what each worker runs from start to end, as LLVM IR text.

Model: an `EntrySpec` (`entry_spec.py`) becomes three entries of the ABI (csrc/include/superkernel_abi.h):

    sk_entry     the fused kernel: waits, bodies, sets
    sk_profiled  the same, with a time stamp before the first and behind every step
    sk_single    one sub-operator's tasks and nothing else, for the one-by-one baseline

Each task is a small function of its own (`task_3`), shared by the three. A wait first looks at the counter in line;
only where it has not been reached does it ask for the lines that the producer hands over (`handover.py`) and call
`sk_wait`, which spins, prefetches the coming body's constants line by line while it spins, and now and then calls the
runtime (yield, abort, watchdog). Runs of waits, as full barriers of many cores have them, are a table and a loop
(`sk_wait_many`), so that code grows with the steps and not with their square; they ask for constants only. Text rather
than llvmlite objects: the code is a table of three instruction patterns, and reads as one.

The two that spin are a module of their own, the same for all plans (`emit_waits`). What is particular to a plan is long
and straight, executed once per launch, and written as it should run: LLVM translates it as it stands, ten times as fast
as with its optimisations, which find nothing in it. So nothing in it lives from step to step but the bases: what
a step needs it works out. For x86-64 even that takes longer than planning: `entry_x86.py` writes the same entries as
bytes, and what is written here is what the thread sanitizer and the dump of IR see.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from superkernel.codegen.host import abi
from superkernel.codegen.host.entry_spec import (
    LINES_PER_SPIN,
    WAITS_IN_A_TABLE,
    BasePointer,
    EntrySpec,
    Location,
    SetCount,
    Step,
    TaskSpec,
    WaitFor,
)
from superkernel.codegen.host.handover import LINE_BYTES
from superkernel.target.cpu import CpuTarget

_WAIT_PARAMETERS = "ptr %ctx, ptr %counter, i64 %threshold, i32 %core, i32 %producer, i32 %wait, ptr %from, i64 %lines"
_WAIT_MANY_PARAMETERS = "ptr %ctx, ptr %table, i64 %count, i32 %core, ptr %from, i64 %lines, ptr %stamps"
_INTRINSICS = (
    "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)",
    "declare i64 @llvm.readcyclecounter()",
    "declare void @llvm.x86.sse2.pause()",
    "declare void @llvm.aarch64.hint(i32)",
)


def emit_entries(spec: EntrySpec, cpu: CpuTarget) -> str:
    """IR text of the module with the three entries."""
    lines = [*_declarations(spec), *_wait_tables(spec)]
    for index, task in enumerate(spec.tasks):
        lines += _task_function(index, task)
    for core in range(len(spec.programs)):
        lines += _core_function(spec, core, cpu, profiled=False)
        lines += _core_function(spec, core, cpu, profiled=True)
    lines += _dispatch("sk_entry", "core", len(spec.programs))
    lines += _dispatch("sk_profiled", "profiled", len(spec.programs))
    lines += _single(spec)
    return "\n".join(lines) + "\n"


def emit_waits(cpu: CpuTarget) -> str:
    """IR text of the module with what the entries call where a wait is not passed at once."""
    return "\n".join([*_INTRINSICS, *_wait_function(cpu), *_wait_many_function(cpu)]) + "\n"


def _declarations(spec: EntrySpec) -> Iterator[str]:
    yield from _INTRINSICS
    yield f"declare i32 @sk_wait({_WAIT_PARAMETERS})"
    yield f"declare i32 @sk_wait_many({_WAIT_MANY_PARAMETERS})"
    kernels = {task.symbol: len(task.operands) for task in spec.tasks if task.symbol is not None}
    for symbol, operands in sorted(kernels.items()):
        yield f"declare void @{symbol}({', '.join(['ptr'] * (operands + 1))}, i64, i64)"


def _field(result: str, name: str, kind: str) -> list[str]:
    """Load a field of the context."""
    return [
        f"  %{result}.p = getelementptr inbounds i8, ptr %ctx, i64 {abi.OFFSET[name]}",
        f"  %{result} = load {kind}, ptr %{result}.p, align 8",
    ]


def _pause(cpu: CpuTarget) -> str:
    if cpu.triple.startswith("x86_64"):
        return "  call void @llvm.x86.sse2.pause()"
    if cpu.triple.startswith("aarch64"):
        return "  call void @llvm.aarch64.hint(i32 1)"
    return ""


def _wait_function(cpu: CpuTarget) -> list[str]:
    """Spin until the counter reaches the threshold; 1 where the runtime says to give up."""
    return f"""
define i32 @sk_wait({_WAIT_PARAMETERS}) noinline nounwind {{
start:
  %limit.p = getelementptr inbounds i8, ptr %ctx, i64 {abi.OFFSET["spin_limit"]}
  %limit = load i32, ptr %limit.p, align 4
  br label %look
look:
  %line = phi i64 [ 0, %start ], [ %line, %pause ], [ %line.next, %fetch ], [ %line, %slow ]
  %spins = phi i32 [ 0, %start ], [ %spins.next, %pause ], [ %spins.next, %fetch ], [ 0, %slow ]
  %seen = load atomic i64, ptr %counter acquire, align 8
  %reached = icmp uge i64 %seen, %threshold
  br i1 %reached, label %done, label %idle
idle:
  %spins.next = add i32 %spins, 1
  %tired = icmp uge i32 %spins.next, %limit
  br i1 %tired, label %slow, label %choose
choose:
  %left = icmp ult i64 %line, %lines
  br i1 %left, label %fetch, label %pause
fetch:
  %offset = mul i64 %line, {LINE_BYTES}
  %address = getelementptr i8, ptr %from, i64 %offset
  call void @llvm.prefetch.p0(ptr %address, i32 0, i32 2, i32 1)
  %second = getelementptr i8, ptr %address, i64 {LINE_BYTES}
  call void @llvm.prefetch.p0(ptr %second, i32 0, i32 2, i32 1)
  %line.next = add i64 %line, {LINES_PER_SPIN}
  br label %look
pause:
{_pause(cpu)}
  br label %look
slow:
  %call.p = getelementptr inbounds i8, ptr %ctx, i64 {abi.OFFSET["wait_slow"]}
  %call = load ptr, ptr %call.p, align 8
  %stop = call i32 %call(ptr %ctx, i32 %core, i32 %producer, i64 %threshold, i32 %wait)
  %stopped = icmp ne i32 %stop, 0
  br i1 %stopped, label %abort, label %look
done:
  ret i32 0
abort:
  ret i32 1
}}""".splitlines()


def _task_function(index: int, task: TaskSpec) -> list[str]:
    head = f"define internal i32 @task_{index}(ptr %ctx) noinline nounwind {{"
    if task.symbol is None:
        call = f"  %r = call i32 %call(ptr %ctx, i32 {task.subop})"
        return [head, *_field("call", "host_call", "ptr"), call, "  ret i32 %r", "}"]
    lines = [head]
    for space in dict.fromkeys(place.space for place in task.operands):
        lines += _field(space.value, space.value, "ptr")
    for i, place in enumerate(task.operands):
        base = place.space.value
        if place.space is BasePointer.IO:
            base = f"io{i}"
            lines.append(f"  %io{i}.p = getelementptr inbounds ptr, ptr %io, i64 {place.slot}")
            lines.append(f"  %io{i} = load ptr, ptr %io{i}.p, align 8")
        lines.append(f"  %op{i} = getelementptr inbounds i8, ptr %{base}, i64 {place.offset}")
    lines += [*_field("scratch", "scratch", "ptr"), *_field("stride", "scratch_stride", "i64")]
    lines.append(f"  %own.n = mul i64 %stride, {task.core}")
    lines.append("  %own = getelementptr inbounds i8, ptr %scratch, i64 %own.n")
    args = ", ".join(f"ptr %op{i}" for i in range(len(task.operands)))
    comma = ", " if args else ""
    lines.append(f"  call void @{task.symbol}({args}{comma}ptr %own, i64 {task.begin}, i64 {task.end})")
    if task.checked is None:
        return [*lines, "  ret i32 0", "}"]
    return [
        *lines,
        f"  %status = load i32, ptr %op{task.checked}, align 4",
        "  %fine = icmp eq i32 %status, 0",
        "  br i1 %fine, label %done, label %tell",
        "done:",
        "  ret i32 0",
        "tell:",
        *_field("call", "host_call", "ptr"),
        f"  call i32 %call(ptr %ctx, i32 {task.subop})",
        "  ret i32 1",
        "}",
    ]


def _core_function(spec: EntrySpec, core: int, cpu: CpuTarget, *, profiled: bool) -> list[str]:
    """A core's straight line of steps. `%failed` is where an abort leaves."""
    kind = "profiled" if profiled else "core"
    lines = [f"define internal i32 @{kind}_{core}(ptr %ctx) noinline nounwind {{", "start:"]
    lines += [*_field("epoch", "epoch", "i64"), *_field("flags", "flags", "ptr"), *_field("blob", "constants", "ptr")]
    if profiled:
        lines += [*_field("events", "events", "ptr"), *_field("estride", "events_stride", "i64")]
        lines.append(f"  %own.e = mul i64 %estride, {core}")
        lines.append("  %stamps = getelementptr inbounds i64, ptr %events, i64 %own.e")
        lines += _stamp(0, cpu)
    lines += _counter("own", core, spec.sets[core])
    can_fail = False
    grouped = {run.start: run for run in wait_runs(spec.programs[core])}
    skip = 0
    for n, step in enumerate(spec.programs[core]):
        if n < skip:
            continue
        if n in grouped:
            can_fail, skip = True, grouped[n].stop
            lines += _wait_many(n, spec, core, len(grouped[n]), profiled)
            continue
        if isinstance(step, SetCount):
            lines.append(f"  %v{n} = add i64 %first.own, {step.count}")
            lines.append(f"  store atomic i64 %v{n}, ptr %flag.own release, align 8")
        elif isinstance(step, WaitFor):
            can_fail = True
            lines += _counter(str(n), step.producer, spec.sets[step.producer])
            lines += _wait(n, step, core)
        elif spec.tasks[step.task].may_fail:
            can_fail = True
            lines += _call_or_fail(n, f"call i32 @task_{step.task}(ptr %ctx)")
        else:
            lines.append(f"  call i32 @task_{step.task}(ptr %ctx)")
        if profiled:
            lines += _stamp(n + 1, cpu)
    lines.append("  ret i32 0")
    if can_fail:
        lines += ["failed:", "  ret i32 1"]
    return [*lines, "}"]


def _counter(name: str, core: int, sets: int) -> list[str]:
    """Where a core's counter is, and what it had reached before this launch."""
    return [
        f"  %first.{name} = mul i64 %epoch, {sets}",
        f"  %flag.{name} = getelementptr inbounds i64, ptr %flags, i64 {core * abi.FLAG_STRIDE}",
    ]


def _call_or_fail(n: int, call: str) -> list[str]:
    """Step n's call, and the way out where it does not give 0."""
    return [
        f"  %r{n} = {call}",
        f"  %bad{n} = icmp ne i32 %r{n}, 0",
        f"  br i1 %bad{n}, label %failed, label %go{n}",
        f"go{n}:",
    ]


def wait_runs(program: Sequence[Step]) -> Iterator[range]:
    """Where at least `WAITS_IN_A_TABLE` waits follow one another."""
    start = 0
    for end in range(len(program) + 1):
        if end == len(program) or not isinstance(program[end], WaitFor):
            if end - start >= WAITS_IN_A_TABLE:
                yield range(start, end)
            start = end + 1


def _wait_tables(spec: EntrySpec) -> Iterator[str]:
    """The runs of waits as data: producer, count, the producer's sets, wait index."""
    for core, program in enumerate(spec.programs):
        for run in wait_runs(program):
            waits = [step for step in program[run.start : run.stop] if isinstance(step, WaitFor)]
            rows = (
                f"[4 x i32] [i32 {w.producer}, i32 {w.count}, i32 {spec.sets[w.producer]}, i32 {w.wait}]" for w in waits
            )
            name = f"@waits_{core}_{run.start}"
            yield f"{name} = internal constant [{len(waits)} x [4 x i32]] [{', '.join(rows)}]"


def _wait_many_function(cpu: CpuTarget) -> list[str]:
    """The waits of a table one after another; with `stamps`, a time stamp behind each. 1 where one gave up."""
    clock = ["  %now = call i64 @llvm.readcyclecounter()"]
    if not cpu.triple.startswith("x86_64"):
        clock = [*_field("clock", "clock", "ptr"), "  %now = call i64 %clock()"]
    call = "call i32 @sk_wait(ptr %ctx, ptr %flag, i64 %t, i32 %core, i32 %producer, i32 %wait, ptr %from, i64 %lines)"
    lines = "\n".join
    return f"""define i32 @sk_wait_many({_WAIT_MANY_PARAMETERS}) noinline nounwind {{
start:
{lines(_field("epoch", "epoch", "i64"))}
{lines(_field("flags", "flags", "ptr"))}
  br label %next
next:
  %i = phi i64 [ 0, %start ], [ %i.next, %passed ]
  %row = getelementptr inbounds [4 x i32], ptr %table, i64 %i
  %producer = load i32, ptr %row, align 4
  %set.p = getelementptr inbounds i32, ptr %row, i64 1
  %set = load i32, ptr %set.p, align 4
  %sets.p = getelementptr inbounds i32, ptr %row, i64 2
  %sets = load i32, ptr %sets.p, align 4
  %wait.p = getelementptr inbounds i32, ptr %row, i64 3
  %wait = load i32, ptr %wait.p, align 4
  %set.wide = zext i32 %set to i64
  %sets.wide = zext i32 %sets to i64
  %first = mul i64 %epoch, %sets.wide
  %t = add i64 %first, %set.wide
  %producer.wide = zext i32 %producer to i64
  %flag.n = mul i64 %producer.wide, {abi.FLAG_STRIDE}
  %flag = getelementptr inbounds i64, ptr %flags, i64 %flag.n
  %seen = load atomic i64, ptr %flag acquire, align 8
  %reached = icmp uge i64 %seen, %t
  br i1 %reached, label %met, label %spin
spin:
  %r = {call}
  %bad = icmp ne i32 %r, 0
  br i1 %bad, label %failed, label %met
met:
  %plain = icmp eq ptr %stamps, null
  br i1 %plain, label %passed, label %stamp
stamp:
{lines(clock)}
  %e = getelementptr inbounds i64, ptr %stamps, i64 %i
  store i64 %now, ptr %e, align 8
  br label %passed
passed:
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, %count
  br i1 %more, label %next, label %done
done:
  ret i32 0
failed:
  ret i32 1
}}""".splitlines()


def _wait_many(n: int, spec: EntrySpec, core: int, count: int, profiled: bool) -> list[str]:
    """Call `sk_wait_many` for the run that begins at step n."""
    step = spec.programs[core][n]
    assert isinstance(step, WaitFor)
    lines = prefetch_lines(step)
    stamps = f"%stamps{n}" if profiled else "null"
    call = (
        f"call i32 @sk_wait_many(ptr %ctx, ptr @waits_{core}_{n}, i64 {count}, i32 {core}, ptr %from{n}, "
        f"i64 {lines}, ptr {stamps})"
    )
    return [
        *_weights(n, step),
        *([f"  %stamps{n} = getelementptr inbounds i64, ptr %stamps, i64 {n + 1}"] if profiled else []),
        *_call_or_fail(n, call),
    ]


def prefetch_lines(step: WaitFor) -> int:
    """Cache lines that a wait may prefetch, in whole spins."""
    return -(-step.weight_bytes // (LINE_BYTES * LINES_PER_SPIN)) * LINES_PER_SPIN


def _weights(n: int, step: WaitFor) -> list[str]:
    """Where the constants begin that the wait of step n prefetches."""
    place = step.weights
    if place.space is BasePointer.CONSTANTS:
        return [f"  %from{n} = getelementptr i8, ptr %blob, i64 {place.offset}"]
    return [
        *_field(f"from{n}.io", "io", "ptr"),
        f"  %from{n}.p = getelementptr inbounds ptr, ptr %from{n}.io, i64 {place.slot}",
        f"  %from{n}.base = load ptr, ptr %from{n}.p, align 8",
        f"  %from{n} = getelementptr i8, ptr %from{n}.base, i64 {place.offset}",
    ]


def _wait(n: int, step: WaitFor, core: int) -> list[str]:
    whole = prefetch_lines(step)
    call = (
        f"call i32 @sk_wait(ptr %ctx, ptr %flag.{n}, i64 %t{n}, i32 {core}, i32 {step.producer}, "
        f"i32 {step.wait}, ptr %from{n}, i64 {whole})"
    )
    return [
        f"  %t{n} = add i64 %first.{n}, {step.count}",
        f"  %s{n} = load atomic i64, ptr %flag.{n} acquire, align 8",
        f"  %ok{n} = icmp uge i64 %s{n}, %t{n}",
        f"  br i1 %ok{n}, label %go{n}, label %spin{n}",
        f"spin{n}:",
        *_fetch_data(n, step.data),
        *_weights(n, step),
        *_call_or_fail(n, call),
    ]


def _fetch_data(n: int, lines: Sequence[Location]) -> list[str]:
    """Prefetch lines that step n's producer hands over, with the non-temporal hint."""
    code: list[str] = []
    bases: dict[tuple[BasePointer, int], str] = {}
    for i, line in enumerate(lines):
        key = (line.space, line.slot)
        if key not in bases:
            base = bases[key] = f"base{n}.{len(bases)}"
            if line.space is BasePointer.IO:
                code += _field(f"{base}.io", "io", "ptr")
                code.append(f"  %{base}.p = getelementptr inbounds ptr, ptr %{base}.io, i64 {line.slot}")
                code.append(f"  %{base} = load ptr, ptr %{base}.p, align 8")
            else:
                code += _field(base, line.space.value, "ptr")
        code.append(f"  %line{n}.{i} = getelementptr i8, ptr %{bases[key]}, i64 {line.offset}")
        code.append(f"  call void @llvm.prefetch.p0(ptr %line{n}.{i}, i32 0, i32 0, i32 1)")
    return code


def _stamp(index: int, cpu: CpuTarget) -> list[str]:
    """Write a time stamp: the CPU's own counter on x86, the runtime's clock elsewhere."""
    lines = [f"  %c{index} = call i64 @llvm.readcyclecounter()"]
    if not cpu.triple.startswith("x86_64"):
        lines = [*_field(f"clock{index}", "clock", "ptr"), f"  %c{index} = call i64 %clock{index}()"]
    lines.append(f"  %e{index} = getelementptr inbounds i64, ptr %stamps, i64 {index}")
    lines.append(f"  store i64 %c{index}, ptr %e{index}, align 8")
    return lines


def _dispatch(name: str, kind: str, cores: int) -> list[str]:
    """`name(ctx, core)`: go to the core's own function."""
    lines = [f"define i32 @{name}(ptr %ctx, i32 %core) nounwind {{", "  switch i32 %core, label %none ["]
    lines += [f"    i32 {c}, label %c{c}" for c in range(cores)]
    lines += ["  ]", "none:", "  ret i32 0"]
    for c in range(cores):
        lines += [f"c{c}:", f"  %r{c} = tail call i32 @{kind}_{c}(ptr %ctx)", f"  ret i32 %r{c}"]
    return [*lines, "}"]


def _single(spec: EntrySpec) -> list[str]:
    """`sk_single(ctx, core, subop)`: the tasks of one sub-operator that are this core's, through a table of task
    functions."""
    cores = len(spec.programs)
    table = [["null"] * cores for _ in range(spec.subops)]
    for index, task in enumerate(spec.tasks):
        table[task.subop][task.core] = f"@task_{index}"
    entries = ", ".join(f"ptr {cell}" for row in table for cell in row)
    size = max(1, spec.subops * cores)
    return f"""
@sk_tasks = internal constant [{size} x ptr] [{entries or "ptr null"}]
define i32 @sk_single(ptr %ctx, i32 %core, i32 %subop) nounwind {{
  %row = mul i32 %subop, {cores}
  %cell = add i32 %row, %core
  %inside = icmp ult i32 %core, {cores}
  br i1 %inside, label %find, label %none
find:
  %index = zext i32 %cell to i64
  %slot = getelementptr inbounds ptr, ptr @sk_tasks, i64 %index
  %task = load ptr, ptr %slot, align 8
  %absent = icmp eq ptr %task, null
  br i1 %absent, label %none, label %run
run:
  %r = call i32 %task(ptr %ctx)
  ret i32 %r
none:
  ret i32 0
}}""".splitlines()
