"""`superkernel completion`: a script that completes commands, arguments and their choices in a shell.

Everything in it is read from the parser of the command line and from the declared options: nothing is listed twice.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator

from superkernel.core.options import OPTIONS

SHELLS = ("bash", "zsh", "fish")
_BASH = """\
_superkernel() {
  local word path="" before="${COMP_WORDS[COMP_CWORD-1]}" now="${COMP_WORDS[COMP_CWORD]}" found=""
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "$path $word" in
@commands@
    esac
  done
  case "$path $before" in
@values@
  esac
  if [ -n "$found" ]; then
    COMPREPLY=($(compgen -W "$found" -- "$now"))
    return
  fi
  case "$path" in
@words@
  esac
  COMPREPLY=($(compgen -W "$found" -- "$now") $(compgen -f -- "$now"))
}
complete -o filenames -o bashdefault -F _superkernel superkernel
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `completion`."""
    parser.add_argument("shell", choices=SHELLS, help="what reads the script")


def completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script for a shell."""
    return _fish(parser) if shell == "fish" else _ZSH_HEAD + _bash(parser) if shell == "zsh" else _bash(parser)


_ZSH_HEAD = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"


def _parsers(parser: argparse.ArgumentParser, path: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The parser and those of its commands, each by its words."""
    yield path, parser
    for name, each in _commands(parser).items():
        yield from _parsers(each, f"{path} {name}")


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _values(action: argparse.Action) -> list[str]:
    """What may follow an argument, where that can be listed."""
    if action.dest == "option":
        return [f"{name}=" for name in OPTIONS]
    return (
        []
        if action.choices is None or isinstance(action, argparse._SubParsersAction)
        else list(map(str, action.choices))
    )


def _bash(parser: argparse.ArgumentParser) -> str:
    commands, values, words = [], [], []
    for path, each in _parsers(parser):
        names = list(_commands(each))
        commands += [f'      {shlex.quote(f"{path} {name}")}) path="$path $word";;' for name in names]
        for action in each._actions:
            if action.option_strings and (found := _values(action)):
                places = "|".join(shlex.quote(f"{path} {flag}") for flag in action.option_strings)
                values.append(f"    {places}) found={shlex.quote(' '.join(found))};;")
            elif not action.option_strings:
                names += _values(action)
        flags = [flag for action in each._actions for flag in action.option_strings]
        words.append(f"    {shlex.quote(path)}) found={shlex.quote(' '.join([*names, *flags]))};;")
    text = _BASH
    for name, lines in (("commands", commands), ("values", values), ("words", words)):
        text = text.replace(f"@{name}@", "\n".join(lines))
    return text


def _fish(parser: argparse.ArgumentParser) -> str:
    lines = ["complete -c superkernel -e"]
    for path, each in _parsers(parser):
        seen = "".join(f"; and __fish_seen_subcommand_from {word}" for word in path.split())
        commands = _commands(each)
        if commands:
            free = f"not __fish_seen_subcommand_from {' '.join(commands)}{seen}"
            for name, command in commands.items():
                told = shlex.quote((command.description or "").partition(". ")[0])
                lines.append(f"complete -c superkernel -f -n {shlex.quote(free)} -a {name} -d {told}")
        for action in each._actions:
            flags = " ".join(f"-l {f[2:]}" if f.startswith("--") else f"-s {f[1:]}" for f in action.option_strings)
            found = _values(action)
            if not flags and not found:
                continue
            where = f" -n {shlex.quote(seen.removeprefix('; and '))}" if seen else ""
            values = f" -x -a {shlex.quote(' '.join(found))}" if found else ""
            told = f" -d {shlex.quote(action.help)}" if action.help and flags else ""
            lines.append(f"complete -c superkernel{where} {flags}{values}{told}".replace("  ", " "))
    return "\n".join(lines) + "\n"
