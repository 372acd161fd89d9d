"""From the benchmark's JSON to text: the terminal's table and docs/performance.md.

    python bench/document.py [RESULTS.json]

writes docs/performance.md and .svg from docs/performance.json (or from RESULTS.json, which it copies there).

The page is a function of the JSON alone; a test compares it with what the committed JSON gives. Losses are shown like
wins, and what was not measured is named with its reason.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import verdict
from plot import svg
from stats import geometric_mean

DOCS = Path(__file__).resolve().parent.parent / "docs"
OURS, AGAIN, SINGLE = "superkernel", "superkernel-again", "superkernel-1t"
OTHERS_SHARE_MAX = 0.02  # of all CPU time, used by other programs during a workload
CONTROL_MAX = 1.05  # ours against ours

Results = Mapping[str, Any]
Row = Mapping[str, Any]


def time_text(ns: float) -> str:
    """Three digits and a unit."""
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if ns >= size:
            return f"{ns / size:.3g} {unit}" if ns < 999.5 * size else f"{ns / size:.0f} {unit}"
    return f"{ns:.0f} ns"


def measured(results: Results) -> list[Row]:
    """The workloads on which ours was timed."""
    return [w for w in results["workloads"] if "median_ns" in w.get("runners", {}).get(OURS, {})]


def rivals(workload: Row, precision: str = "f32") -> dict[str, Row]:
    """Others' rows that were timed, by name."""
    return {
        name: row
        for name, row in workload["runners"].items()
        if not name.startswith(OURS) and row["precision"] == precision and "times_ours" in row
    }


def best(workload: Row) -> tuple[str, Row] | None:
    """The fastest rival in f32."""
    found = rivals(workload)
    if not found:
        return None
    name = min(found, key=lambda n: float(found[n]["times_ours"][0]))
    return name, found[name]


def speedups(workloads: Sequence[Row]) -> list[float]:
    """The best rival's time over ours, per workload that has a rival."""
    pairs = [best(w) for w in workloads]
    return [float(pair[1]["times_ours"][0]) for pair in pairs if pair is not None]


def noise(results: Results) -> list[str]:
    """Why the figures should not be trusted; empty where nothing speaks against them."""
    reasons = []
    rows = measured(results)
    busy = [w["name"] for w in rows if w["others_cpu_share"] > OTHERS_SHARE_MAX]
    if busy:
        most = max(w["others_cpu_share"] for w in rows)
        reasons.append(f"other programs used up to {most:.0%} of the CPUs during {len(busy)} of {len(rows)} workloads")
    control = [w["runners"][AGAIN]["times_ours"][0] for w in rows if "times_ours" in w["runners"].get(AGAIN, {})]
    off = [c for c in control if max(c, 1 / c) > CONTROL_MAX]
    if off:
        worst = max(max(c, 1 / c) for c in off)
        reasons.append(
            f"ours against ours, which should be 1, was off by more than {CONTROL_MAX - 1:.0%} on {len(off)} of "
            f"{len(control)} workloads, by up to {worst:.2f}x"
        )
    if results["settings"]["quick"]:
        reasons.append("it was a `--quick` run")
    return reasons


def shared_cores_text(results: Results) -> str:
    """How often the machine's CPUs were no cores of their own; empty where that was not looked at, or never so."""
    found = [w["slices"] for w in measured(results) if "slices" in w]
    taken, repeated = (sum(s[key] for s in found) for key in ("taken", "repeated"))
    if not repeated:
        return ""
    return (
        f"{repeated} of {taken + repeated} slices were taken again: meanwhile the machine's host had put both CPUs on "
        "one core (`bench/cores.py`)."
    )


def ratio_text(times: Sequence[float]) -> str:
    return f"{times[0]:.2f} [{times[1]:.2f}, {times[2]:.2f}]"


def main_rows(results: Results) -> list[list[str]]:
    """One row per workload: ours, p99, best rival, ratio, bound, scaling."""
    table = []
    for w in measured(results):
        ours, single, pair, limit = w["runners"][OURS], w["runners"].get(SINGLE, {}), best(w), w["limit"]
        interval = f"[{time_text(ours['low_ns'])}, {time_text(ours['high_ns'])}]"
        table.append(
            [
                w["name"] + (" *" if w["dispatch_bound"] else ""),
                f"{time_text(ours['median_ns'])} {interval}",
                time_text(ours["p99_ns"]),
                f"{pair[0]} {time_text(pair[1]['median_ns'])}" if pair else "-",
                ratio_text(pair[1]["times_ours"]) if pair else "-",
                f"{time_text(limit['ns'])} ({limit['limited_by']})",
                f"{ours['median_ns'] / limit['ns']:.2f}",
                f"{single['times_ours'][0]:.2f}" if "times_ours" in single else "-",
            ]
        )
    return table


MAIN_HEAD = ["workload", "ours", "p99", "best rival", "rival / ours", "lower bound", "ours / bound", "1 -> n threads"]


def rival_rows(results: Results) -> tuple[list[str], list[list[str]]]:
    """Every runner's time over ours; why where there is none."""
    names = [n for n in _runners(results) if n not in (OURS, SINGLE)]
    table = []
    for w in measured(results):
        cells = []
        for name in names:
            row = w["runners"].get(name, {"status": "-"})
            cells.append(f"{row['times_ours'][0]:.2f}" if "times_ours" in row else str(row["status"]))
        table.append([w["name"], *cells])
    return ["workload", *names], table


def _runners(results: Results) -> list[str]:
    found: dict[str, None] = {}
    for w in results["workloads"]:
        found.update(dict.fromkeys(w.get("runners", {})))
    return list(found)


def summary_lines(results: Results) -> list[str]:
    """What the whole says: share of wins, means, the greatest loss."""
    rows = measured(results)
    ratios, small = speedups(rows), speedups([w for w in rows if w["dispatch_bound"]])
    if not ratios:
        return ["No rival was timed."]
    wins = sum(r > 1 for r in ratios)
    lines = [
        f"Faster than the best f32 rival on {wins} of {len(ratios)} workloads; geometric mean of best rival / ours "
        f"{geometric_mean(ratios):.2f}; least {min(ratios):.2f}."
    ]
    if small:
        lines.append(f"On the {len(small)} dispatch-bound workloads (*): geometric mean {geometric_mean(small):.2f}.")
    losses = [(best(w), w["name"]) for w in rows if best(w) is not None]
    lost = [
        f"{name} ({pair[1]['times_ours'][0]:.2f}, {pair[0]})"
        for pair, name in losses
        if pair and pair[1]["times_ours"][0] < 1
    ]
    lines.append(f"Slower than the best rival: {', '.join(lost)}." if lost else "Slower than the best rival: none.")
    return lines


def verdicts(results: Results) -> list[verdict.Verdict]:
    """What to think of each workload on which ours was timed."""
    found = []
    for w in measured(results):
        single, pair = w["runners"].get(SINGLE, {}), best(w)
        scaling = float(single["times_ours"][0]) if "times_ours" in single else None
        rival = float(pair[1]["times_ours"][0]) if pair else None
        found.append(verdict.judge(w, results["limits"], int(results["settings"]["threads"]), scaling, rival))
    return found


def boundary_lines(results: Results) -> list[str]:
    """The cost of a boundary that is truly needed."""
    figures = results["boundary"]
    if not figures:
        return ["Not measured: one CPU."]
    lines = [
        f"A chain of {figures['boundaries'] + 1} products [1, 128] x [128, 128] on two cores with "
        f"{figures['boundaries']} boundaries, each of which both must wait at ({figures['waits']} waits): "
        f"{time_text(figures['two_cores_ns'])}; one core's half of the work, alone: "
        f"{time_text(figures['half_alone_ns'])}; both halves with waits taken out: "
        f"{time_text(figures['without_waits_ns'])}.",
        f"Cost per boundary, all that exchanging adds to the half alone: {_cost(figures, 'cost')} of the core-to-core "
        f"round trip ({figures['round_trip_ns']:.0f} ns, measured in turn). Of that waiting, what goes where waits are "
        f"taken out: {_cost(figures, 'waiting')}.",
    ]
    if "command" in figures:
        lines.append(f"Measured apart, {figures['started_utc']} UTC, by `{figures['command']}`.")
    return lines


def _cost(figures: Mapping[str, Any], name: str) -> str:
    """A cost in ns and in round trips, each with its interval."""
    ns, share = figures[f"{name}_ns"], figures[f"{name}_per_round_trip"]
    return f"{ns[0]:.0f} ns [{ns[1]:.0f}, {ns[2]:.0f}], that is {share[0]:.2f} [{share[1]:.2f}, {share[2]:.2f}]"


def left_out(results: Results) -> list[str]:
    """What was not timed, with the reason; runners that nowhere were, once."""
    lines = [f"{w['name']}: needs {', '.join(w['absent'])}" for w in results["workloads"] if "absent" in w]
    for name in _runners(results):
        rows = [(w["name"], w["runners"][name]) for w in results["workloads"] if name in w.get("runners", {})]
        bad = [(workload, row) for workload, row in rows if "reason" in row]
        if bad and len(bad) == len(rows) and len({row["reason"] for _, row in bad}) == 1:
            lines.append(f"{name}: {bad[0][1]['reason']}")
        else:
            lines += [f"{name} on {workload}: {row['reason']}" for workload, row in bad]
    return lines


def _aligned(head: list[str], rows: Sequence[list[str]]) -> list[str]:
    table = [head, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    return ["  ".join(cell.ljust(n) for cell, n in zip(row, widths, strict=True)).rstrip() for row in table]


def verdict_text(results: Results) -> str:
    """The verdict for a terminal."""
    found = verdicts(results)
    return "\n".join([*_aligned(verdict.HEAD, [v.cells() for v in found]), "", verdict.summary(found)])


def terminal(results: Results) -> str:
    """The main table and the verdict, aligned, with what to think of them."""
    lines = [*_aligned(MAIN_HEAD, main_rows(results)), "", verdict_text(results), ""]
    lines += [*summary_lines(results), *boundary_lines(results)]
    lines += [f"left out: {text}" for text in left_out(results)]
    lines += [f"NOISY: {text}" for text in noise(results)]
    return "\n".join(lines)


# The page -------------------------------------------------------------------------------------------------------------


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)]


def _conditions(results: Results) -> list[str]:
    host, settings = results["machine"], results["settings"]
    kind = "virtual machine" if host["virtual"] else "machine"
    versions = ", ".join(f"{name} {number}" for name, number in results["versions"].items())
    return [
        f"- Machine: {host['cpu']}, {host['cpus']} CPUs, {host['memory_gb']} GB, {kind}, {host['os']}, "
        f"Python {host['python']}; {', '.join(host['vector'])}.",
        f"- Versions: {versions}.",
        f"- {settings['threads']} threads; {settings['rounds']} rounds of {settings['seconds']} s per runner and "
        "workload.",
        *([f"- {shared}"] if (shared := shared_cores_text(results)) else []),
        f"- Measured {results['started_utc']} UTC by `{results['command']}` (`make bench` does everything).",
    ]


def _limit_lines(results: Results) -> list[str]:
    limits = results["limits"]
    rows = [
        [level, *(f"{by[n]:.0f} GB/s" for n in sorted(by, key=int))] for level, by in limits["read_gb_per_s"].items()
    ]
    counts = sorted(next(iter(limits["read_gb_per_s"].values())), key=int)
    return [
        f"f32 FMA peak of one core {limits['fma_peak_gflops']:.0f} GFLOP/s; core-to-core hand-over one way "
        f"{limits['core_to_core_ns']:.0f} ns. Reads:",
        "",
        *_table(["level", *(f"{n} core{'s' if n != '1' else ''}" for n in counts)], rows),
    ]


READING = """\
Calls are timed from Python, as users make them, one call at a time at batch 1. *rival / ours* above 1 means that we
are faster; it is the median over rounds of the ratio within a round, with its 95 % interval. Every runner's outputs
were compared with a float64 evaluation before it was timed (f32 within 1e-4 of the largest value, bf16 within 5e-2).
`superkernel-again` is ours against itself: its distance from 1 is noise. *1 -> n threads* is our own time on one
thread over that on all.

The lower bound is the best, over one core and all cores, of max(bytes / read bandwidth, operations / FMA peak,
exchanges x core-to-core hand-over), with limits measured in the same run, the bandwidth by plain reads of as many bytes
in turn with the runners; `bench/machine.py` says exactly what is counted. It assumes the peak and a transcendental at
the price of an addition: nobody reaches it on pointwise work."""


def page(results: Results) -> str:
    """docs/performance.md."""
    reasons = noise(results)
    lines = [
        "# Performance",
        "",
        "Generated by `bench/document.py` from `performance.json`: edit neither, run `make bench`.",
        "",
    ]
    if reasons:
        lines += [f"> **Noisy, do not judge by these figures:** {'; '.join(reasons)}.", ""]
    lines += [
        *_conditions(results),
        "",
        "## Result",
        "",
        *summary_lines(results),
        "",
        "![speed of each runner](performance.svg)",
    ]
    lines += ["", *_table(MAIN_HEAD, main_rows(results)), "", READING, ""]
    judged = verdicts(results)
    lines += ["## Verdict", "", verdict.summary(judged), "", *_table(verdict.HEAD, [v.cells() for v in judged])]
    lines += ["", verdict.READING, "", "## Every runner's time over ours", ""]
    lines += [
        *_table(*rival_rows(results)),
        "",
        "`openvino-bf16`, `superkernel-bf16` and `superkernel-int8` compute in another precision; "
        "they are no f32 rivals.",
        "",
    ]
    lines += [
        "## Cost of a boundary",
        "",
        *boundary_lines(results),
        "",
        "## Limits of the machine",
        "",
        *_limit_lines(results),
    ]
    missing = left_out(results)
    lines += ["", "## Not measured", "", *([f"- {text}" for text in missing] or ["Nothing was left out."])]
    return "\n".join(lines) + "\n"


def plotted(results: Results) -> list[tuple[str, dict[str, Row]]]:
    """What the plot shows: each workload with its rivals, narrow ones among them."""
    return [(w["name"], {**rivals(w), **rivals(w, "bf16")}) for w in measured(results)]


def write_docs(results: Results, directory: Path = DOCS) -> None:
    """performance.json, .svg and .md, the latter two made from the first."""
    (directory / "performance.json").write_text(json.dumps(results, indent=1) + "\n")
    (directory / "performance.svg").write_text(svg(plotted(results)))
    (directory / "performance.md").write_text(page(results))


def main(arguments: Sequence[str]) -> int:
    source = Path(arguments[0]) if arguments else DOCS / "performance.json"
    write_docs(json.loads(source.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
