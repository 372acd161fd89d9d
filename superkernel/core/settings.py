"""The environment variables that SuperKernel reads, all of them, in one place.

SK_DUMP       comma-separated stages to print to stderr: graph, simplified, subops, schedule, plan, ir, all
SK_TRACE      a file to which the compilation writes its stages with times (Chrome trace format, opens in Perfetto)
SK_CACHE_DIR  where compiled objects and plans are kept (default: the user's cache directory, where there is no home one
              of the user's own among the temporary files); "off" keeps nothing
SK_MACHINE    a profile file (docs/machine.md) to go by in place of the measured one; "default": the documented defaults
SK_CRASH_REPORTS  "off": a process that a kernel ends says nothing of it (by default a line on stderr)
SK_CPU        avx512 | avx2 | plain: generate code for at most this tier; with +emulated-tiles behind it, AMX emulated
              (read by codegen.host.features)
CXX, OBJCOPY, AR  the tools that libraries are built with, possibly with arguments (docs/libraries.md)
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from superkernel.core.errors import InputError

DUMP_STAGES = ("graph", "simplified", "subops", "schedule", "plan", "ir")


def dump_stages() -> frozenset[str]:
    """The stages SK_DUMP asks for. Raises InputError on a name that is no stage."""
    names = [n.strip() for n in os.environ.get("SK_DUMP", "").split(",") if n.strip()]
    unknown = [n for n in names if n not in (*DUMP_STAGES, "all")]
    if unknown:
        raise InputError(
            "not a stage", location="SK_DUMP", expected=", ".join((*DUMP_STAGES, "all")), found=", ".join(unknown)
        )
    return frozenset(DUMP_STAGES if "all" in names else names)


def crash_reports() -> bool:
    """Whether generated code is made known to the handler of its crashes. Raises InputError on another value."""
    value = os.environ.get("SK_CRASH_REPORTS", "on")
    if value not in ("on", "off"):
        raise InputError("not a value", location="SK_CRASH_REPORTS", expected="on or off", found=repr(value))
    return value == "on"


def trace_file() -> Path | None:
    """Where SK_TRACE wants the compilation's trace, or None."""
    name = os.environ.get("SK_TRACE")
    return Path(name) if name else None


def machine_file() -> str | None:
    """The profile that SK_MACHINE names: a file, or "default"; None where it names none."""
    return os.environ.get("SK_MACHINE") or None


def tool(variable: str) -> str | None:
    """The command of a tool that libraries are built with: CXX, OBJCOPY or AR."""
    return os.environ.get(variable) or None


def data_directory() -> Path | None:
    """Where the machine's profile is kept; None where the user has no such place."""
    from platformdirs import user_data_path

    try:
        directory = user_data_path("superkernel")
    except RuntimeError:  # nobody knows a home directory
        return None
    return directory if directory.is_absolute() else None


def cache_directory() -> Path | None:
    """The directory of compiled objects, or None where SK_CACHE_DIR switches it off."""
    name = os.environ.get("SK_CACHE_DIR")
    if name == "off":
        return None
    if name:
        try:
            return Path(name).expanduser()
        except RuntimeError as error:
            raise InputError("no such home directory", location="SK_CACHE_DIR", found=repr(name)) from error
    from platformdirs import user_cache_path

    try:
        directory = user_cache_path("superkernel")
    except RuntimeError:  # nobody knows a home directory: neither HOME nor the system's list of users
        directory = Path()
    if directory.is_absolute():
        return directory
    return Path(tempfile.gettempdir()) / f"superkernel-{os.getuid()}"  # the cache refuses it where it is another user's
