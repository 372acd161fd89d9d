"""`superkernel kernels list | explain | dump | size | merge | name`: arguments in, texts of
`superkernel.registry.commands` out."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superkernel.core.errors import InputError, UnsupportedError, Violation, raise_all
from superkernel.core.files import is_file
from superkernel.core.json_text import json_text
from superkernel.core.option import HOST
from superkernel.core.options import OPTIONS, Options
from superkernel.target.cpu import TIERS, CpuTarget, profiled
from superkernel.target.machine import load_profile
from superkernel.target.microcontroller import CORES, MicrocontrollerTarget

if TYPE_CHECKING:
    from superkernel.registry.selection import Registry
    from superkernel.runtime.kernel import Kernel
    from superkernel.target.aicore import AicoreTarget
    from superkernel.target.base import Target

Parser = argparse.ArgumentParser
Commands = argparse._SubParsersAction  # argparse names the type of `add_subparsers` no other way

_PROFILE = ".json"
"""What the name of a machine's profile ends in; accelerators' descriptions are .toml."""
_POLICY = ("objective", "precision", "determinism", "tolerance", "max_workspace_bytes", "allow", "deny", "pin")
"""Options that `explain` takes."""

_TARGET_HELP = (
    "of this accelerator (a preset's name or a description file), machine (its profile; default: host) or core"
)


def add_commands(
    parser: Parser,
    parser_class: type[Parser],
    model_arguments: Callable[[Parser], None],
    load_model: Callable[[argparse.Namespace], Kernel],
) -> None:
    """The verbs of `superkernel kernels`. `model_arguments` declares a model's arguments, `load_model` compiles it."""
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True, parser_class=parser_class)
    _add_list(verbs)
    _add_explain(verbs)

    text = "Which kernels a model needs, as a manifest (JSON)."
    sub = _add(verbs, "dump", text, lambda args: _dump(args, load_model))
    model_arguments(sub)
    text = "write the manifest here too; of a model with scopes, that of each to FILE with the scope in its name"
    sub.add_argument("-o", "--output", metavar="FILE", help=text)

    _add_size(verbs, model_arguments, load_model)
    sub = _add(verbs, "merge", "Merge manifests into one that serves all their models.", _merge)
    sub.add_argument("manifests", nargs="+", metavar="MANIFEST", help="files that `kernels dump` wrote")
    sub.add_argument("-o", "--output", required=True, metavar="FILE", help="file to write")
    sub.add_argument("--json", action="store_true", help="print the merged manifest")

    text = "Try kernels on problems: against the reference, with every access held to what they declare."
    _add_trials(_add(verbs, "test", text, _test))
    text = "Time kernels on problems, against the kernel that is taken without them."
    sub = _add(verbs, "bench", text, _bench)
    _add_trials(sub)
    sub.add_argument("--rounds", type=int, default=200, help="launches per median (default 200)")

    sub = _add(verbs, "name", "What a canonical kernel name says, ours or XNNPACK's.", _name)
    sub.add_argument("name", help="such as xnn_f32_dwconv_minmax_ukernel_5f5m5l16c8s4r__avx2")
    sub.add_argument("--elements", type=int, metavar="N", help="how its tile walks a window of N elements")
    sub.add_argument("--channels", type=int, metavar="N", help="how its tile walks N channels")


def _add_size(
    verbs: Commands[Any],
    model_arguments: Callable[[Parser], None],
    load_model: Callable[[argparse.Namespace], Kernel],
) -> None:
    text = "What the code of kernels takes: all of some models, those that a manifest lists, each alone."
    sub = _add(verbs, "size", text, lambda args: _size(args, load_model))
    model_arguments(sub)
    sub.add_argument("more", nargs="*", metavar="MODEL", help="further models for the same target")
    text = "count as selected what this manifest lists; repeatable, merged (default: all)"
    sub.add_argument("--selected", action="append", default=[], metavar="FILE", help=text)
    text = "of an accelerator: what the emulator's firmware takes, too, with the engine commands of these kernels alone"
    sub.add_argument("--firmware", action="store_true", help=text)


def _size(args: argparse.Namespace, load_model: Callable[[argparse.Namespace], Kernel]) -> int:
    from superkernel.registry.commands import kernels_size
    from superkernel.registry.manifest import Manifest, merge

    _raise_missing(args.selected)
    kernels = {
        name: load_model(argparse.Namespace(**{**vars(args), "model": name})) for name in (args.model, *args.more)
    }
    models = {name: (kernel.manifest(), kernel.function_bytes()) for name, kernel in kernels.items()}
    given = [manifest for manifest, _ in models.values()]
    selected = merge(map(Manifest.load, args.selected)) if args.selected else None
    merge([*given, *([selected] if selected is not None else [])])  # of one version, registry, ABI and target
    firmware = _firmware_bytes([*kernels.values()]) if args.firmware else None
    print(kernels_size(models, selected, firmware=firmware, as_json=args.json))
    return 0


def _firmware_bytes(kernels: Sequence[Kernel]) -> Callable[[Iterable[str] | None], int]:
    """Bytes of code of a firmware that serves some kernel functions. Raises UnsupportedError where there is none."""
    issued = {name: commands for kernel in kernels for name, commands in kernel.commands().items()}

    def firmware_bytes(functions: Iterable[str] | None) -> int:
        held = None if functions is None else frozenset[str]().union(*(issued[name] for name in functions))
        return kernels[0].firmware_bytes(held)

    return firmware_bytes


def _raise_missing(paths: list[str]) -> None:
    missing = [path for path in paths if not is_file(path)]
    raise_all(InputError, [Violation("no such file", f"file {path!r}") for path in missing])


def _add(verbs: Commands[Any], name: str, text: str, run: Callable[[argparse.Namespace], int]) -> Parser:
    sub: Parser = verbs.add_parser(name, help=text, description=text)
    sub.set_defaults(command=run)
    return sub


def _add_trials(sub: Parser) -> None:
    sub.add_argument("pattern", help="ids of kernels, such as 'mine.*'")
    sub.add_argument("--target", metavar="NAME", help=_TARGET_HELP)
    sub.add_argument("--seed", type=int, default=0, help="of the inputs (default 0)")
    sub.add_argument("--json", action="store_true", help="machine-readable output")


def _add_list(verbs: Commands[Any]) -> None:
    sub = _add(verbs, "list", "All kernels, or those that the options ask for.", _list)
    sub.add_argument("--op", help="serves this operator")
    sub.add_argument("--dtype", help="takes this element type as first input")
    sub.add_argument("--role", choices=[r.value for r in _roles()], help="has this role")
    sub.add_argument("--tier", choices=TIERS, help="runs on this instruction-set tier")
    sub.add_argument("--target", metavar="NAME", help=_TARGET_HELP)
    sub.add_argument("--json", action="store_true", help="machine-readable output")


def _add_explain(verbs: Commands[Any]) -> None:
    text = "Which kernel computes a problem and why; or what the kernels of an operator demand."
    sub = _add(verbs, "explain", text, _explain)
    what = "a problem such as 'matmul(f32[8,64], const f32[64,64])', an operator, or a pattern of kernel ids"
    sub.add_argument("query", help=what)
    sub.add_argument("--tier", choices=TIERS, help="choose for this instruction-set tier (default: the CPU's best)")
    sub.add_argument("--target", metavar="NAME", help=_TARGET_HELP)
    sub.add_argument(
        "--allow", action="append", default=[], metavar="PATTERN", help="kernels to choose from; repeatable"
    )
    sub.add_argument("--deny", action="append", default=[], metavar="PATTERN", help="kernels not to take; repeatable")
    sub.add_argument("--pin", action="append", default=[], metavar="PATTERN", help="kernels to take; repeatable")
    for option in (OPTIONS["objective"], OPTIONS["precision"], OPTIONS["determinism"]):
        name, choices = f"--{option.name}", option.choices_on(HOST)
        sub.add_argument(name, choices=choices, default=option.default, help=option.effect)
    for option in (OPTIONS["tolerance"], OPTIONS["max_workspace_bytes"]):
        name = "--" + option.name.replace("_", "-")
        sub.add_argument(name, metavar="N", type=option.parse, default=option.default, help=option.effect)
    sub.add_argument("--json", action="store_true", help="machine-readable output")


def _accelerator(args: argparse.Namespace) -> AicoreTarget | None:
    """The accelerator of `--target`; None: the host, another machine with its CPU, a microcontroller."""
    if args.target in (None, "host", *CORES) or args.target.endswith(_PROFILE):
        return None
    if args.tier is not None:
        raise InputError("--tier is of the host, --target of an accelerator", location="--target", found=args.target)
    from superkernel.target.aicore import load_target

    return load_target(args.target)


def _core(args: argparse.Namespace) -> CpuTarget | None:
    """The microcontroller of `--target`, if that is one."""
    from superkernel.backends import backend_of

    found: CpuTarget | None = backend_of(MicrocontrollerTarget.kind).named(args.target or HOST)
    return found


def _machine(args: argparse.Namespace, tier: str | None = None) -> CpuTarget:
    """The host of `--target`, the machine whose profile that is, or a microcontroller."""
    from superkernel.codegen.host.features import detect_cpu

    core = _core(args)
    if core is not None:
        if tier is not None:
            raise InputError("--tier is of the host, --target of a core", location="--target", found=args.target)
        return core
    cpu, profile = detect_cpu(tier), args.target or ""
    return profiled(cpu, load_profile(profile)) if profile.endswith(_PROFILE) else cpu


def _registry_of(accelerator: AicoreTarget | None) -> Registry:
    from superkernel.scheduler.families import HOST_KERNELS
    from superkernel.scheduler.families.aicore import AICORE_KERNELS

    return HOST_KERNELS.registry if accelerator is None else AICORE_KERNELS.registry


def _roles() -> tuple[Any, ...]:
    from superkernel.registry.records import KernelRole

    return tuple(KernelRole)


def _list(args: argparse.Namespace) -> int:
    from superkernel.ops.table import find_op, suggest_ops
    from superkernel.registry.commands import kernels_list

    if args.op is not None and find_op(args.op) is None:
        near = suggest_ops(args.op)
        hint = f"did you mean {', '.join(near)}?" if near else ""
        raise InputError(f"unknown operator {args.op!r}", location="--op", hint=hint)
    rows, wanted = _registry_of(_accelerator(args)), {"op": args.op, "dtype": args.dtype, "role": args.role}
    core = _core(args)
    tier, features = (args.tier, None) if core is None else (core.tier, core.extensions())
    print(kernels_list(rows, **wanted, tier=tier, features=features, as_json=args.json))
    return 0


def _explain(args: argparse.Namespace) -> int:
    from superkernel.registry.commands import kernels_explain
    from superkernel.registry.records import Policy

    accelerator = _accelerator(args)
    if accelerator is not None and args.precision != "auto":
        hint = "an accelerator's problem has its element types in it, such as matmul(f16[8,64], const f16[64,64])"
        raise InputError("--precision is of the host", location="--target", found=args.target, hint=hint)
    options = {name: getattr(args, name) for name in _POLICY}
    rows, target = _registry_of(accelerator), accelerator or _machine(args, args.tier)
    policy = Policy.of(Options.of(options), target)
    print(kernels_explain(rows, args.query, target=target, policy=policy, as_json=args.json))
    return 0


def _dump(args: argparse.Namespace, load_model: Callable[[argparse.Namespace], Kernel]) -> int:
    from superkernel.registry.commands import kernels_dump

    kernel = load_model(args)
    if args.output is not None:
        write_manifests(kernel, Path(args.output))
    print(kernels_dump(kernel.manifest()))
    return 0


def add_dump_argument(parser: Parser) -> None:
    """`--dump-kernels` of `superkernel compile`."""
    text = "write the manifest of its kernels here; of a model with scopes, that of each to FILE with the scope's name"
    parser.add_argument("--dump-kernels", metavar="FILE", help=text)


def write_manifests(kernel: Kernel, path: Path) -> list[str]:
    """The manifest of a model to a file, and those of its scopes beside it; the files' names."""
    kernel.manifest().save(path)
    written, parts = [str(path)], kernel.part_manifests()
    for scope, manifest in parts.items() if len(parts) > 1 else ():
        word = re.sub(r"[^\w.-]", "_", scope) or "rest"
        part = path.with_name(f"{path.stem}.{word}{path.suffix}")
        manifest.save(part)
        written.append(str(part))
    return written


def _test(args: argparse.Namespace) -> int:
    from superkernel.analysis.kernel_trials import text_of, trials

    found = list(trials(*_tried(args), args.seed))
    print(json_text([asdict(t) for t in found], 1) if args.json else text_of(found))
    return 1 if any(t.fault for t in found) else 0


def _bench(args: argparse.Namespace) -> int:
    from superkernel.analysis.kernel_trials import timings, timings_text

    found = list(timings(*_tried(args), args.rounds, args.seed))
    print(json_text([asdict(t) for t in found], 1) if args.json else timings_text(found))
    return 0


def _tried(args: argparse.Namespace) -> tuple[Any, str, Target]:
    """The kernels, the pattern and the target of a trial."""
    from superkernel.scheduler.families import HOST_KERNELS
    from superkernel.scheduler.families.aicore import AICORE_KERNELS
    from superkernel.target.aicore import load_target

    if args.target in (None, "host", *CORES) or args.target.endswith(_PROFILE):
        if _core(args) is not None:
            raise UnsupportedError(
                "a microcontroller's kernels do not run here", location="--target", found=args.target
            )
        return HOST_KERNELS, args.pattern, _machine(args)
    return AICORE_KERNELS, args.pattern, load_target(args.target)


def _name(args: argparse.Namespace) -> int:
    from superkernel.registry.commands import kernels_name

    print(kernels_name(args.name, elements=args.elements, channels=args.channels))
    return 0


def _merge(args: argparse.Namespace) -> int:
    from superkernel.registry.commands import kernels_merge

    _raise_missing(args.manifests)
    said = kernels_merge(args.manifests, output=args.output)
    print(Path(args.output).read_text(encoding="utf-8").rstrip() if args.json else said)
    return 0
