"""Commands that order other commands, and those of the system DMA engine."""

from __future__ import annotations

from superkernel.target.engines.build import choice, gm, number, reads, size, writes
from superkernel.target.engines.model import CommandOperand, CommandSpec, CoreType, Engine, Overlap

_QUEUES = (Engine.MTE2, Engine.MTE1, Engine.M, Engine.FIX, Engine.V, Engine.MTE3)
_ENGINE_NAMES = tuple(e.title for e in Engine)
_FLAG = number("flag", "which flag of the pair; below queue.flag_ids", bits=6)
_CROSS_FLAG = number("flag", "which cross-core flag; below sync.flags_per_core", bits=6)


def _peer(doc: str) -> CommandOperand:
    return choice("peer", doc, *_ENGINE_NAMES, default=None)


SYNC_COMMANDS = (
    CommandSpec(
        "set_flag",
        0x01,
        (Engine.CONTROL, *_QUEUES),
        "Adds 1 to the flag (this engine, peer, flag) of this core when all commands ahead of it in this queue "
        "are complete. From `control` it acts when the store executes. A count above queue.flag_count_max is an "
        "error. peer is another engine of this core, not sdma.",
        (_peer("the engine that will wait"), _FLAG),
        visible="choose(peer == 'control', cycles(sync.engine_register_ns), queue.flag_cycles)",
        not_on=(CoreType.AICPU,),
    ),
    CommandSpec(
        "wait_flag",
        0x02,
        (Engine.CONTROL, *_QUEUES),
        "Waits until the flag (peer, this engine, flag) of this core is above 0 and takes 1 from it; commands "
        "behind it in this queue start after that. On `control` the store itself waits, so that the control unit "
        "stands still. What peer did before its set_flag is visible to what this engine does behind the wait.",
        (_peer("the engine that sets"), _FLAG),
        not_on=(CoreType.AICPU,),
    ),
    CommandSpec(
        "barrier",
        0x03,
        _QUEUES,
        "Completes when all commands ahead of it in this queue are complete. Commands of a queue take effect in "
        "order without it: it costs time and changes no result.",
        (),
        start_up="queue.barrier_cycles",
    ),
    CommandSpec(
        "drain",
        0x04,
        (Engine.CONTROL,),
        "The store waits until the queue of every engine in the mask is empty, its last command is complete, and "
        "what this core wrote to global memory is visible to all. Bit e of the mask is the engine of window e; "
        "bits of engines that the core does not have are ignored, as are those of control and sdma.",
        (number("engines", "one bit per engine", bits=8, low=1, default=0xFF),),
        start_up="cycles(sync.drain_ns)",
        not_on=(CoreType.AICPU,),
    ),
    CommandSpec(
        "cross_set",
        0x05,
        (Engine.CONTROL, *_QUEUES),
        "Signals other cores when all commands ahead of it in this queue are complete and their writes to global "
        "memory are visible to all. From `control` it acts when the store executes, behind the control unit's "
        "earlier stores to global memory; engine queues are not drained. Every core has a count per flag. mode "
        "`type`: once every core of this core's type has signalled the flag in this mode once more, the count of "
        "every core of the type grows by 1. mode `group`: a cube core's signal adds 1 to the count of each vector "
        "core of its group; once every vector core of a group has signalled once more, the count of each cube "
        "core of the group grows by 1. mode `all`: as `type`, over all cube and vector cores. mode `across`: once "
        "every core of this core's type has signalled once more, the count of every core of the other type grows "
        "by 1. mode `pair`: adds 1 to the count of the first vector core of the group (a signal of its first cube "
        "core), or of that cube core (a signal of that vector core); other cores signal nobody. mode `mask`: adds "
        "1 to the count of core first_core + b for every bit b of mask (legal only with sync.point_to_point; a "
        "core may name itself; cores that do not exist are an error). What reaches both types of cores goes from "
        "core to core of a type first, then within each group, and takes both times. Signals are counted per "
        "(flag, mode), so that "
        "two modes on one flag do not complete one another, but they add to the same count. A count above "
        "sync.flag_count_max is an error.",
        (
            _CROSS_FLAG,
            choice("mode", "who is signalled", "type", "group", "all", "across", "pair", "mask", default=None),
            number("first_core", "mode `mask`: core of bit 0", bits=12, default=0),
            number("mask", "mode `mask`: one bit per core; at least one", bits=32, default=0),
        ),
        visible=(
            "choose(mode == 'group', cycles(sync.group_ns), choose(mode == 'pair', cycles(sync.group_ns), "
            "choose(mode == 'mask', cycles(sync.point_to_point_ns), "
            "choose(mode == 'type', cycles(sync.core_full_ns), cycles(sync.core_full_ns) + cycles(sync.group_ns)))))"
        ),
        not_on=(CoreType.AICPU,),
    ),
    CommandSpec(
        "cross_wait",
        0x06,
        (Engine.CONTROL,),
        "The store waits, without executing instructions, until this core's count of the flag is above 0, and "
        "takes 1 from it. What the signalling cores made visible before their cross_set is visible to everything "
        "behind the wait.",
        (_CROSS_FLAG,),
        not_on=(CoreType.AICPU,),
    ),
    CommandSpec(
        "notify",
        0x07,
        (Engine.CONTROL, *_QUEUES, Engine.SDMA),
        "When all commands ahead of it in this queue are complete and visible to all: `store` writes value to the "
        "8-byte word, `add` adds value to it in one atomic step, modulo 2^64. A release operation. From "
        "`control`, as cross_set. A word that is notified is never set back: its values only grow.",
        (
            gm("address", "the 8-byte word", align="8"),
            number("value", "what is stored or added", bits=64),
            choice("mode", "how", "store", "add"),
        ),
        accesses=(writes("address", "8"),),
        start_up="choose(mode == 'add', cycles(sync.atomic_ns), 1)",
        visible="cycles(sync.memory_flag_ns)",
    ),
    CommandSpec(
        "wait_memory",
        0x08,
        (Engine.CONTROL,),
        "The store waits, without executing instructions, until the 8-byte word is at least value, both unsigned. "
        "An acquire operation: what was visible to whoever wrote the word is visible to everything behind the "
        "wait.",
        (gm("address", "the 8-byte word", align="8"), number("value", "the least value that ends the wait", bits=64)),
        accesses=(reads("address", "8"),),
    ),
    CommandSpec(
        "sdma_prefetch",
        0x70,
        (Engine.SDMA,),
        "Brings the bytes into L2. Changes no memory; a hint that may be dropped, but the bytes must exist.",
        (gm("address", "first byte"), size("bytes", "how many", bits=32)),
        accesses=(reads("address", "bytes"),),
        start_up="cycles(sdma.startup_ns)",
        beats="transfer(sdma.rate_gb_per_s, bytes)",
    ),
    CommandSpec(
        "sdma_copy",
        0x71,
        (Engine.SDMA,),
        "Copies bytes within global memory.",
        (gm("dst", "first byte written"), gm("src", "first byte read"), size("bytes", "how many", bits=32)),
        accesses=(reads("src", "bytes"), writes("dst", "bytes")),
        overlap=Overlap.DISJOINT,
        start_up="cycles(sdma.startup_ns)",
        beats="transfer(sdma.rate_gb_per_s, bytes)",
    ),
)
