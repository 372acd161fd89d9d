"""Products of bytes as AArch64 assembly: CPUs with dot products multiply fours of bytes by these and by nothing else,
other CPUs have none. `tests/st/test_aarch64.py` runs the same kernels under an emulator."""

from __future__ import annotations

import re
from functools import partial

import pytest
from kernel_cases import Case, blocks, bytes_of_all_kinds, reduced_products

from superkernel.codegen.host.emitters import emit_ir
from superkernel.codegen.host.lower import assembly
from superkernel.registry.records import Policy
from superkernel.registry.requirement import parse_requirement
from superkernel.scheduler.families import HOST_KERNELS, family_of
from superkernel.target.cpu import CpuTarget, cpu_target

ARM, X86 = "aarch64-unknown-linux-gnu", "x86_64-unknown-linux-gnu"
PLAIN, DOTS = cpu_target(ARM, "plain", ()), cpu_target(ARM, "plain", ("dotprod",))
BY_BYTES = re.compile(r"bytes|int8")
PROBLEM = "matmul_integer(u8[16,64], const i8[64,32], u8[])"


def counted(case: Case, cpu: CpuTarget) -> tuple[int, int]:
    """How many dot products and how many other products of vectors of integers a kernel has."""
    kernel, body, _, _ = case
    text = assembly(emit_ir(kernel, body, family_of(kernel).tilings(kernel, body, cpu)[0], cpu, "k"), cpu)
    return len(re.findall(r"\tsdot\t", text)), len(re.findall(r"\t(?:[su]ml[as]l2?|[su]mull2?)\tv", text))


@pytest.mark.parametrize(
    "make", [blocks, partial(reduced_products, native=True), bytes_of_all_kinds], ids=["blocks", "reduced", "bytes"]
)
def test_dot_products_are_emitted_where_the_cpu_has_them(make: partial[list[Case]]) -> None:
    cases = [case for case in make() if BY_BYTES.search(case[0])]
    assert len(cases) >= 4
    for case in cases:
        with_dots, others = counted(case, DOTS)
        assert with_dots >= 4, case[0]
        assert others == 0, case[0]
        assert counted(case, PLAIN)[0] == 0, case[0]


@pytest.mark.parametrize(("features", "row"), [(("dotprod",), "plain/dotprod"), ((), "plain")])
def test_the_row_of_dot_products_is_chosen_where_the_cpu_has_them(features: tuple[str, ...], row: str) -> None:
    cpu = cpu_target(ARM, "plain", features)
    chosen = HOST_KERNELS.registry.select(parse_requirement(PROBLEM, cpu, Policy())).row
    assert chosen.id == f"host.matmul.bytes/{row}"


def test_other_cpus_are_told_what_they_lack() -> None:
    cpu = cpu_target(X86, "plain", ("dotprod",))
    assert not cpu.has("dotprod")
    found = HOST_KERNELS.registry.select(parse_requirement(PROBLEM, cpu, Policy())).explanation
    (rejected,) = [c for c in found.rejected if c.row.id == "host.matmul.bytes/plain/dotprod"]
    assert "dotprod" in " ".join(map(str, rejected.failures))
