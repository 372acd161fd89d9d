"""The guides say what is true: their Python blocks run in order, their commands end with status 0, what they print is
what is printed, their links lead somewhere.

A block without a language holds commands, one a line, whatever the guide; text that something prints is marked `text`.
Commands of ours run, in a folder per guide, each once: those that an earlier guide shows have run there, but for what
writes files that others read. Commands that install, build or test the project are not run by its own tests; what they
name has to exist.
"""

from __future__ import annotations

import doctest
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soak
from firmware_bench import needs_qemu
from rv64_link import executable

import superkernel as sk
from superkernel._core import OversubscriptionWarning
from superkernel.cli import main
from superkernel.core.errors import InputError
from superkernel.kernels import unregister
from superkernel.machine import machine_profile
from superkernel.target.machine import load_profile

HAS_TORCH = find_spec("torch") is not None or os.environ.get("SK_REQUIRE_TORCH") == "1"
ROOT = Path(__file__).parents[2]
TUTORIAL = "docs/tutorial.md"
FAR, FAR_NS = "far", 5000.0
"""A machine whose two cores reach each other in as many ns."""
GUIDES = tuple(
    path.relative_to(ROOT).as_posix()
    for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
    if "```python\n" in path.read_text() and path != ROOT / TUTORIAL
)
TORCH_GUIDES = ("docs/generation.md",)
"""Guides none of whose blocks runs without torch."""
QEMU_GUIDES = ("docs/emulator.md",)
PAGES = ("README.md", "CONTRIBUTING.md", *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/*.md")))
SITE_RUNS = ("docs/gallery.md",)
"""Its commands make the pages that it links to whenever the site is built (`test_site.py`)."""
WRITING = {"-o", "--out", "--save", ">"}
_BLOCK = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(name: str, language: str) -> list[str]:
    """The contents of a document's blocks of a language ('' = none is given)."""
    return [text for tag, text in _BLOCK.findall((ROOT / name).read_text()) if tag == language]


def guide(name: str) -> Any:
    """A guide as a parameter, left out where what it is about is not installed."""
    needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
    return pytest.param(name, marks=[needs_torch] * (name in TORCH_GUIDES) + [needs_qemu] * (name in QEMU_GUIDES))


@pytest.fixture
def own_kernels() -> Iterator[None]:
    """Kernels that a guide registers are gone behind its test, and the example's module that has one."""
    yield
    for kernel in ("mine.softmax", "example.row_sum"):
        with suppress(InputError):
            unregister(kernel)
    sys.modules.pop("own_kernel", None)


@pytest.mark.usefixtures("own_kernels")
@pytest.mark.parametrize("name", [guide(name) for name in GUIDES])
def test_python_blocks_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One block after the other in one namespace, warnings as errors."""
    monkeypatch.chdir(tmp_path)
    found = blocks(name, "python")
    assert found, f"{name} has no Python block"
    namespace: dict[str, Any] = {"__name__": "guide"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", OversubscriptionWarning)  # of a machine with one CPU
        for number, text in enumerate(found):
            if "import torch" in text and not HAS_TORCH:
                continue
            exec(compile(text, f"{name}, block {number}", "exec"), namespace)


def test_excerpts_are_of_the_example() -> None:
    """What the guide to kernels shows of the example stands there."""
    found = blocks("docs/own-kernels.md", "py")
    assert found
    example = (ROOT / "examples" / "own_kernel.py").read_text()
    assert all(text in example for text in found)


@pytest.fixture(params=soak.drawn(("default", "two-cores", "two-sockets", "xeon-16", FAR), 2))
def profile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """What may be known of a reader's machine; of the last one, that a second core is worth nothing here. A run draws
    two, a soak run has all."""
    file = str(ROOT / "tests" / "machines" / f"{request.param}.json")
    if request.param == FAR:
        made = load_profile(ROOT / "tests" / "machines" / "two-cores.json")
        file = str(tmp_path / "far.json")
        Path(file).write_text(replace(made, handover_ns=((0.0, FAR_NS), (FAR_NS, 0.0))).text())
    monkeypatch.setenv("SK_MACHINE", "default" if request.param == "default" else file)
    machine_profile.cache_clear()
    yield
    machine_profile.cache_clear()


@pytest.mark.usefixtures("profile")
def test_the_tutorial_prints_what_it_says(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its blocks in one namespace, each against the text behind it, whatever is known of the machine; `...` stands for
    anything."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "tutorial"}
    found = _BLOCK.findall((ROOT / TUTORIAL).read_text())
    assert len(found) > 20
    compared = 0
    for (tag, text), (following, outcome) in zip(found, [*found[1:], ("", "")], strict=True):
        if tag != "python":
            continue
        exec(compile(text, TUTORIAL, "exec"), namespace)
        printed = capsys.readouterr().out
        expected = outcome if following == "text" else ""
        assert doctest.OutputChecker().check_output(expected, printed, doctest.ELLIPSIS), (text, printed)
        compared += bool(expected)
    assert compared == sum(tag == "text" for tag, _ in found)
    if f"[{FAR}]" in request.node.name:
        assert str(sk.compile(namespace["graph"], threads=2).plan).startswith("plan cores 1\n"), "but for the option"


def test_one_command_renews_what_is_shown_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's lines, and the tutorial's where they are the same on every machine."""
    monkeypatch.chdir(tmp_path)
    renewing = runpy.run_path(str(ROOT / "docs" / "site" / "printed.py"))
    readme, tutorial = ((ROOT / name).read_text() for name in ("README.md", TUTORIAL))
    (shown,) = (text for text in blocks("README.md", "text") if text.startswith("decoder step"))
    stale = readme.replace(shown, re.sub(r"\d+\.\d+", "0.5", shown))
    assert stale != readme
    assert renewing["readme"](stale, f"largest difference\n{shown}one more\n") == readme
    (cycles,) = re.findall(r"^True (\d+)$", tutorial, re.MULTILINE)
    stale = tutorial.replace(f"True {cycles}", "True 1").replace(f"{cycles} cycles", "1 cycles")
    assert stale.count(" 1 cycles") == 1
    assert renewing["tutorial"](stale) == tutorial


def test_the_picture_is_what_its_command_draws(capsys: pytest.CaptureFixture[str]) -> None:
    main_of = runpy.run_path(str(ROOT / "docs" / "site" / "timeline.py"))["main"]
    assert main_of([]) == 0
    drawn = capsys.readouterr().out
    assert drawn == (ROOT / "docs" / "timeline.svg").read_text()
    times = re.findall(r": ([\d.]+) us<", drawn)
    assert len(times) == 2
    assert all(f"{time} us" in (ROOT / "README.md").read_text() for time in times)


def commands(name: str) -> list[list[str]]:
    """The words of every line in the document's plain blocks; three blanks begin a remark, and a synopsis is none."""
    lines = [line for text in blocks(name, "") for line in text.splitlines() if "[--" not in line]
    return [shlex.split(re.split(r"\s{3,}", line)[0], comments=True) for line in lines if line.strip()]


def own_commands(name: str) -> list[list[str]]:
    """What follows `superkernel` in the document's lines that no earlier document has, or that write a file."""
    earlier = [words for other in PAGES[: PAGES.index(name)] if other not in SITE_RUNS for words in commands(other)]
    ours = [words for words in commands(name) if words[0] == "superkernel"]
    return [words[1:] for words in ours if words not in earlier or WRITING & set(words)]


def write_model(folder: Path) -> None:
    """model.onnx with a value conv1, in.npz with its input."""
    import onnx
    import onnx.helper as oh

    shapes = {"x": [1, 3, 8, 8], "y": [1, 4, 6, 6]}
    infos = [oh.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    weight = onnx.numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")
    conv = oh.make_node("Conv", ["x", "w"], ["conv1"])
    graph = oh.make_graph([conv, oh.make_node("Relu", ["conv1"], ["y"])], "g", infos[:1], infos[1:], [weight])
    onnx.save(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)]), str(folder / "model.onnx"))
    for name in ("in.npz", "samples.npz", "a.npz", "b.npz"):
        with (folder / name).open("wb") as file:
            np.savez(file, x=np.ones((1, 3, 8, 8), np.float32))


def prepare(name: str, folder: Path) -> None:
    """What the commands of a guide take for granted: a model and its inputs, what else was compiled, files that the
    guide shows, programs for the simulator."""
    write_model(folder)
    for copy in ("a.json", "b.json"):
        assert main(["kernels", "dump", "model.onnx", "-o", copy]) == 0
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "microcontroller.json").symlink_to(ROOT / "tests" / "machines" / "microcontroller.json")
    for target in blocks(name, "toml"):
        (folder / "my.toml").write_text(target)
    (folder / "slower.toml").write_text('schema_version = 1\nname = "slower"\nbase = "mini"\n[hbm]\nlatency_ns = 900\n')
    (folder / "tests").mkdir()
    for program in ("PROGRAM.elf", "more.elf", "tests/one.elf"):
        (folder / program).write_bytes(executable("define void @main(i64 %hart, ptr %out) {\n  ret void\n}\n"))


def run(words: list[str]) -> tuple[int, str, str]:
    """Status, output and messages of a command: in a process of its own where it registers kernels."""
    if "--kernels" in words:
        command = [sys.executable, "-m", "superkernel", *words]
        ended = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), check=False)
        return ended.returncode, ended.stdout, ended.stderr
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(words)
    return status, out.getvalue(), err.getvalue()


def shell_guide(name: str) -> Any:
    return pytest.param(name, marks=[needs_qemu] * (name in QEMU_GUIDES))


@pytest.mark.usefixtures("own_kernels")
@pytest.mark.parametrize("name", [shell_guide(n) for n in PAGES if n not in SITE_RUNS and own_commands(n)])
def test_commands_end_well(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    prepare(name, tmp_path)
    for command in own_commands(name):
        words = [{"MODEL": "model.onnx"}.get(word, word) for word in command]
        words, file = (words[:-2], words[-1]) if ">" in words[-2:] else (words, None)
        with monkeypatch.context() as own:
            if "--plans" in words:  # what more of them say is test_rates' to see
                words[words.index("--plans") + 1] = "20"
            if words[0] == "tune":  # of this machine, not of the profile that all tests go by
                own.setenv("SK_MACHINE", "default")
                own.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
            status, printed, said = run(words)
        assert status == 0, f"superkernel {' '.join(words)}\n{said}"
        assert printed.strip(), words
        if file is not None:
            (tmp_path / file).write_text(printed)


def test_the_program_of_the_guide_to_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It links the library that the guide's commands make, and prints what the kernel computes."""
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path)
    for words in own_commands("docs/libraries.md")[:2]:
        assert run(words)[0] == 0, words
    program, _ = blocks("docs/libraries.md", "c")  # the other one is tests/st/test_firmware.py's
    (tmp_path / "main.c").write_text(program)
    command = ["gcc", "-Wall", "-Wextra", "-Werror", "main.c", "-L.", "-lvision", "-Wl,-rpath,$ORIGIN", "-o", "main"]
    subprocess.run(command, check=True)
    printed = subprocess.run(["./main"], capture_output=True, text=True, check=True).stdout
    expected = sk.compile("classifier.onnx", threads=2)(np.ones((1, 3, 8, 8), np.float32))
    assert [float.fromhex(line) for line in printed.split()] == expected.reshape(-1).tolist()
    assert np.any(expected)


@pytest.mark.parametrize("name", PAGES)
def test_plain_blocks_hold_commands(name: str) -> None:
    """And what those that are not run here name is there: targets of make, extras of the package, scripts, tests."""
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for program, *words in commands(name):
        files = [word for word in words if "/" in word or word.endswith(".py")]
        assert all(any(ROOT.glob(file)) for file in files if program != "superkernel"), files
        if program == "make":
            assert all(word in targets for word in words if "=" not in word), words
        elif program == "pip":
            assert all(extra in extras for word in words for extra in re.findall(r"\[(\w+)\]", word)), words
        else:
            known = program in ("superkernel", "python", "pytest")
            assert known, f"{name}: {program!r} is no command: mark what is printed as text"


def test_printed_text_is_held_to_what_prints_it() -> None:
    """By a test each: whoever adds a block of text adds one here."""
    held = {
        "README.md": "tests/st/test_examples.py",
        "docs/tutorial.md": "tests/st/test_docs.py",
        "docs/accelerator.md": "tests/st/test_ablate_figures.py",
        "docs/emulator.md": "tests/st/test_qemu_mutants.py",
        "docs/registry.md": "tests/st/test_docs.py",
    }
    assert {name for name in PAGES if blocks(name, "text")} == set(held)
    assert all((ROOT / test).exists() for test in held.values())


def test_names_in_the_guide_to_the_registry_are_read(capsys: pytest.CaptureFixture[str]) -> None:
    row, names = blocks("docs/registry.md", "text")
    assert main(["kernels", "list"]) == 0
    assert row.splitlines()[0] in capsys.readouterr().out.split()
    for name in names.split():
        assert main(["kernels", "name", name]) == 0, name


def test_a_synopsis_names_the_options_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    (text,) = [text for text in blocks("docs/simulator.md", "") if "[--" in text]
    with pytest.raises(SystemExit):
        main(["sim", "run", "--help"])
    there = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    named = set(re.findall(r"--[a-z-]+", text))
    assert named <= there, named - there


def evidence(name: str) -> list[str]:
    """What stands in code in the last column of a document's tables headed "what shows it" or "raised by"."""
    found: list[str] = []
    for head, rows in re.findall(r"^\|(.*)\|\n\|[-|: ]+\|\n((?:\|.*\n)+)", (ROOT / name).read_text(), re.MULTILINE):
        if head.split("|")[-1].strip() in ("what shows it", "raised by"):
            for row in rows.splitlines():
                found += re.findall(r"`([^`]+)`", row.rstrip("|").rsplit(" | ", 1)[1])
    return found


def words_said(name: str) -> dict[str, str]:
    """What commands of tables must say, where a row tells."""
    return dict(re.findall(r"`(superkernel [^`]+)` says `([^`]+)`", (ROOT / name).read_text()))


def test_what_shows_a_row_of_the_registry_is_there_and_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], own_kernels: None
) -> None:
    said = words_said("docs/registry.md")
    named = [words for words in evidence("docs/registry.md") if words not in said.values()]
    assert len(named) > 40
    assert len(said) > 12
    monkeypatch.chdir(tmp_path)
    prepare("docs/registry.md", tmp_path)
    for words in named:
        if words.startswith("superkernel "):
            capsys.readouterr()
            assert main(shlex.split(words)[1:]) == 0, words
            out = capsys.readouterr().out
            assert out.strip(), words
            assert said.get(words, "") in out, words
            continue
        file, _, test = words.partition("::")
        assert (ROOT / file).is_file(), words
        assert f"\ndef {test}(" in (ROOT / file).read_text() or not test, words


@pytest.mark.parametrize(
    "name", sorted(p.relative_to(ROOT).as_posix() for p in [ROOT / "README.md", *ROOT.glob("docs/*.md")])
)
def test_links_lead_somewhere(name: str) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", (ROOT / name).read_text())
    missing = [t for t in targets if "://" not in t and not ((ROOT / name).parent / t).exists()]
    assert not missing


_NAMED = re.compile(r"`(?:(tests/[\w/]+\.py)|(test_\w+)(\.py)?)?(?:\[(\w+?)(?:\.\.\.)?\])?`")
"""A test in a document: a file, or a function; and the case of a function (the one that was named last)."""


def missing_tests(text: str) -> list[str]:
    """What a text names as a test that is none."""
    sources = {path: path.read_text() for path in (ROOT / "tests").rglob("*.py")}
    found, homes = [], list(sources)
    for path, name, is_file, case in _NAMED.findall(text):
        if path or is_file:
            wanted = path or f"{name}.py"
            exists = any(p.as_posix().endswith(f"/{wanted}") for p in sources)
        elif name:
            homes = [p for p, source in sources.items() if f"def {name}(" in source]
            exists = bool(homes)
        else:
            exists = True
        if not exists or (case and not any(re.search(rf"\b{case}\b", sources[p]) for p in homes)):
            found.append(f"{path or name}[{case}]")
    return found


def test_tests_that_say_what_is_reliable_exist() -> None:
    """Each way to go wrong that the document lists has one."""
    text = (ROOT / "docs/reliability.md").read_text()
    assert missing_tests(text) == []
    rows = re.findall(r"^\| T(\d+) \|(.*)$", text, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
    assert len(rows) >= 11
    assert [number for number, row in rows if not any(path or name for path, name, *_ in _NAMED.findall(row))] == []


def test_a_test_that_does_not_exist_is_missed() -> None:
    unknown = "test_" + "nothing_of_the_kind"
    text = f"`{unknown}`, `test_docs.py`, `{unknown}.py`, `tests/st/test_docs.py`, `tests/st/{unknown}.py`"
    assert missing_tests(text) == [f"{unknown}[]", f"{unknown}[]", f"tests/st/{unknown}.py[]"]
    cases = "`test_python_blocks_run[guide]`, `[blocks]`, `[" + "nowhere" + "_at_all]`"
    assert missing_tests(cases) == ["[nowhere" + "_at_all]"]


@pytest.mark.parametrize(
    "name", sorted(p.relative_to(ROOT).as_posix() for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
)
def test_no_merge_is_left_half_done(name: str) -> None:
    """Prose is the one kind of file in which no other check stumbles over the marks of a conflict."""
    lines = (ROOT / name).read_text().splitlines()
    assert not [line for line in lines if re.match(r"(<{7}|={7}|>{7})( |$)", line)]


def test_the_speed_that_the_readme_claims_is_the_measured_one() -> None:
    measured = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    found = re.search(r"Faster than the best f32 rival on (\d+ of \d+) .* ours ([\d.]+); least ([\d.]+)\.", measured)
    assert found is not None
    count, mean, least = found.groups()
    most = max(
        float(ratio)
        for ratio in re.findall(r"^\| \S+ .*? us .*? ([\d.]+) \[[\d.]+, [\d.]+\] \|", measured, re.MULTILINE)
    )
    said = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"above 1 on {count} workloads: {least} to {most:.2f}, geometric mean {mean}" in said
