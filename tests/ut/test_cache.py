"""The object cache: what it gives back, what it refuses, and that it never stops a compilation."""

from __future__ import annotations

import errno
import multiprocessing
import os
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import superkernel as sk
from superkernel.codegen import cache as cache_module
from superkernel.codegen.cache import CacheWarning, ObjectCache, key_digest
from superkernel.codegen.host import features
from superkernel.codegen.host.entry_spec import (
    BasePointer,
    EntrySpec,
    Location,
    RunTask,
    SetCount,
    Step,
    TaskSpec,
    WaitFor,
)  # fmt: skip


def _only_file(directory: Path) -> Path:
    (path,) = [p for p in directory.rglob("*") if p.is_file()]
    return path


def test_returns_what_was_put(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "c")
    assert cache.get("key") is None
    cache.put("key", b"object")
    assert cache.get("key") == b"object"
    assert ObjectCache(tmp_path / "c").get("key") == b"object"
    assert cache.get("other") is None
    assert (cache.hits, cache.misses) == (1, 2)


def test_an_entry_that_others_may_write_to_is_not_taken(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "c")
    cache.put("key", b"object")
    _only_file(tmp_path / "c").chmod(0o620)
    with pytest.warns(CacheWarning, match="is writable by others"):
        assert cache.get("key") is None
    cache.put("key", b"object")
    assert cache.get("key") == b"object", "an own entry has taken its place"


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "header", "longer"])
def test_corrupt_entry_is_dropped(tmp_path: Path, damage: str) -> None:
    cache = ObjectCache(tmp_path)
    cache.put("key", bytes(range(256)))
    path = _only_file(tmp_path)
    data = bytearray(path.read_bytes())
    if damage == "truncate":
        data = data[:-10]
    elif damage == "flip":
        data[-5] ^= 1
    elif damage == "empty":
        data = bytearray()
    elif damage == "header":
        data[0] ^= 255
    else:
        data += b"x"
    path.write_bytes(data)
    assert cache.get("key") is None
    assert not path.exists()


def test_a_pipe_in_place_of_an_entry_is_not_waited_for(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path)
    cache.put("key", b"object")
    path = _only_file(tmp_path)
    path.unlink()
    os.mkfifo(path)
    assert cache.get("key") is None
    cache.put("key", b"object")
    assert cache.get("key") == b"object"


def test_an_entry_under_another_key_is_refused(tmp_path: Path) -> None:
    """A file renamed to another key's name is somebody's mistake or attack, not an object for that key."""
    cache = ObjectCache(tmp_path)
    cache.put("a", b"object of a")
    digest = key_digest("b")
    target = tmp_path / digest[:2] / f"{digest[2:]}.o"
    target.parent.mkdir(exist_ok=True)
    os.rename(_only_file(tmp_path), target)
    assert cache.get("b") is None


def test_unusable_directory_warns_once_and_goes_on(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    with pytest.warns(CacheWarning, match="not cached"):
        cache = ObjectCache(blocked / "cache")
    cache.put("key", b"x")
    assert cache.get("key") is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ObjectCache(blocked / "cache").put("key", b"x")  # the next compilation


def test_what_a_signal_handler_raises_comes_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TimeoutError is an OSError, but says nothing of the directory."""

    def interrupted(*_: object) -> bytes:
        raise TimeoutError("alarm")

    cache = ObjectCache(tmp_path)
    cache.put("key", b"x")
    for name in ("_verified", "pack_entry"):
        monkeypatch.setattr(cache_module, name, interrupted)
    with pytest.raises(TimeoutError, match="alarm"):
        cache.get("key")
    with pytest.raises(TimeoutError, match="alarm"):
        cache.put("other", b"x")


def test_a_directory_that_goes_meanwhile_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody empties the cache while this process looks through it."""

    def gone(*_: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    cache = ObjectCache(tmp_path)
    monkeypatch.setattr(Path, "glob", gone)
    with pytest.warns(CacheWarning, match="not cached.*No such file"):
        cache.put("key", b"x")


def test_what_killed_writers_left_goes(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path)
    left = [tmp_path / "00" / name for name in (".new-killed", ".new-writing")]
    left[0].parent.mkdir()
    for path, age_s in zip(left, (2 * cache_module.WRITING_S_MAX, 60), strict=True):
        path.write_bytes(b"half of an ent")
        os.utime(path, (time.time() - age_s,) * 2)
    cache.put("key", b"x")
    assert [path.exists() for path in left] == [False, True]


def test_directory_of_others_is_not_trusted(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.warns(CacheWarning, match="writable by others"):
        assert ObjectCache(shared).directory is None


def test_off_keeps_nothing() -> None:
    cache = ObjectCache(None)
    cache.put("key", b"x")
    assert cache.get("key") is None


def test_the_longest_unused_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "CACHE_BYTES_MAX", 8_000)
    writer = ObjectCache(tmp_path)
    for i in range(10):
        writer.put(f"key{i}", bytes(1000))
    for age, path in enumerate(sorted(tmp_path.rglob("*.o"))):
        os.utime(path, (1000 - age, 1000 - age))
    assert writer.get("key3") is not None, "used just now"
    cache_module._trimmed.clear()
    writer.put("new", bytes(1000))
    kept = [i for i in range(10) if ObjectCache(tmp_path).get(f"key{i}") is not None]
    assert 3 in kept
    assert len(kept) == 5, "three quarters of the limit, entries have a header each"
    assert writer.get("new") is not None


def _put_many(directory: str, seed: int) -> None:
    cache = ObjectCache(Path(directory))
    for i in range(50):
        cache.put(f"key{i}", bytes([i]) * 10_000)
        got = cache.get(f"key{(i * 7 + seed) % 50}")
        assert got is None or len(got) == 10_000


def test_processes_share_a_directory(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_put_many, args=(str(tmp_path), seed)) for seed in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [w.exitcode for w in workers] == [0, 0]
    assert ObjectCache(tmp_path).get("key3") == bytes([3]) * 10_000
    assert not list(tmp_path.rglob(".new-*"))


def test_graphs_share_the_objects_of_kernels_that_they_have_in_common() -> None:
    def objects(*operators: str) -> set[str]:
        b = sk.GraphBuilder("row")
        y = b.matmul(b.input("x", (8, 32)), b.constant(np.ones((32, 16), np.float32)))
        for operator in operators:
            y = getattr(b, operator)(y, axis=1)
        b.output(y)
        return set(sk.compile(b.graph(), threads=2)._compiled.image.objects)

    plain = objects("softmax")
    assert {key.split()[0] for key in plain} == {"kernel", "waits", "entries"}
    assert len(plain) == 4
    assert len(objects("softmax", "cumsum") - plain) == 2


def test_the_cpu_is_known_again_without_llvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, objects = features.detect_cpu(), ObjectCache(tmp_path)
    assert features.kept_cpu(objects) is None
    features.keep_cpu(cpu, objects)
    monkeypatch.setattr(features, "_detect", lambda tier: pytest.fail("LLVM was asked"))
    assert features.kept_cpu(ObjectCache(tmp_path)) == cpu
    objects.put(features._key(), b'{"mark": 1}')
    assert features.kept_cpu(objects) is None
    monkeypatch.setattr(features, "_mark", lambda: "another")
    assert features.kept_cpu(objects) is None


def test_all_that_entries_are_made_from_is_in_their_text() -> None:
    place, other = Location(BasePointer.ARENA, 64), Location(BasePointer.IO, 64, 1)
    task, wait = TaskSpec(0, 0, "k", (place,), 0, 4), WaitFor(1, 1, 0, place, 64, (place,))
    spec = EntrySpec((task,), ((wait, RunTask(0), SetCount(1)), ()), (1, 0), 1)
    tasks = [
        replace(task, subop=1), replace(task, core=1), replace(task, symbol="l"), replace(task, symbol=None),
        replace(task, operands=(other,)), replace(task, operands=(replace(other, slot=2),)), replace(task, begin=1),
        replace(task, operands=(place, place)), replace(task, end=5), replace(task, checked=0),
    ]  # fmt: skip
    waits = [
        replace(wait, producer=2), replace(wait, count=2), replace(wait, wait=1), replace(wait, weights=other),
        replace(wait, weight_bytes=128), replace(wait, data=()), replace(wait, data=(other,)),
    ]  # fmt: skip
    programs: list[tuple[Step, ...]] = [(w, RunTask(0), SetCount(1)) for w in waits]
    programs += [(wait, RunTask(1), SetCount(1)), (wait, RunTask(0), SetCount(2)), (RunTask(0), wait, SetCount(1))]
    specs = [
        spec, *(replace(spec, tasks=(t,)) for t in tasks), *(replace(spec, programs=(p, ())) for p in programs),
        replace(spec, programs=((), spec.programs[0])), replace(spec, sets=(1, 1)), replace(spec, subops=2),
        replace(spec, tasks=(task, task)),
    ]  # fmt: skip
    assert len(set(map(str, specs))) == len(specs)
