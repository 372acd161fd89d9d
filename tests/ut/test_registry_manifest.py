"""Manifests: the same bytes whatever the order, a merge that is a union, conflicts that name both sides, builds that
hold no more."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
from registry_cases import ABI, PROBLEMS, TARGETS, manifest, need

from superkernel.core.errors import FileFormatError, InputError, MachineError, UserError
from superkernel.core.version import __version__
from superkernel.registry.manifest import Manifest, content_hash, dump, merge
from superkernel.registry.selection import Registry
from superkernel.scheduler.families import HOST_KERNELS

A, B, C = manifest("a", PROBLEMS[:8]), manifest("b", PROBLEMS[5:14]), manifest("c", PROBLEMS[12:])


def test_a_hundred_shuffles_give_one_hash() -> None:
    random_ = random.Random(1)
    rows, texts = list(HOST_KERNELS.registry.rows), list(PROBLEMS)
    digests = set()
    for _ in range(100):
        random_.shuffle(rows)
        random_.shuffle(texts)
        digests.add(manifest("m", tuple(texts), Registry(rows)).digest)
    assert len(digests) == 1


def test_merge_is_commutative_associative_and_idempotent() -> None:
    whole = merge([A, B, C])
    assert {merge(order).digest for order in permutations([A, B, C])} == {whole.digest}
    assert merge([merge([A, B]), C]).digest == merge([A, merge([B, C])]).digest == whole.digest
    assert merge([A, A]).digest == A.digest
    assert merge([whole, A]).digest == whole.digest
    assert whole.models == {"a", "b", "c"}
    assert set(whole.kernels) == {*A.kernels, *B.kernels, *C.kernels}
    assert whole.fallbacks == A.fallbacks | B.fallbacks | C.fallbacks
    assert any(f.kernel == "host.reference" and f.op == "gemm" for f in whole.fallbacks)


def test_round_trip_through_a_file(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    A.save(path)
    assert Manifest.load(path) == A
    first = path.read_bytes()
    Manifest.load(path).save(path)
    assert path.read_bytes() == first
    assert os.listdir(tmp_path) == ["m.json"]


def test_conflicts_name_both_models() -> None:
    kernel = "host.matmul.packed/f32/avx512"
    other = {**B.kernels, kernel: replace(A.kernels[kernel], content="0" * 64, keys={"k": frozenset({"b"})})}
    with pytest.raises(UserError) as caught:
        merge([A, replace(B, kernels=other)])
    assert f"kernel {kernel!r}, models a against b" in str(caught.value)
    with pytest.raises(UserError, match="models a against b: manifests of two ABIs"):
        merge([A, replace(B, abi=8)])
    with pytest.raises(UserError, match=r"two versions of the package; expected .*; found 0\.0\.9"):
        merge([A, replace(B, package="0.0.9")])
    with pytest.raises(UserError, match="manifests of two registries"):
        merge([A, replace(B, registry="0" * 64)])
    with pytest.raises(UserError, match="manifests of two targets"):
        merge([A, manifest("b", tier="avx2")])
    with pytest.raises(InputError, match="nothing to merge"):
        merge([])


def test_a_change_of_a_row_changes_its_content() -> None:
    row = HOST_KERNELS.registry.rows[0]
    changed = [
        replace(row, code_bytes=2),
        replace(row, code_bytes=1),
        replace(row, limits=HOST_KERNELS.registry.rows[-1].limits[:1]),
    ]
    assert len({content_hash(r) for r in [row, *changed[:2]]}) == 3
    assert content_hash(row) == content_hash(replace(row))


def test_a_model_has_one_target() -> None:
    registry = HOST_KERNELS.registry
    mixed = [registry.select(need(PROBLEMS[0], tier)) for tier in ("avx512", "avx2")]
    for selections in (mixed, []):
        with pytest.raises(InputError, match="one target"):
            dump("m", selections, registry, ABI)


def test_a_build_holds_its_kernels_and_what_is_behind_them_only() -> None:
    packed = manifest("m", ("matmul(f32[128,384], const f32[384,384])", "gemm(f32[4,8], f32[8,4])"))
    rows = {row.id: row for row in HOST_KERNELS.registry.rows}
    held = {(row.id, op) for row in rows.values() for op in row.ops if packed.holds(row, op, rows)}
    assert {row for row, op in held if op == "matmul"} == {
        "host.matmul.packed/f32/avx512",
        "host.matmul.generic/avx512",
    }
    assert {(row, op) for row, op in held if op != "matmul"} == {("host.reference", "gemm")}


def test_what_a_manifest_is_of_is_checked_before_its_use() -> None:
    registry, target = HOST_KERNELS.registry, TARGETS["avx512"]
    A.check_fits(registry, target, ABI, "m.json")
    kernel = next(iter(A.kernels))
    changed = {**A.kernels, kernel: replace(A.kernels[kernel], content="f" * 64), "gone": A.kernels[kernel]}
    other = replace(A, kernels=changed, package="0.0.9", registry="0" * 64, abi=8, target=("riscv64", "x", "y"))
    with pytest.raises(UserError) as caught:
        other.check_fits(registry, target, ABI, "m.json")
    texts = list(map(str, caught.value.violations))
    for found, expected in zip(
        texts,
        [
            "m.json: a manifest of another package; expected 0.1.0; found 0.0.9",
            "m.json: a manifest of another registry; expected ",
            "m.json: a manifest of another ABI; expected 7; found 8",
            "m.json, kernel 'gone', models a: not the kernel that was listed; expected no such kernel",
            f"m.json, kernel {kernel!r}, models a: not the kernel that was listed",
            "m.json: a manifest for another target; expected x86_64",
        ],
        strict=True,
    ):
        assert found.startswith(expected.replace("0.1.0", __version__))
    assert "superkernel kernels dump MODEL -o FILE" in texts[0]


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"kind": "kernel-manifest", "schema": 99}', '{"kind": "kernel-manifest", "schema": 1}',
        "\x00\xff",
        '{"kind":"kernel-manifest","schema":1,"registry":{"version":2,"abi":1,"digests":[]},"target":{}}',
        '{"kind":"kernel-manifest","schema":2,"registry":{"version":2}}',
        '{"kind":"kernel-manifest","schema":2,"registry":{"version":1,"abi":1,"digest":""},"target":{}}',
    ],
)  # fmt: skip
def test_damaged_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(FileFormatError, match=r"bad\.json"):
        Manifest.load(path)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    with pytest.raises(MachineError):
        Manifest.load(tmp_path / "missing.json")
    with pytest.raises(MachineError):
        A.save(tmp_path / "missing" / "m.json")
    path = tmp_path / "m.json"
    A.save(path)
    before = path.read_bytes()
    with pytest.raises(TypeError):
        replace(A, abi=object()).save(path)  # type: ignore[arg-type]
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["m.json"]
