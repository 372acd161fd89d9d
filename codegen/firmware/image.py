"""The firmware of a target as bytes: emitted, compiled through the object cache, linked at the start of memory."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from llvmlite import ir

from superkernel.codegen.aicore.linking import Image, LinkLayout, link
from superkernel.codegen.aicore.lower import compile_modules
from superkernel.codegen.cache import ObjectCache
from superkernel.codegen.firmware import cube, moves, vector, vector_moves
from superkernel.codegen.firmware.base import OPCODES, FirmwarePart
from superkernel.codegen.firmware.boot import ENTRY, START, firmware_boot_object
from superkernel.codegen.firmware.commands import CommandSet
from superkernel.codegen.firmware.memory import FirmwareMap
from superkernel.codegen.firmware.queues import ORDERING, QueueCode
from superkernel.codegen.firmware.sdma import SdmaCode
from superkernel.codegen.firmware.signals import SignalCode
from superkernel.codegen.firmware.traps import TrapCode
from superkernel.target.aicore import AicoreTarget

SETS: dict[str, CommandSet] = {
    "moves": moves.COMMANDS,
    "cube": cube.COMMANDS,
    "vector": vector.COMMANDS,
    "vector_moves": vector_moves.COMMANDS,
}


@dataclass(frozen=True)
class Firmware:
    """The linked firmware and where its data lies."""

    image: Image
    places: FirmwareMap


def firmware_texts(target: AicoreTarget, commands: Collection[str] | None = None) -> dict[str, str]:
    """IR text of each module, with the functions of some engine commands (None: of all)."""
    every = [name for name in OPCODES if name not in ORDERING]
    held = every if commands is None else [name for name in every if name in commands]
    texts = {}
    for name, of in SETS.items():
        module = ir.Module(name=f"firmware_{name}")
        if name == "vector_moves":
            vector_moves.emit_helpers(module)
        of.emit(module, target, held)
        texts[name] = str(module)
    module = ir.Module(name="firmware_queues")
    places = FirmwareMap(target)
    FirmwarePart(module, places).emit()
    QueueCode(module, places, held).emit()
    for part in (SignalCode, SdmaCode, TrapCode):
        part(module, places).emit()
    texts["queues"] = str(module)
    return texts


def build_firmware(target: AicoreTarget, cache: ObjectCache, commands: Collection[str] | None = None) -> Firmware:
    """Compile (or load) and link, with the functions of some engine commands (None: of all): whatever issues another
    one fails by its doorbell. Raises UnsupportedError for a target that the emulated machine cannot stand for."""
    places = FirmwareMap(target)
    texts = firmware_texts(target, commands)
    objects = compile_modules(list(texts.values()), cache)
    layout = LinkLayout(
        code_address=places.memory.ram_address,
        code_end=places.config,
        data_end=places.config,
        func_align=16,
        order=[START, ENTRY, "fw_trap", "fw_doorbell"],
        shared=(),
        entry=START,
    )
    image = link([firmware_boot_object(places), *objects], layout, ["boot", *texts])
    return Firmware(image, places)
