"""Options and environment switches: defaults, checks, and that every problem is named."""

from __future__ import annotations

import os
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from superkernel.codegen.cache import ObjectCache
from superkernel.core.errors import InputError, Violation
from superkernel.core.option import ACCELERATOR, FILE, HOST, TARGETS
from superkernel.core.options import OPTIONS, Options, parse_options
from superkernel.core.options_page import page
from superkernel.core.settings import DUMP_STAGES, cache_directory, dump_stages


def test_defaults_and_mappings() -> None:
    assert Options.of(None) == Options()
    assert Options.of({"sync": "full", "fuse": False}) == Options(sync="full", fuse=False)
    given = Options(pin=["host.*"])  # type: ignore[arg-type]
    assert Options.of(given) is given
    assert given.pin == ("host.*",)
    assert hash(given) == hash(Options(pin=("host.*",)))


@pytest.mark.parametrize(
    "bad",
    [
        {"sync": "none"},
        {"fuse": 1},
        {"fallback": "maybe"},
        {"watchdog_ms": -1},
        {"watchdog_ms": "x"},
        {"pin": "host"},
        {"locality": 1},
        {"preload": False},
        {"scopes": {"a": []}},
        {"scopes": {"a": ["x"], "b": ()}},
        {"scopes": {"a": ""}},
        {"x": 1},
        {"sync": np.array(["full", "minimal"])},
        {"sync": ["full"]},
        {"early_start": np.int64(1)},
        {"split": np.float64(2)},
    ],
)
def test_bad_options(bad: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        Options.of(bad)
    assert next(iter(bad)) in str(caught.value)


@pytest.mark.parametrize("name", ["streams", "locality"])
def test_truth_values_are_switches(name: str) -> None:
    for given, meant in ((False, "off"), (True, "auto")):
        options = Options.of({name: given})
        assert getattr(options, name) == meant
        assert options == Options.of({name: meant})
        assert repr(options) == repr(Options.of({name: meant}))


class _Level(StrEnum):
    FULL = "full"


class _Name(str):
    pass


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"watchdog_ms": 1000}, {"watchdog_ms": 1000.0}),
        ({"watchdog_ms": np.float32(0.5)}, {"watchdog_ms": 0.5}),
        ({"watchdog_ms": np.int16(3)}, {"watchdog_ms": 3.0}),
        ({"split": np.int64(2)}, {"split": 2}),
        ({"func_align": IntEnum("Align", {"LINE": 64}).LINE}, {"func_align": 64}),  # type: ignore[attr-defined]
        ({"fuse": np.bool_(False)}, {"fuse": False}),
        ({"locality": np.bool_(False)}, {"locality": "off"}),
        ({"sync": np.str_("full")}, {"sync": "full"}),
        ({"sync": _Level.FULL}, {"sync": "full"}),
        ({"pin": [np.str_("host.*"), _Name("x")]}, {"pin": ("host.*", "x")}),
        ({"dump": ("a",)}, {"dump": ["a"]}),
        ({"scopes": {_Name("a"): np.str_("x*")}}, {"scopes": ("a:x*",)}),
    ],
)
def test_equal_options_print_equally(given: dict[str, Any], meant: dict[str, Any]) -> None:
    """The key of a cached plan is made of what they print."""
    one, other = Options.of(given), Options.of(meant)
    assert (one, repr(one), hash(one)) == (other, repr(other), hash(other))
    assert {type(v) for v in vars(one).values()} <= {str, int, float, bool, tuple}


def test_a_scope_without_patterns_is_named() -> None:
    with pytest.raises(InputError, match=r"found 'idle:' \(hint: .*leave the scope out"):
        Options(scopes={"used": ["x"], "idle": []})  # type: ignore[arg-type]
    assert Options(scopes={}) == Options()  # type: ignore[arg-type]


def test_all_bad_options_at_once() -> None:
    with pytest.raises(InputError) as caught:
        Options(sync="x", fallback="y")  # type: ignore[arg-type]
    assert len(caught.value.violations) == 2


def test_unknown_names_and_bad_values_at_once() -> None:
    with pytest.raises(InputError) as caught:
        Options.of({"fuze": True, "sync": "minimum", "split": 65, "nix": 1})
    unknown, sync, split = map(str, caught.value.violations)
    assert unknown.endswith("found fuze, nix (hint: did you mean 'fuse'?)")
    assert sync == (
        "option 'sync': not a legal choice; expected minimal, type-range, full; found 'minimum' "
        "(hint: did you mean 'minimal'?)"
    )
    assert split == "option 'split': not a number in range; expected 1 to 64, or 'auto'; found 65"


@pytest.mark.parametrize("name", OPTIONS)
def test_a_declaration_holds_together(name: str) -> None:
    """What it says of its values is true of them, and each is checked, on Python's side and on the command line's."""
    each, wrong = OPTIONS[name], list[Violation]()
    assert each.check(each.default, wrong) == each.default
    for value in (*each.values, *each.steps.values(), *((each.off,) if each.steps else ())):
        each.check(value, wrong)
        assert parse_options([(name, str(value))]) in ({name: value}, {name: str(value)})
    assert not wrong
    assert each.doc.startswith(f"{each.effect}.")
    assert each.doc.endswith(".")
    assert "`" not in each.effect
    assert "](" not in each.effect
    assert {*each.idle, *each.refused} <= {*TARGETS}
    assert all({*choices} < {*each.choices} for choices in each.refused.values())
    assert each.targets
    for bad in (object(), None, 1.5j, b"" if each.entry == FILE else "nonsense", -1):
        each.check(bad, wrong)
    assert len(wrong) == 5
    assert all(each.location in str(v) and each.takes in str(v) for v in wrong)


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["deny=host.a*,host.b", "deny=x"], {"deny": ("host.a*", "host.b", "x")}),
        (["fuse=OFF", "cache=true"], {"fuse": False, "cache": True}),
        (["locality=on", "streams=off"], {"locality": True, "streams": "off"}),
        (["split=3", "func_align=64", "watchdog_ms=5"], {"split": 3, "func_align": 64, "watchdog_ms": 5.0}),
        (["split=auto", "preload=off", "nix=3"], {"split": "auto", "preload": "off", "nix": "3"}),
    ],
)
def test_words_of_the_command_line(words: list[str], values: dict[str, Any]) -> None:
    found = parse_options([(name, text) for name, _, text in (word.partition("=") for word in words)])
    assert found == values


def test_what_a_target_cannot_have_is_refused() -> None:
    options = Options(sync="type-range", precision="f16")
    assert [str(v) for v in options.refused(HOST)] == [
        "option 'sync': the host has one type of cores; expected minimal, full; found 'type-range'",
        "option 'precision': not on the host; expected auto, f32, tf32-like, bf16, int8; found 'f16'",
    ]
    assert options.refused(ACCELERATOR) == []
    (wrong,) = Options(precision="int8").refused(ACCELERATOR)
    assert str(wrong).endswith("expected auto, f32, f16, bf16; found 'int8'")


def test_the_page_is_up_to_date() -> None:
    hint = "run `python -m superkernel.core.options_page > docs/options.md`"
    path = Path(__file__).parents[2] / "docs" / "options.md"
    assert path.read_text(encoding="utf-8") == page(OPTIONS.values()), hint


def test_help_names_every_option() -> None:
    assert all(f"\n    {o.name}: {o.effect}" in str(Options.__doc__) for o in OPTIONS.values())


def test_options_of_nonsense() -> None:
    with pytest.raises(InputError, match="not Options"):
        Options.of(3)  # type: ignore[arg-type]


def test_dump_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SK_DUMP", "plan, graph")
    assert dump_stages() == {"plan", "graph"}
    monkeypatch.setenv("SK_DUMP", "all")
    assert dump_stages() == set(DUMP_STAGES)
    monkeypatch.setenv("SK_DUMP", "everything")
    with pytest.raises(InputError, match="SK_DUMP"):
        dump_stages()


def test_cache_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SK_CACHE_DIR", "off")
    assert cache_directory() is None
    monkeypatch.setenv("SK_CACHE_DIR", "/some/where")
    assert str(cache_directory()) == "/some/where"


def test_a_user_whom_the_system_does_not_know_has_a_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in containers: no HOME, and a number that is in no list of users."""

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    for name in ("HOME", "SK_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    directory = cache_directory()
    assert directory == tmp_path / f"superkernel-{os.getuid()}"
    assert ObjectCache(directory).directory == directory
    assert directory.stat().st_mode & 0o777 == 0o700
