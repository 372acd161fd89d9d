"""The accelerator's description: presets, the file format, what is refused, derived figures."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from superkernel.core.errors import FileFormatError, InputError
from superkernel.target.aicore import AicoreTarget, load_target, parse_target, preset_names
from superkernel.target.checks import _RANGES, _RELATIONS
from superkernel.target.schema import UNITS, FieldSpec, Value
from superkernel.target.sections import all_fields
from superkernel.target.text import table, to_json

HEAD = 'schema_version = 1\nname = "t"\nbase = "a3"\n'

# The published figures, written down again: path, value on a3, origin.
PUBLISHED: list[tuple[str, Any]] = [
    ("device.cube_cores", 24),
    ("device.vector_cores", 48),
    ("device.clock_mhz", 1850),
    ("memory.l1_bytes", 512 * 1024),
    ("memory.l0a_bytes", 64 * 1024),
    ("memory.l0b_bytes", 64 * 1024),
    ("memory.l0c_bytes", 128 * 1024),
    ("memory.ub_bytes", 192 * 1024),
    ("icache.cube_bytes", 32 * 1024),
    ("icache.vector_bytes", 16 * 1024),
    ("icache.line_bytes", 128),
    ("l2.capacity_bytes", 192 * 1024 * 1024),
    ("l2.line_bytes", 512),
    ("l2.aggregate_gb_per_s", 5000.0),
    ("hbm.core_bytes_per_cycle", 32),
    ("rates.gm_to_ub_gb_per_s", 100.9),
    ("rates.gm_to_l1_gb_per_s", 135.0),
    ("rates.ub_to_gm_gb_per_s", 188.0),
    ("rates.l1_to_l0a_gb_per_s", 441.0),
    ("rates.l1_to_l0b_gb_per_s", 220.0),
    ("rates.l0c_to_gm_gb_per_s", 70.0),
    ("dma.near_peak_bytes", 16 * 1024),
    ("dma.size_curve_bytes", (1024, 2048, 4096, 6144)),
    ("dma.size_curve_gb_per_s", (277.0, 475.0, 677.0, 1090.0)),
    ("dma.unaligned_loss_percent", 30.0),
    ("cube.k_f16", 16),
    ("cube.k_i8", 32),
    ("cube.k_f32", 4),
    ("vector.lanes_16bit", 128),
    ("vector.lanes_32bit", 64),
    ("vector.lanes_special", 32),
    ("queue.depth_commands", 32),
    ("sync.drain_ns", 12),
    ("sync.core_full_ns", 920),
    ("sync.memory_flag_ns", 1040),
    ("sync.engine_register_ns", 600),
]
DEFAULTS: list[tuple[str, Any]] = [
    ("icache.ways", 4),
    ("icache.miss_latency_cycles", 150),
    ("icache.fill_bytes_per_cycle", 64),
    ("sync.group_ns", 150),
    ("sync.flag_count_max", 15),
    ("map.page_address", 0x08000000),
]
VARIED = {
    "icache.miss_latency_cycles": (50, 600),
    "sync.core_full_ns": (500, 5000),
    "dispatch.launch_ns": (300, 20_000),
    "hbm.rate_gb_per_s": (1600, 1800),
    "dispatch.steady_ns": (200, 500),
    "dispatch.first_ns": (300, 5600),
    "sync.write_flush_ns": (150, 300),
}


@pytest.fixture(scope="module")
def a3() -> AicoreTarget:
    return load_target("a3")


def refused(text: str, **options: Any) -> list[str]:
    """Every violation of a text, one line each."""
    with pytest.raises(FileFormatError) as caught:
        parse_target(text, **options)
    return [str(v) for v in caught.value.violations]


def test_a_preset_is_read_once() -> None:
    """What is remembered of compilations holds its target, which would be another one for each."""
    assert load_target("mini") is load_target("mini")
    assert load_target("mini") != load_target("a3")


def test_a3_has_the_published_figures_and_says_so(a3: AicoreTarget) -> None:
    for path, value in PUBLISHED:
        assert (a3.value(path), a3.origin(path)) == (value, "published"), path
    for path, value in DEFAULTS:
        assert (a3.value(path), a3.origin(path)) == (value, "default"), path
    for path, span in VARIED.items():
        assert a3.range_of(path) == span, path


def test_presets() -> None:
    assert preset_names() == ("a2", "a3", "mini")
    a2, mini = load_target("a2"), load_target("mini")
    assert (a2.device.cube_cores, a2.device.vector_cores, a2.device.clock_mhz) == (20, 40, 1500)
    assert a2.l2.capacity_bytes == 96 << 20
    assert (mini.device.cube_cores, mini.device.vector_cores, mini.cores) == (2, 4, 6)
    assert mini.origin("device.groups") == "default"
    assert mini.sync.point_to_point is True
    for name in preset_names():
        target = load_target(name)
        assert target.name == name
        assert {origin for _, origin in target.origins} == {"published", "default"}
        assert len(target.origins) == len(all_fields())


def test_every_field_has_unit_meaning_and_range() -> None:
    unitless = re.compile(
        r"groups|.*_per_group|.*_cores|.*_harts|.*_engines|ways|banks|channels|m|n|k_\w+|lanes_\w+|flag\w*|scale"
    )
    for spec in all_fields().values():
        assert spec.quantity.doc, spec.path
        if spec.is_numeric:
            assert spec.unit or unitless.fullmatch(spec.name), spec.path
            assert spec.quantity.low < spec.quantity.high, spec.path
        else:
            assert not spec.unit, spec.path
    assert len(set(UNITS.values())) == len(UNITS)


def test_page_lies_where_the_emulated_machine_has_nothing(a3: AicoreTarget) -> None:
    assert a3.map.page_address == 0x0800_0000
    assert a3.map.ram_address == 0x8000_0000


@pytest.mark.parametrize("name", ["a2", "a3", "mini"])
def test_text_parses_back(name: str) -> None:
    target = load_target(name)
    assert parse_target(target.text()) == target
    assert "base" not in target.text()


def _random_value(spec: FieldSpec, rng: random.Random) -> Value:
    low, high = spec.quantity.low, spec.quantity.high
    if spec.element is float:
        return rng.uniform(low, high)
    if spec.quantity.power_of_two:
        return 1 << rng.randint((int(low) - 1).bit_length(), int(high).bit_length() - 1)
    step = spec.quantity.multiple_of
    return rng.randint(-(-int(low) // step), int(high) // step) * step


def test_random_values_parse_back() -> None:
    """Fields without relations to others, set to random legal values, survive the text."""
    related = {path for relation in _RELATIONS for path in relation.paths}
    related |= {*_RANGES, *map(str, _RANGES.values())}
    free = [s for s in all_fields().values() if s.is_numeric and not s.is_list and s.path not in related]
    rng = random.Random(7)
    for _ in range(20):
        values = {spec.path: _random_value(spec, rng) for spec in rng.sample(free, 12)}
        target = load_target("a3").replaced(values)
        assert {path: target.value(path) for path in values} == values
        assert all(target.origin(path) == "user" for path in values)
        assert parse_target(target.text()) == target


def test_strange_names_parse_back(a3: AicoreTarget) -> None:
    text = a3.text().replace('name = "a3"', 'name = "q\\"\\\\ \\u007f é\\n"', 1)
    target = parse_target(text)
    assert target.name == 'q"\\ \x7f é\n'
    assert parse_target(target.text()) == target


def test_users_file(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text(HEAD + "[icache]\nways = 8\n[sensitivity]\n'sync.drain_ns' = [10, 20]\n")
    own = tmp_path / "own.toml"
    own.write_text('schema_version = 1\nname = "own"\nbase = "base.toml"\n[icache]\nmiss_latency_cycles = 300\n')
    target = load_target(own)
    assert (target.name, target.icache.ways, target.icache.miss_latency_cycles) == ("own", 8, 300)
    assert target.origin("icache.ways") == target.origin("icache.miss_latency_cycles") == "user"
    assert target.origin("icache.line_bytes") == "published"
    assert target.range_of("sync.drain_ns") == (10, 20)
    assert load_target(str(own)) == target


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[icahce]\nways = 4", r"icahce: unknown section \(hint: did you mean 'icache'\?\)"),
        ("[icache]\nway = 4", r"icache.way: unknown field \(hint: did you mean 'ways'\?\)"),
        ("[icache]\nmiss_latency_ns = 80", r"did you mean 'miss_latency_cycles'\?"),
        ("[icache]\nl1_bytes = 80", r"did you mean 'memory.l1_bytes'\?"),
        ("[published.icahce]\nways = 4", r"published.icahce: unknown section .*'icache'"),
        ("[icache]\nmiss_latency_cycles = 0", r"out of range; expected an integer from 1 to 10000 \(cycles\); found 0"),
        ("[icache]\nmiss_latency_cycles = 1.5", r"wrong type; expected an integer .*found 1.5"),
        ("[icache]\nmiss_latency_cycles = true", r"wrong type"),
        ("[icache]\nmiss_latency_cycles = '9'", r"wrong type"),
        ("[icache]\nline_bytes = 96", r"not a power of two; .*a power of two \(bytes\); found 96"),
        ("[l2]\nline_bytes = 1000", r"not a power of two"),
        ("[map]\npage_address = 0x08000001", r"not a multiple of 4096"),
        ("[memory]\nub_bytes = -32", r"out of range"),
        ("[hbm]\nrate_gb_per_s = nan", r"out of range"),
        ("[hbm]\nrate_gb_per_s = inf", r"out of range"),
        (f"[hbm]\nrate_gb_per_s = 1{'0' * 400}", r"out of range"),
        ("[hbm]\nrate_gb_per_s = 2020-01-01", r"wrong type"),
        ("[sync]\npoint_to_point = 1", r"expected true or false"),
        ("[control]\nisa = 64", r"expected a text"),
        ("[dma]\nsize_curve_bytes = [2, 1, 3, 4]", r"not increasing"),
        ("[dma]\nsize_curve_bytes = 5", r"expected a list of integers"),
        ("[dma]\nsize_curve_bytes = []", r"wrong type"),
        ("[dma]\nsize_curve_bytes = [1, 2.5, 3, 4]", r"wrong type"),
        ("icache = 4", r"icache: not a table of values"),
        ("published = 4", r"published: not a table of sections"),
        ("[icache]\nways = 4\n[default.icache]\nways = 8", r"default.icache.ways: set twice in one file"),
        ("[sensitivity]\n'icache.way' = [1, 2]", r"sensitivity.icache.way: unknown field .*'ways'"),
        ("[sensitivity]\nicache.ways = [1, 2]", r"write the path in quotes"),
        ("[sensitivity]\n'icache.ways' = [2, 8, 9]", r"not a range; expected \[low, high\]"),
        ("[sensitivity]\n'icache.ways' = [8, 2]", r"empty range"),
        ("[sensitivity]\n'icache.ways' = [3, 8]", r"not a power of two"),
        ("[sensitivity]\n'sync.point_to_point' = [0, 1]", r"only single numbers"),
        ("[sensitivity]\n'icache.miss_latency_cycles' = [200, 600]", r"the value lies outside; expected 200 to 600"),
    ],
)
def test_wrong_values_are_refused(text: str, expected: str) -> None:
    head, _, body = text.partition("\n") if not text.startswith("[") else ("", "", text)
    found = refused(f"{HEAD}{head}\n{body}\n")
    assert len(found) == 1, found
    assert re.search(expected, found[0]), found[0]


CROSS = {
    "[device]\ngroups = 30\ncube_cores = 24\nvector_cores = 48": [
        "device.cube_cores: not groups x cube_cores_per_group",
        "device.vector_cores: not",
    ],
    "[memory]\nl1_bytes = 5000": ["memory.l1_bytes: not a multiple of memory.block_bytes"],
    "[memory]\nub_bytes = 4097": ["memory.ub_bytes: not a multiple of memory.block_bytes"],
    "[memory]\nl0a_bytes = 1000": ["memory.l0a_bytes: not a multiple of memory.fractal_bytes"],
    "[memory]\nl0b_bytes = 1000": ["memory.l0b_bytes: not a multiple of memory.fractal_bytes"],
    "[memory]\nl0c_bytes = 1500": ["memory.l0c_bytes: not a multiple of memory.accumulator_bytes"],
    "[memory]\nfractal_bytes = 1024": ["memory.fractal_bytes: not one fractal"],
    "[memory]\naccumulator_bytes = 512": ["memory.accumulator_bytes: not one block"],
    "[cube]\nn = 32": ["cube.n: differs from cube.m", "memory.accumulator_bytes: not one block"],
    "[icache]\nvector_bytes = 10_240": ["icache.vector_bytes: gives no power-of-two"],
    "[icache]\ncube_bytes = 30_000": ["icache.cube_bytes: gives no power-of-two"],
    "[icache]\naicpu_bytes = 98_304": ["icache.aicpu_bytes: gives no power-of-two"],
    "[l2]\nline_bytes = 64": ["l2.line_bytes: an instruction line would straddle"],
    "[l2]\ncapacity_bytes = 5000": ["l2.capacity_bytes: not a multiple of l2.line_bytes"],
    "[dma]\naligned_bytes = 16": ["dma.aligned_bytes: not a multiple of memory.block_bytes"],
    "[dma]\nsize_curve_gb_per_s = [1.0]": ["dma.size_curve_gb_per_s: not one rate per size"],
    "[dma]\nworking_set_bytes = [1, 2]": ["dma.working_set_gb_per_s: not one rate per size"],
    "[vector]\nlanes_16bit = 32": ["vector.lanes_16bit: fewer lanes than"],
    "[vector]\nlanes_special = 128": ["vector.lanes_special: more lanes than"],
    "[sync]\ngroup_ns = 2000": ["sync.group_ns: more expensive than"],
    "[dispatch]\nfirst_ns = 100": ["dispatch.first_ns: cheaper than"],
    '[control]\nisa = "rv64imac_zicbop_zihintpause"': ["control.isa: not an instruction set"],
    '[control]\nisa = "rv64imafdc_zicbop"': ["control.isa: not an instruction set"],
    "[map]\npage_address = 0x80001000": ["map.page_address: overlaps map.ram_address"],
    "[map]\nram_address = 0xfffffffff000": ["map.ram_address: ends above 2^48"],
}


@pytest.mark.parametrize("text", CROSS)
def test_relations(text: str) -> None:
    expected = CROSS[text]
    found = refused(f"{HEAD}{text}\n")
    assert len(found) == len(expected), found
    assert all(any(e in f for f in found) for e in expected), found


def test_every_relation_has_a_case_that_it_refuses() -> None:
    named = {line.split(":")[0] for lines in CROSS.values() for line in lines}
    for relation in _RELATIONS:
        assert relation.paths[0] in named, relation
    assert named & set(_RANGES)


def test_all_violations_at_once(a3: AicoreTarget) -> None:
    found = refused('schema_version = 2\nbase = "a33"\n[icache]\nways = 3\n[what]\nx = 1\n[sync]\ndrain = 4\n')
    text = "\n".join(found)
    for part in ("schema_version", "unknown base", "did you mean 'a3'?", "name: missing", "ways", "what", "'drain_ns'"):
        assert part in text
    assert sum(": missing" in line for line in found) == len(all_fields())  # of the name, and of all fields but ways


def test_a_missing_version_of_the_format_is_told_from_another() -> None:
    (found,) = refused('name = "t"\nbase = "a3"\n')
    assert "schema_version: missing" in found
    assert 'add "schema_version = 1"' in found
    (found,) = refused('schema_version = true\nname = "t"\nbase = "a3"\n')
    assert "unknown version of the format; expected 1; found True" in found


def test_a_missing_field_is_named(a3: AicoreTarget) -> None:
    text = re.sub(r"^drain_ns = .*\n", "", a3.text(), flags=re.MULTILINE)
    (line,) = refused(text)
    assert "sync.drain_ns: missing; expected an integer from 0 to 1000000 (ns)" in line


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"not TOML.*line 1"):
        parse_target("this is = = not")
    for text in ("x = " + "[" * 5000, "x = " + "9" * 5000, "a = 1\na = 2", "\x00"):
        with pytest.raises(FileFormatError, match="not TOML"):
            parse_target(text)
    with pytest.raises(InputError, match=r"unknown target.*did you mean 'mini'"):
        load_target("minni")
    with pytest.raises(InputError, match="not the name of a file"):
        load_target(3)  # type: ignore[arg-type]
    with pytest.raises(FileFormatError, match="cannot be read"):
        load_target(tmp_path / "absent.toml")
    with pytest.raises(FileFormatError, match="cannot be read"):
        load_target(tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileFormatError, match="cannot be read"):
        load_target(tmp_path / "binary.toml")


def test_numbers_of_cores_follow(a3: AicoreTarget) -> None:
    head = 'schema_version = 1\nname = "x"\nbase = "a3"\n[device]\n'
    for text, cores in (
        ("groups = 12", (12, 24)),
        ("vector_cores_per_group = 1", (24, 24)),
        ("clock_mhz = 900", (24, 48)),
    ):
        device = parse_target(head + text).device
        assert (device.cube_cores, device.vector_cores) == cores
    found = a3.replaced({"device.groups": 6, "device.cube_cores_per_group": 2})
    assert (found.device.cube_cores, found.device.vector_cores, found.origin("device.cube_cores")) == (12, 12, "user")
    with pytest.raises(FileFormatError, match=r"device.vector_cores: not groups x"):
        a3.replaced({"device.groups": 6, "device.vector_cores": 48})


def test_a_base_that_leads_back(tmp_path: Path) -> None:
    for name, base in (("a.toml", "b.toml"), ("b.toml", "a.toml")):
        (tmp_path / name).write_text(f'schema_version = 1\nname = "x"\nbase = "{base}"\n')
    with pytest.raises(FileFormatError, match="a base leads back to itself"):
        load_target(tmp_path / "a.toml")


def test_derived_figures(a3: AicoreTarget) -> None:
    assert a3.cycles(1000) == 1850
    assert a3.cycles(920) == 1702
    assert a3.cycles(1) == 2  # 1.85, rounded up
    assert a3.cycles(0) == 0
    assert a3.cycles(0.5) == 1
    assert a3.nanoseconds(1850) == 1000
    assert a3.bytes_per_cycle(135.0) == pytest.approx(72.973, abs=1e-3)
    assert a3.transfer_cycles("rates.gm_to_l1_gb_per_s", 135_000) == 1850
    assert a3.transfer_cycles("rates.gm_to_l1_gb_per_s", 1) == 1
    assert a3.global_transfer_cycles("rates.gm_to_l1_gb_per_s", 135_000, 512) == 1850
    assert a3.global_transfer_cycles("rates.gm_to_l1_gb_per_s", 135_000, 544) == 2643  # 1850 / 0.7, rounded up
    assert a3.replaced({"rates.scale": 1.07}).transfer_cycles("rates.gm_to_l1_gb_per_s", 144_450) == 1850
    assert a3.icache_fill_cycles == 2
    # 5000 GB/s at 1.85 GHz are 2702.7 bytes per cycle over 32 banks: 84.46 each, 512 / 84.46 = 6.06.
    assert a3.l2_bank_line_cycles == 7
    assert a3.cube_flops_per_ns(a3.cube.k_f16) == pytest.approx(2 * 4096 * 24 * 1.85)
    assert a3.vector_ops_per_ns(64) == pytest.approx(64 * 48 * 1.85)


def test_core_numbers(a3: AicoreTarget) -> None:
    assert a3.cores == 72
    assert [a3.is_cube(core) for core in range(72)] == 24 * [True] + 48 * [False]
    assert [a3.group_of(core) for core in range(72)] == [*range(24), *(group for group in range(24) for _ in range(2))]


def test_start_up_is_a_time_and_stores_wait_for_no_answer(a3: AicoreTarget) -> None:
    a2 = load_target("a2")
    for name in ("startup_cycles", "store_startup_cycles"):
        ours, theirs = (t.nanoseconds(getattr(t.dma, name)) for t in (a2, a3))
        assert ours == pytest.approx(theirs, rel=0.01)
    assert a3.startup_of("rates.gm_to_l1_gb_per_s") == a3.startup_of("rates.gm_to_ub_gb_per_s") == 340
    assert a3.startup_of("rates.l0c_to_gm_gb_per_s") == a3.startup_of("rates.ub_to_gm_gb_per_s") == 140
    assert a3.control.global_load_cycles == 340 - 140


def test_what_is_lost_is_not_there(a3: AicoreTarget) -> None:
    halved = a3.replaced({"hbm.loss_percent": 50.0, "l2.usable_percent": 50})
    assert halved.hbm_gb_per_s == 850
    assert halved.hbm_channel_line_cycles == -(-512 * 32 * 1850 // 850_000)
    assert halved.l2_room_bytes == 96 << 20
    assert a3.replaced({"l2.usable_percent": 60}).l2_room_bytes % a3.l2.line_bytes == 0


def test_sweep(a3: AicoreTarget) -> None:
    swept = [t.icache.miss_latency_cycles for t in a3.sweep("icache.miss_latency_cycles", 4)]
    assert swept == [50, 114, 262, 600]
    assert [t.icache.ways for t in a3.sweep("icache.ways", 5)] == [2, 4, 8]
    assert [t.rates.scale for t in a3.sweep("rates.scale", 2)] == [1.0, 1.07]
    zero = [t.icache.same_line_interval_cycles for t in a3.sweep("icache.same_line_interval_cycles", 3)]
    assert zero == [0, 8, 16]
    with pytest.raises(KeyError):
        a3.sweep("memory.l1_bytes")


def test_targets_are_values(a3: AicoreTarget) -> None:
    assert a3 == load_target("a3")
    assert hash(a3) == hash(load_target("a3"))
    assert a3 != a3.replaced({"icache.ways": 8})
    with pytest.raises(FileFormatError, match="did you mean 'ways'"):
        a3.replaced({"icache.way": 8})
    with pytest.raises(FileFormatError, match="not one rate"):
        a3.replaced({"dma.size_curve_gb_per_s": (1.0, 2.0)})


def test_reads_that_miss_wait_for_whoever_brings_the_lines(a3: AicoreTarget) -> None:
    """Alone at a core's own rate; together with others later than from L2 by no more than requests run ahead."""
    size, latency = 1 << 17, a3.cycles(a3.hbm.latency_ns)
    beats = a3.transfer_cycles("rates.gm_to_l1_gb_per_s", size)
    alone = size // a3.hbm.core_bytes_per_cycle
    assert a3.missed_cycles(beats, size) == alone + latency
    assert a3.missed_cycles(beats, size, sharers=24) == beats + a3.dma.startup_cycles + latency < alone + latency
    assert a3.missed_cycles(beats, size, sharers=1.5) == int(alone / 1.5) + a3.dma.startup_cycles + latency
    few = a3.dma.startup_cycles * a3.hbm.core_bytes_per_cycle
    assert a3.missed_cycles(1, few, sharers=24) == a3.dma.startup_cycles + latency  # too few for turns
    crowd = a3.missed_cycles(beats, size, at_once=a3.device.cube_cores)
    assert crowd == int(size * a3.device.cube_cores / a3.bytes_per_cycle(a3.hbm_gb_per_s)) + latency > alone + latency


def test_table_and_json(a3: AicoreTarget) -> None:
    shown = table(a3)
    assert re.search(r"^memory\.l1_bytes +512 KiB +published +L1 of a cube core$", shown, re.MULTILINE)
    assert re.search(r"^icache\.miss_latency_cycles +150 +cycles +default +50 to 600 ", shown, re.MULTILINE)
    assert all(path in shown for path in all_fields())
    data = to_json(a3)
    assert data["fields"]["sync.core_full_ns"]["sensitivity"] == [500, 5000]
    assert data["fields"]["dma.size_curve_bytes"]["value"] == [1024, 2048, 4096, 6144]
    assert data["derived"]["core_full_sync_cycles"] == 1702
