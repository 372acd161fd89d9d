"""What is installed, how it is built, and that the commands of the Makefile stand."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import soak

import superkernel
from superkernel import _core

ROOT = Path(__file__).parents[2]
LINKED = ("scheduler", "sync", "codegen")
NATIVE = ("include", "runtime", "library")
"""Folders of C++ that exported libraries are built from."""
DISTRIBUTION = "superkernel-compiler"  # the module's own name belongs to another project on PyPI


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)


def test_linked_packages_are_one_tree() -> None:
    for name in LINKED:
        link = ROOT / "superkernel" / name
        assert link.is_symlink()
        assert os.readlink(link) == f"../{name}"  # relative: the checkout may move
        assert (ROOT / name / "__init__.py").is_file()
        module = __import__(f"superkernel.{name}", fromlist=["__file__"])
        assert Path(str(module.__file__)).parent.name == name


def test_every_source_folder_is_a_package() -> None:
    """A folder without __init__.py would be found in an editable install and be missing from a wheel's types."""
    for top in ("superkernel", *LINKED):
        for source in (ROOT / top).rglob("*.py"):
            assert (source.parent / "__init__.py").is_file(), source


def test_version_is_the_same_everywhere(project: dict[str, Any]) -> None:
    version = importlib.metadata.version(DISTRIBUTION)
    assert project["project"]["name"] == DISTRIBUTION
    assert version == project["project"]["version"]
    assert getattr(superkernel, "__version__", version) == version


def test_the_command_exists(project: dict[str, Any]) -> None:
    module, function = project["project"]["scripts"]["superkernel"].split(":")
    assert callable(getattr(__import__(module, fromlist=[function]), function))


def test_nothing_else_is_installed_at_the_top() -> None:
    top = {file.parts[0] for file in importlib.metadata.files(DISTRIBUTION) or []}
    scaffolding = {
        name for name in top if name in ("..", "__pycache__") or name.endswith(".dist-info") or "editable" in name
    }
    assert top - scaffolding <= {"superkernel"}


def test_the_extension_is_the_only_user_of_pybind11() -> None:
    sources = [path for path in (ROOT / "csrc").rglob("*") if path.suffix in (".cpp", ".h")]
    users = [p for p in sources if re.search(r"#include\s*[<\"](pybind11|Python\.h)", p.read_text())]
    assert users
    assert all(p.parent == ROOT / "csrc" and p.name.startswith("bindings") for p in users)


def test_make_knows_its_targets_and_ci_runs_the_tests() -> None:
    text = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z]+):", text, re.M))
    assert {"build", "demo", "quick", "test", "check", "bench", "clean"} <= targets
    run = ROOT / ".ci/run"
    assert os.access(run, os.X_OK)
    assert "make test" in run.read_text()
    for target in ("build", "demo", "quick", "test", "check", "coverage", "bench", "clean", "tsan"):
        done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_the_extension_lies_where_the_package_looks() -> None:
    assert Path(_core.__file__).name.startswith("_core.")
    assert (ROOT / "superkernel/py.typed").is_file()
    assert (ROOT / "superkernel/_core.pyi").is_file()


@pytest.mark.slow
@pytest.mark.timeout(1200)  # in a soak run it compiles the extension
def test_sdist_and_wheel_are_complete_and_work(tmp_path: Path) -> None:
    """Builds the sdist, which has every source as it is; from it the wheel; unpacks that elsewhere and runs a function
    of the extension. What `make build` has compiled of the same sources is not compiled again, but in a soak run."""
    python = {f"superkernel/{path.relative_to(ROOT)}" for top in LINKED for path in (ROOT / top).rglob("*.py")}
    python |= {str(path.relative_to(ROOT)) for path in (ROOT / "superkernel").rglob("*.py*") if path.suffix != ".pyc"}
    build("--sdist", ROOT, tmp_path)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    source = tmp_path / sdist.name.removesuffix(".tar.gz")
    shipped = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    cpp = {str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob("*") if path.is_file()}
    native = {f"superkernel/native/{name}/{path.name}" for name in NATIVE for path in (ROOT / "csrc" / name).iterdir()}
    wanted = {"pyproject.toml", "CMakeLists.txt", "LICENSE"} | cpp | python | native
    assert {"csrc/bindings.cpp", "csrc/include/superkernel_abi.h", "csrc/include/superkernel_call.h"} <= cpp
    assert wanted <= shipped
    assert not [name for name in wanted if (source / name).read_bytes() != (ROOT / name).read_bytes()]
    assert not [
        name for name in shipped if name.startswith((".venv", "build/", "dist/")) or name.endswith((".so", ".pyc"))
    ]
    built = f"{sys.executable};-S;{ROOT / 'tests/ut/built_already.py'};{Path(_core.__file__).parent}"
    reuse = [f"-Ccmake.define.CMAKE_CXX_{tool}_LAUNCHER={built}" for tool in ("COMPILER", "LINKER")]
    compiled = ["-Ccmake.build-type=Debug", "-Ccmake.define.CMAKE_CXX_FLAGS_DEBUG=-O0"]
    build("--wheel", source, tmp_path, *(compiled if soak.enabled else reuse))
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "site")
    tops = {name.split("/")[0] for name in names}
    assert tops == {
        "superkernel",
        f"{DISTRIBUTION.replace('-', '_')}-{importlib.metadata.version(DISTRIBUTION)}.dist-info",
    }
    assert python | native <= set(names)
    code = "import superkernel._core as c, superkernel.codegen.host.abi as a; print(c.__file__); assert c.abi_layout()"
    assert in_wheel(tmp_path, code).startswith(str(tmp_path / "site"))
    (tmp_path / "program.c").write_text("#include <superkernel_call.h>\n" + C_PROGRAM)
    (tmp_path / "call.py").write_text(CALLER)
    assert in_wheel(tmp_path, "import call").splitlines() == [
        str(tmp_path / "site/superkernel/include"),
        "3.0",
        "['g']",
    ]


def build(kind: str, source: Path, out: Path, *settings: str) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", kind, *settings, "--outdir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


C_PROGRAM = """
int run(SkCallFunction function, void* self, float* in, const float* out) {
  in[0] = -3.0f;
  return function(self) == SK_CALL_OK && out[0] == 3.0f;
}
"""
CALLER = """
import ctypes, subprocess, numpy as np, superkernel as sk
print(sk.get_include())
command = ["gcc", "-std=c99", "-Wall", "-Werror", "-shared", "-fPIC", "-I" + sk.get_include(), "program.c"]
subprocess.run([*command, "-o", "program.so"], check=True)
b = sk.GraphBuilder("g")
b.output(b.abs(b.input("x", (4,), "f32")), name="y")
bound = sk.compile(b.graph(), threads=1, options={"cache": False}).bind(np.zeros(4, np.float32))
x, y = bound.inputs["x"], bound.outputs["y"]
arguments = (bound.function_address, bound.self_address, x.ctypes.data, y.ctypes.data)
assert ctypes.CDLL("./program.so").run(*map(ctypes.c_void_p, arguments)) == 1
print(y[0])
print([*sk.export(sk.compile(b.graph(), threads=1), "libcall.so").models])
"""


def in_wheel(folder: Path, code: str) -> str:
    """What a program prints that sees the unpacked wheel in `site` of a folder."""
    # -S keeps the editable install's import hook out; the dependencies come from where they are.
    path = os.pathsep.join([str(folder / "site"), sysconfig.get_path("purelib"), str(folder)])
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_header_is_the_one_of_the_sources() -> None:
    header = Path(superkernel.get_include()) / "superkernel_call.h"
    assert header.is_symlink()
    assert not os.readlink(header).startswith("/")  # relative: the checkout may move
    assert header.resolve() == (ROOT / "csrc/include/superkernel_call.h").resolve()


def test_libraries_are_built_from_the_sources() -> None:
    for name in NATIVE:
        assert os.readlink(ROOT / "superkernel/native" / name) == f"../../csrc/{name}"
