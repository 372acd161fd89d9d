"""`superkernel target list | show NAME | check FILE | validate NAME`: the accelerator's descriptions."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from superkernel.core.counted import counted
from superkernel.core.errors import InputError
from superkernel.core.json_text import json_text

Parser = argparse.ArgumentParser
Commands = argparse._SubParsersAction  # argparse names the type of `add_subparsers` no other way


def add_commands(parser: Parser, parser_class: type[Parser]) -> None:
    """The verbs of `superkernel target`."""
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True, parser_class=parser_class)
    _add(verbs, "list", "The presets of the accelerator.", _list)
    sub = _add(verbs, "show", "Every number of a description, with its origin.", _show)
    sub.add_argument("name", metavar="NAME", help="a preset, or a .toml file")
    sub.add_argument("--toml", action="store_true", help="as a complete .toml file to start one's own from")
    sub = _add(verbs, "check", "Check a description; reports everything that is wrong with it.", _check)
    sub.add_argument("file", metavar="FILE", help="a .toml file, or a preset's name")
    sub = _add(verbs, "validate", "Published figures against what the simulated engines do.", _validate)
    sub.add_argument("name", metavar="NAME", help="a preset, or a .toml file")
    sub.add_argument("--page", action="store_true", help="as the page docs/validation.md")


def _add(verbs: Commands[Any], name: str, text: str, run: Callable[[argparse.Namespace], int]) -> Parser:
    sub: Parser = verbs.add_parser(name, help=text, description=text)
    sub.set_defaults(command=run)
    sub.add_argument("--json", action="store_true", help="machine-readable output")
    return sub


def _list(args: argparse.Namespace) -> int:
    from superkernel.target.aicore import load_target, preset_names

    targets = [load_target(name) for name in preset_names()]
    if args.json:
        print(json_text([{"name": t.name, "description": t.description, "cores": t.cores} for t in targets]))
    else:
        print("\n".join(f"{t.name:8}{t.description}" for t in targets))
    return 0


def _show(args: argparse.Namespace) -> int:
    from superkernel.target.aicore import load_target
    from superkernel.target.text import table, to_json

    if args.json and args.toml:
        raise InputError("--json and --toml exclude one another")
    target = load_target(args.name)
    if args.json:
        print(json_text(to_json(target)))
    else:
        print(target.text().rstrip() if args.toml else table(target))
    return 0


def _check(args: argparse.Namespace) -> int:
    from superkernel.target.aicore import load_target

    target = load_target(args.file)
    counts = {kind: sum(o == kind for _, o in target.origins) for kind in ("published", "default", "user")}
    if args.json:
        print(json_text({"ok": True, "name": target.name, "cores": target.cores, "origins": counts}))
    else:
        said = ", ".join(f"{number} {kind}" for kind, number in counts.items())
        print(f"{target.name}: {counted(target.cores, 'core')}, {len(target.origins)} fields ({said})")
    return 0


def _validate(args: argparse.Namespace) -> int:
    from superkernel.analysis import validation_page
    from superkernel.analysis.validation import validate
    from superkernel.target.aicore import load_target

    if args.json and args.page:
        raise InputError("--json and --page exclude one another")
    target = load_target(args.name)
    rows = validate(target)
    if args.json:
        print(json_text({"name": target.name, "facts": [row.to_json() for row in rows]}))
    else:
        shown = validation_page.page if args.page else validation_page.text
        print(shown(target, rows).rstrip())
    return 0
