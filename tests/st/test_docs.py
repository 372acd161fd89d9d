"""The guides say what is true: their Python blocks run in order, their commands end with status 0, their links lead
somewhere."""

from __future__ import annotations

import doctest
import os
import re
import runpy
import shlex
import warnings
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from firmware_bench import needs_qemu

from superkernel._core import OversubscriptionWarning
from superkernel.cli import main
from superkernel.core.errors import InputError
from superkernel.kernels import unregister

HAS_TORCH = find_spec("torch") is not None or os.environ.get("SK_REQUIRE_TORCH") == "1"
ROOT = Path(__file__).parents[2]
TUTORIAL = "docs/tutorial.md"
GUIDES = tuple(
    path.relative_to(ROOT).as_posix()
    for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
    if "```python\n" in path.read_text() and path != ROOT / TUTORIAL
)
TORCH_GUIDES = ("docs/generation.md",)
"""Guides none of whose blocks runs without torch."""
QEMU_GUIDES = ("docs/emulator.md",)
COMMANDS = ("docs/getting-started.md", "docs/command-line.md", "docs/registry.md")
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(name: str, language: str) -> list[str]:
    """The contents of a document's blocks of a language ('' = none is given)."""
    return [text for tag, text in _BLOCK.findall((ROOT / name).read_text()) if tag == language]


def guide(name: str) -> Any:
    """A guide as a parameter, left out where what it is about is not installed."""
    needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
    return pytest.param(name, marks=[needs_torch] * (name in TORCH_GUIDES) + [needs_qemu] * (name in QEMU_GUIDES))


@pytest.fixture
def own_kernels() -> Iterator[None]:
    """Kernels that a guide registers are gone behind its test."""
    yield
    for kernel in ("mine.softmax", "example.row_sum"):
        with suppress(InputError):
            unregister(kernel)


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


def test_the_tutorial_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its blocks in one namespace, each against the text behind it; `...` stands for anything."""
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


def test_the_picture_is_what_its_command_draws(capsys: pytest.CaptureFixture[str]) -> None:
    main_of = runpy.run_path(str(ROOT / "docs" / "site" / "timeline.py"))["main"]
    assert main_of([]) == 0
    drawn = capsys.readouterr().out
    assert drawn == (ROOT / "docs" / "timeline.svg").read_text()
    times = re.findall(r": ([\d.]+) us<", drawn)
    assert len(times) == 2
    assert all(f"{time} us" in (ROOT / "README.md").read_text() for time in times)


def shell_lines(name: str) -> list[list[str]]:
    """The words of every `superkernel ...` line in the document's plain blocks; three blanks begin a remark."""
    lines = [line for text in blocks(name, "") for line in text.splitlines()]
    commands = [re.split(r"\s{3,}", line)[0] for line in lines if line.startswith("superkernel ")]
    return [shlex.split(command, comments=True)[1:] for command in commands]


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


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_end_well(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path)
    for copy in ("a.json", "b.json"):
        assert main(["kernels", "dump", "model.onnx", "-o", copy]) == 0
    commands = [[("model.onnx" if w == "MODEL" else w) for w in words] for words in shell_lines(name)]
    commands = [words for words in commands if not {"...", "COMMAND"} & set(words) and words[0] != "sim"]
    assert commands, f"{name} shows no command"
    for words in commands:
        command, file = (words[:-2], words[-1]) if ">" in words[-2:] else (words, None)
        with monkeypatch.context() as own:
            if command[0] == "tune":  # of this machine, not of the profile that all tests go by
                own.setenv("SK_MACHINE", "default")
                own.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
            status = main(command)
        captured = capsys.readouterr()
        assert status == 0, f"superkernel {' '.join(words)}\n{captured.err}"
        assert captured.out.strip()
        if file is not None:
            (tmp_path / file).write_text(captured.out)


def evidence(name: str) -> list[str]:
    """What stands in code in the last column of a document's tables headed "what shows it" or "raised by"."""
    found: list[str] = []
    for head, rows in re.findall(r"^\|(.*)\|\n\|[-|: ]+\|\n((?:\|.*\n)+)", (ROOT / name).read_text(), re.MULTILINE):
        if head.split("|")[-1].strip() in ("what shows it", "raised by"):
            for row in rows.splitlines():
                found += re.findall(r"`([^`]+)`", row.rstrip("|").rsplit(" | ", 1)[1])
    return found


def test_what_shows_a_row_of_the_registry_is_there_and_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], own_kernels: None
) -> None:
    named = evidence("docs/registry.md")
    assert len(named) > 40
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for copy in ("a.json", "b.json"):
        assert main(["kernels", "dump", "model.onnx", "-o", copy]) == 0
    for words in named:
        if words.startswith("superkernel "):
            capsys.readouterr()
            assert main(shlex.split(words)[1:]) == 0, words
            assert capsys.readouterr().out.strip(), words
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
