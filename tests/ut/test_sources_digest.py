"""Objects are kept under a digest of the sources that make them: it changes with each of these alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from superkernel.codegen.aicore import lower
from superkernel.codegen.host import image
from superkernel.core import version

# What emitters load that decides nothing of what they emit: the cache and pool of processes, what loads LLVM (whose
# version is in the key), what chooses kernels or measures the machine, what tells errors of kernels from outside (whose
# sources are in the key), and types whose values stand in an object's key.
NOT_DECIDING = (
    "superkernel/__init__.py", "superkernel/machine.py", "codegen/__init__.py", "codegen/cache.py",
    "codegen/llvm_library.py", "codegen/outside.py", "codegen/processes.py", "registry/",
    "scheduler/__init__.py", "scheduler/hostcall.py", "scheduler/installed.py", "scheduler/kernel_table.py",
    "scheduler/kerneldef.py", "scheduler/schedule.py", "scheduler/timed.py", "sync/",
)  # fmt: skip

LOADED = """
import pkgutil, sys
from importlib import import_module
import superkernel.codegen.host as emitters
for module in pkgutil.iter_modules(emitters.__path__):
    import_module(f"{emitters.__name__}.{module.name}")
from superkernel.scheduler.families import HOST_KERNELS
HOST_KERNELS.kernels
print(*(m.__file__ for n, m in sys.modules.items() if n.startswith("superkernel") and getattr(m, "__file__", None)))
"""


def test_every_source_that_emitters_load_counts() -> None:
    root = Path(version.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    loaded = [Path(name).relative_to(root).as_posix() for name in done.stdout.split() if name.endswith(".py")]
    assert len(loaded) > 100
    counted = [p for p in loaded if p in image.GENERATOR or str(Path(p).parent) in image.GENERATOR]
    left = set(loaded) - set(counted)
    assert not [p for p in left if not p.startswith(tuple(n.removeprefix("superkernel/") for n in NOT_DECIDING))]


@pytest.mark.parametrize("parts", [image.GENERATOR, lower.GENERATOR])
def test_all_of_them_are_there(parts: tuple[str, ...]) -> None:
    root = Path(version.__file__).parents[1]
    assert all((root / part).exists() for part in parts)


def test_another_source_is_another_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what files say and are called, not by where they lie or when they were written."""
    digests = []
    for place, name, text in [("a", "x", "1"), ("b", "x", "1"), ("c", "x", "2"), ("d", "y", "1")]:
        folder = tmp_path / place / "codegen"
        folder.mkdir(parents=True)
        (folder / f"{name}.py").write_text(text)
        monkeypatch.setattr(version, "__file__", str(tmp_path / place / "core" / "version.py"))
        version.sources_digest.cache_clear()
        digests.append(version.sources_digest("codegen"))
    monkeypatch.undo()
    version.sources_digest.cache_clear()
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
