"""The profile of the machine at hand: measured once, in a second or two, and kept in the user's data directory under
what the machine is.

Model: a machine is what the system says of its CPU (model, instruction sets, caches, which CPUs share what), of its
hypervisor and of its kernel: nothing that changes with a restart, or that names somebody. Where SK_MACHINE names a file
that profile is taken, with "default" what is believed of any machine.

The first compilation measures, or `superkernel machine` ahead of it. Where something else runs meanwhile, as beside
other guests of one host it always may, figures are no more than what the machine can do at least: so much of them is
kept, the defaults where these promise more, and a compilation that comes `RETRY_S` later measures again. Where nothing
is kept at all the defaults hold, and how many dot products of reduced precision, and products of tiles, a core does per
f32 multiply-add, to the nearest power of two, which some 20 ms tell: CPUs differ fourfold there.

Invariants: one process measures at a time; others that compile wait for what it finds. What was measured undisturbed
stays until `measured_again`.

Beside the profile stand the times of kernels that `superkernel tune` measured. They are of this machine: where
SK_MACHINE names the file of a profile, none is known.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from fcntl import LOCK_EX, LOCK_NB, flock
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any, TextIO

from superkernel import _core
from superkernel.core import settings
from superkernel.core.errors import FileFormatError, MachineError
from superkernel.core.files import exists, replacing, whole
from superkernel.core.json_text import parse_json
from superkernel.core.limits import usable_memory_bytes
from superkernel.core.version import sources_digest
from superkernel.core.warn import warn
from superkernel.target.cpu import THREADS_MAX
from superkernel.target.machine import DEFAULT, SCHEMA, MachineProfile, load_profile, raised_by, rounded
from superkernel.target.timings import NO_TIMINGS, Timings, load_timings, timings_text

GROWTH_MIN = 1.3  # of the rate of more readers together, below which it is measured again...
READ_AGAIN = 3  # ...so often
BUDGET_S = 1.5  # of measuring; what is left then is measured with fewer numbers of cores
ONE_BYTES_MAX = 256 << 20  # that one core reads to find the end of the caches
ALL_BYTES_MAX = 1 << 30  # that all cores read
MEMORY_SHARE = 8  # and at most one part in so many of the memory
DISTURBED_MAX = 0.05  # share of the trials, above which figures say what the machine can do at least
LOCKED_S_MAX = 5.0
RETRY_S = 3600  # behind a measurement that others disturbed
NEAR_SHARE = 0.4  # of the median hand-over, below which two CPUs are of one core
KNEE_MIN = 1.3  # how much faster a cache must be than what is behind it, to show

_RATES = {
    "f32_avx512": "avx512", "f32_avx2": "avx2", "f32_plain": "plain", "bf16_dot": "bf16", "int8_dot": "int8",
    "bf16_tiles": "amx_bf16", "int8_tiles": "amx_int8",
}  # fmt: skip


_DOTS = {"bf16_dot": 2, "int8_dot": 4, "bf16_tiles": 16, "int8_tiles": 32}  # multiply-adds in the time of one of f32
_DOT_TRIALS = 3
_SHARES = (0.125, 0.25, 0.5, 1.0, 2.0)


class MachineWarning(UserWarning):
    """The machine's profile could not be kept or read."""


def may_use_tiles() -> bool:
    """Whether the CPU has AMX's tiles and the system lets this process use them; it is asked once, for all threads."""
    return _core.may_use_tiles()


@cache
def machine_profile() -> MachineProfile:
    """The profile that kernels for the host are compiled against: the one that SK_MACHINE names, else the one that was
    measured and kept, else one that is measured now, else the defaults with the caches that the system reports. Raises
    FileFormatError where SK_MACHINE names none."""
    named, path = settings.machine_file(), profile_path()
    if named is not None:
        return DEFAULT if named == "default" else load_profile(named)
    if path is None:
        return _unmeasured()
    try:
        kept = _kept(path)
        return kept if kept is not None and not _is_disturbed(kept) else _measured_now(path)
    except FileFormatError as error:
        warn(
            f"the machine's profile is not used: {error}; `superkernel machine --again` makes a new one", MachineWarning
        )
        return _unmeasured()


def _kept(path: Path) -> MachineProfile | None:
    """What stands in a file. Raises FileFormatError where that is no profile."""
    return _raised(load_profile(path)) if exists(path) else None


def _is_disturbed(found: MachineProfile) -> bool:
    return found.disturbed > DISTURBED_MAX


def _measured_now(path: Path) -> MachineProfile:
    """Measured and kept, unless that was tried a moment ago. Raises FileFormatError where another process keeps what is
    no profile."""
    known = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.with_suffix(".tried"), "a+", encoding="utf-8") as tried:
            locked = _locked(tried)
            known = _kept(path)
            if not locked or (known is not None and not _is_disturbed(known)):
                return known or _unmeasured()
            tried.seek(0)
            if _is_recent(tried.read()):
                return known or _unmeasured()
            tried.truncate(0)
            tried.write(str(time.time()))  # ahead of it: what ends this process ends no other one
            tried.flush()
            try:
                known = _at_least(measure(), known)
            except MachineError:  # no threads, no memory
                return known or _unmeasured()
            except BaseException:  # an interrupt, or what another signal's handler raises
                tried.truncate(0)
                raise
            _keep(known, path)
            return known
    except OSError as error:  # no place of the user's own
        if error.errno is None:  # not of the system: a signal handler's TimeoutError
            raise
    return known or _unmeasured()


def _at_least(found: MachineProfile, known: MachineProfile | None) -> MachineProfile:
    """What was measured undisturbed; else that and what was believed before, whichever is faster."""
    return raised_by(known or _unmeasured(), found) if _is_disturbed(found) else found


def _locked(file: TextIO) -> bool:
    """Whether a file could be locked, as soon as nobody else has it; no longer than measuring takes."""
    end = time.monotonic() + LOCKED_S_MAX
    while True:
        try:
            flock(file, LOCK_EX | LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(0.02)


def _is_recent(moment: str) -> bool:
    """Whether a time, in seconds since 1970, is less than `RETRY_S` ago; what is no time is not."""
    try:
        return 0 <= time.time() - float(moment) < RETRY_S
    except ValueError:
        return False


def _keep(found: MachineProfile, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as file:
        file.write(found.text().encode())


def _unmeasured() -> MachineProfile:
    """The defaults, with the sizes of a core's own caches, which need no measuring, and its dot products."""
    caches = _caches(_core.allowed_cpus()[0])
    l1, l2 = (caches.get(level, (size, ""))[0] for level, size in ((1, DEFAULT.l1_bytes), (2, DEFAULT.l2_bytes)))
    rate = DEFAULT.f32_avx512 or 0.0
    dots: dict[str, Any] = {field: share * _DOTS[field] * rate for field, share in _dot_shares().items()}
    return replace(DEFAULT, l1_bytes=l1, l2_bytes=l2, **dots)


def _dot_shares() -> dict[str, float]:
    """By field of a profile, vectors of dot products per vector of f32 multiply-adds (of tiles: of so many as AMX does
    at best), as kept or as measured now; none where the CPU has none, or where others disturb."""
    kept = profile_path()
    path = None if kept is None else kept.with_suffix(".dots")
    try:
        found = parse_json(path.read_bytes()) if path is not None else None
        if isinstance(found, dict) and all(found.get(field) in (0, *_SHARES) for field in _DOTS):
            return {field: found[field] for field in _DOTS if found[field]}
    except (OSError, ValueError):
        pass
    try:
        probe = _core.Probe(_core.allowed_cpus()[:1])
        rates = dict.fromkeys(("avx512", *(_RATES[field] for field in _DOTS)), 0.0)
        for _ in range(_DOT_TRIALS):
            rates = {kind: max(best, probe.rate(kind)) for kind, best in rates.items()}
    except MachineError:  # no threads here
        return {}
    if rates["avx512"] == 0.0 or probe.disturbed > DISTURBED_MAX * probe.trials:
        return {}
    shares = {field: _nearest_share(rates[_RATES[field]] / (rates["avx512"] * n)) for field, n in _DOTS.items()}
    if path is not None:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with whole(path) as file:
                file.write(json.dumps(shares).encode())
    return {field: share for field, share in shares.items() if share}


def _nearest_share(share: float) -> float:
    return min(_SHARES, key=lambda s: abs(math.log(s / share))) if share > 0 else 0.0


def has_profile() -> bool:
    """Whether SK_MACHINE names a profile, or one of this machine is kept."""
    path = profile_path()
    return settings.machine_file() is not None or (path is not None and exists(path))


def measured_again() -> MachineProfile:
    """A new profile in the place of the one that was kept. Where others kept the machine busy meanwhile, one that was
    measured undisturbed stays; else what the machine can do at least is kept."""
    found, path = measure(), profile_path()
    kept = None
    if path is not None:
        with suppress(FileFormatError):
            kept = _kept(path)
    if kept is None or _is_disturbed(kept) or not _is_disturbed(found):
        made = _at_least(found, kept)
    else:
        made = kept
    if _is_disturbed(found):
        text = f"{found.disturbed:.0%} of the trials that measure this machine were disturbed"
        what = "the profile from before is kept" if made is kept else "what it can do at least is kept"
        warn(f"{text}: {what}; run `superkernel machine --again` when it is idle", MachineWarning)
    if path is not None and made is not kept:
        try:
            _keep(made, path)
            path.with_suffix(".tried").write_text(str(time.time()), encoding="utf-8")
        except OSError as error:
            warn(f"the machine's profile is not kept: {error}", MachineWarning)
    machine_profile.cache_clear()
    return made


def profile_path() -> Path | None:
    """Where the profile of this machine is kept; None where there is no place."""
    directory = settings.data_directory()
    return None if directory is None else directory / "machines" / f"{identity()[:16]}.json"


@cache
def kept_timings() -> Timings:
    """The times of kernels that were measured on this machine, with the sources at hand."""
    path = timings_path()
    if path is None or not exists(path):
        return NO_TIMINGS
    try:
        return load_timings(path, identity(), _kernel_sources())
    except FileFormatError as error:
        warn(f"no measured times are used: {error}; `superkernel tune` makes new ones", MachineWarning)
        return NO_TIMINGS


def keep_timings(timings: Timings) -> None:
    """In the place of those that were kept. Raises MachineError where they cannot be."""
    path = timings_path()
    if path is None:
        hint = "times are of the machine at hand" if settings.machine_file() else "the user has no data directory"
        raise MachineError("measured times cannot be kept", location="SK_MACHINE", hint=hint)
    with suppress(OSError):  # `replacing` says what is wrong
        path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, "the measured times") as file:
        file.write(timings_text(timings, identity(), _kernel_sources()).encode())


def timings_path() -> Path | None:
    """Where the measured times of this machine are kept; None where there is no place, or SK_MACHINE names a file."""
    profile = profile_path() if settings.machine_file() in (None, "default") else None
    return None if profile is None else profile.with_suffix(".timings")


def _kernel_sources() -> str:
    """What makes kernels' code."""
    return sources_digest("codegen/host", "scheduler/families")


@cache
def identity() -> str:
    """A digest of what the machine is."""
    rows = [*_cpu_rows(), platform.machine(), *_kernel_version(), _text(Path("/sys/hypervisor/type"))]
    cpus = _core.allowed_cpus()
    rows += [f"{cpu}: {_shares(cpu)}" for cpu in cpus]
    return hashlib.sha256("\n".join([str(SCHEMA), *rows]).encode()).hexdigest()


def _cpu_rows() -> list[str]:
    """What the system says of the first CPU."""
    first = _text(Path("/proc/cpuinfo"), 1 << 14).split("\n\n")[0]
    return re.findall(r"^(?:vendor|cpu family|model|stepping|flags|CPU|Features)[^:]*:.*$", first, re.MULTILINE)


def _kernel_version() -> tuple[str, ...]:
    """Its first two numbers: what a new one of these does to waking and to memory is to be measured."""
    return tuple(platform.release().split(".")[:2])


def _text(path: Path, nbytes: int = 4096) -> str:
    """The beginning of a file, "" where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(nbytes).strip()
    except OSError:
        return ""


def _cpu_name() -> str:
    rows = dict(row.split(":", 1) for row in _cpu_rows() if ":" in row)
    names = {key.strip(): value.strip() for key, value in rows.items()}
    return names.get("model name") or names.get("CPU part") or platform.machine()


def _caches(cpu: int) -> dict[int, tuple[int, str]]:
    """Size and sharers of each level of a CPU's data caches, as the system reports them."""
    found = {}
    for index in sorted(Path(f"/sys/devices/system/cpu/cpu{cpu}/cache").glob("index*")):
        kind, level, size = (_text(index / name) for name in ("type", "level", "size"))
        units = {"K": 1 << 10, "M": 1 << 20}
        if kind != "Instruction" and level.isdigit() and size[-1:] in units and size[:-1].isdigit():
            found[int(level)] = int(size[:-1]) * units[size[-1]], _text(index / "shared_cpu_list")
    return found


def _shares(cpu: int) -> tuple[str, str, str]:
    """What a CPU shares its core, its last cache and its memory with, by the system's words."""
    topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
    nodes = [p.name for p in Path(f"/sys/devices/system/cpu/cpu{cpu}").glob("node*")]
    caches = _caches(cpu)
    package = _text(topology / "physical_package_id")
    last = f"{package}/{caches[max(caches)][1]}" if caches else package
    return _text(topology / "thread_siblings_list") or str(cpu), last, "".join(sorted(nodes)) or package


def _numbered(names: Iterable[str]) -> tuple[int, ...]:
    """Groups by number, in the order in which they come."""
    order: dict[str, int] = {}
    return tuple(order.setdefault(name, len(order)) for name in names)


def joined(groups: Sequence[int], near: Sequence[Sequence[bool]]) -> tuple[int, ...]:
    """Groups, where members of two that are near to one another are of one."""
    found = [*groups]
    for i, row in enumerate(near):
        for j, is_near in enumerate(row[:i]):
            if is_near and found[i] != found[j]:
                found = [found[j] if g == found[i] else g for g in found]
    return _numbered(map(str, found))


def paired(cores: Sequence[int], near: Sequence[Sequence[bool]]) -> tuple[int, ...]:
    """Cores, where two CPUs that are near to one another are of one. A core has two such at most: where one CPU is near
    to several, the host moves its guest's CPUs from core to core meanwhile, and what was seen holds no longer."""
    found = joined(cores, near)
    most = max((found.count(core) for core in found), default=0)
    return found if most <= max(2, *map(cores.count, cores)) else _numbered(map(str, cores))


def near_pairs(handover_ns: Sequence[Sequence[float]], share: float) -> list[list[bool]]:
    """Which pairs hand over in less than a share of the median pair's time."""
    pairs = sorted(ns for i, row in enumerate(handover_ns) for ns in row[:i])
    limit = share * pairs[len(pairs) // 2] if pairs else 0.0
    return [[i != j and ns < limit for j, ns in enumerate(row)] for i, row in enumerate(handover_ns)]


def knee(sizes: Sequence[int], rates: Sequence[float], reported: int) -> int:
    """The size at which reads fall from a cache's rate to that of what is behind it, half way on a scale of ratios;
    `reported` where no such fall shows."""
    if len(rates) < 2 or max(rates) < KNEE_MIN * min(rates):
        return reported
    top, bottom = max(rates), min(rates)
    middle = (top * bottom) ** 0.5
    last = max(i for i, rate in enumerate(rates) if rate >= middle)
    return sizes[min(last, len(sizes) - 1)]


def grown(read: Callable[[], float], fewer: Sequence[float]) -> float:
    """A rate of more readers together than of the `fewer`; the best of some readings where it is hardly more than
    theirs: a level in full use, or a disturbance."""
    found, least = read(), GROWTH_MIN * max(fewer, default=0.0)
    for _ in range(READ_AGAIN):
        if found >= least:
            break
        found = max(found, read())
    return found


def no_less(totals: Sequence[float], behind: Sequence[float] | None = None) -> list[float]:
    """Rates of more and more readers together, and of a level and what lies behind it: less than of fewer, or of that,
    is what a disturbance left."""
    return list(accumulate(map(max, totals, behind or totals), max))


def _raised(made: MachineProfile) -> MachineProfile:
    """A profile with rates of more readers no less than those of fewer: as measured, and as a version kept it that did
    not see to that."""
    own, same = no_less(made.l3_own, made.memory_own), no_less(made.l3_same, made.memory_same)
    far, far_same = no_less(made.memory_own), no_less(made.memory_same)
    return replace(made, l3_own=(*own,), l3_same=(*same,), memory_own=(*far,), memory_same=(*far_same,))


def measure() -> MachineProfile:
    """The machine at hand, now; about a second. Raises MachineError where the system refuses threads or memory."""
    start = time.monotonic()
    cpus = _core.allowed_cpus()[:THREADS_MAX]
    probe, count = _core.Probe(cpus), len(cpus)
    caches = _caches(cpus[0])
    l1, l2, l3 = (
        caches.get(level, (default, ""))[0] for level, default in ((1, DEFAULT.l1_bytes), (2, DEFAULT.l2_bytes), (3, 0))
    )
    l3 = l3 or l2
    all_max = min(ALL_BYTES_MAX, usable_memory_bytes() // MEMORY_SHARE)
    rates: dict[str, Any] = {field: rounded(probe.rate(kind)) or None for field, kind in _RATES.items()}
    l1_rate, l2_rate = probe.read(l1 // 2), probe.read(l2 // 2)
    handover = [[0.0] * count for _ in cpus]
    for i in range(count):
        for j in range(i):
            handover[i][j] = handover[j][i] = rounded(probe.handover_ns(j, i))
    far = min(ONE_BYTES_MAX, all_max, max(4 * l3, 8 * l2))
    sizes, alone = _ladder(2 * l2, far), list[float]()
    for size in reversed(sizes):  # so that memory is asked for once
        if time.monotonic() - start > BUDGET_S / 2:
            break
        alone.insert(0, probe.read(size))
    sizes = sizes[len(sizes) - len(alone) :]
    shown = min(knee(sizes, alone, l3), 2 * l3)
    near_bytes = max(2 * l2, min(shown // 2, 4 * l2))
    readers = list[int]()
    own, same, own_far, same_far = (list[float]() for _ in range(4))
    for cores in _counts(count):
        if readers and cores < count and time.monotonic() - start > BUDGET_S:
            continue
        readers.append(cores)
        part = max(l2 + l2 // 2, min(near_bytes, shown // cores))
        far_part = min(max(2 * shown // cores, 4 * l2), all_max // cores)
        all_far = min(2 * shown, all_max)
        for totals, nbytes, alike in (
            (own, part, False),
            (same, near_bytes, True),
            (own_far, far_part, False),
            (same_far, all_far, True),
        ):
            totals.append(grown(partial(probe.read, nbytes, cores, alike), totals))
    woken = _counts(max(1, count - 1))
    wakes = [probe.wake_ns(n) if count > 1 else DEFAULT.waking_ns(n) for n in woken]
    code = [probe.code_line_ns(size) for size in (16 << 10, l2 // 2, 4 * l2)]
    siblings, clusters, nodes = zip(*map(_shares, cpus), strict=True)
    by_time = near_pairs(handover, NEAR_SHARE)
    found = MachineProfile(
        cpu=f"{_cpu_name()}, {count} CPUs",
        identity=identity(),
        l1_bytes=l1,
        l2_bytes=l2,
        l3_bytes=shown,
        core_of=paired(_numbered(siblings), by_time),
        cluster_of=joined(_numbered(clusters), by_time),
        node_of=tuple(int("".join(filter(str.isdigit, name)) or 0) for name in nodes),
        **rates,
        l1_bytes_per_ns=rounded(l1_rate),
        l2_bytes_per_ns=rounded(l2_rate),
        readers=tuple(readers),
        l3_own=tuple(map(rounded, own)),
        l3_same=tuple(map(rounded, same)),
        memory_own=tuple(map(rounded, own_far)),
        memory_same=tuple(map(rounded, same_far)),
        handover_ns=tuple(map(tuple, handover)),
        line_ns=rounded(probe.line_ns()) if count > 1 else DEFAULT.line_ns,
        woken=tuple(woken),
        wake_ns=tuple(map(rounded, wakes)),
        code_line_ns=tuple(map(rounded, code)) if min(code) > 0 else (),
        disturbed=round(probe.disturbed / max(1, probe.trials), 2),
    )
    return _raised(found)


def _counts(cores: int) -> list[int]:
    """1, 2, 4, 8, ... and all."""
    return sorted({*(1 << i for i in range(cores.bit_length()) if 1 << i < cores), cores})


def _ladder(low: int, high: int) -> list[int]:
    """Sizes up to the last, two per doubling."""
    sizes = [low]
    while sizes[-1] < high:
        sizes.append(min(high, sizes[-1] * 3 // 2 if len(sizes) % 2 else sizes[-2] * 2))
    return sizes
