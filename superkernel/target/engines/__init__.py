"""The engine command table: what each asynchronous engine of the accelerator can be told, and how it is told.

`table` has the commands, `encoding` turns one into the words of the register page and back, `generate` writes what
other languages and the documentation take from the table.
"""

from superkernel.target.engines.checking import check, footprint
from superkernel.target.engines.command import Command, command
from superkernel.target.engines.encoding import decode, encode, stores
from superkernel.target.engines.model import CommandSpec, CoreType, Engine, Local
from superkernel.target.engines.table import command_table, spec_of

__all__ = [
    "Command",
    "CommandSpec",
    "CoreType",
    "Engine",
    "Local",
    "check",
    "command",
    "command_table",
    "decode",
    "encode",
    "footprint",
    "spec_of",
    "stores",
]
