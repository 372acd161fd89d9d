"""Kernel names: every published form is read and written back unchanged; what is no name is refused with the part at
fault."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superkernel.core.errors import UserError
from superkernel.registry import names
from superkernel.registry.name_rules import ChannelRuns, Passes, channel_runs, passes_of
from superkernel.registry.names import KernelName, Params, Size, format_name, make_params, parse_name

_TEXT = """
xnn_f32_gemm_minmax_ukernel_4x8__aarch32_neon_cortex_a7 xnn_f32_gemm_minmax_ukernel_2x4__scalar
xnn_f32_avgpool_minmax_ukernel_9x__neon_c4 xnn_f32_pavgpool_minmax_ukernel_9p8x__neon_c4
xnn_f32_gavgpool_minmax_ukernel_7p7x__rvv_c1v xnn_f16_f32acc_rdsum_ukernel_7p7x__avx512skx_c128
xnn_f32_dwconv_minmax_ukernel_5f5m5l4c4s4r__neonfma_acc2 xnn_f32_dwconv_minmax_ukernel_25p16c__neonfma
xnn_f32_dwconv_ukernel_3f3m3l8c4s4r__wasmsimd xnn_f32_dwconv2d_chw_ukernel_3x3p1__neon_1x4_acc2
xnn_f32_dwconv2d_chw_ukernel_3x3s2p1__neon_1x4 xnn_f32_dwconv2d_chw_ukernel_3x3p1__rvv_8x1v
xnn_f32_conv_hwc_ukernel_3x3s2p0p1c3x8__aarch64_neonfma_2x1 xnn_f32_conv_hwc2chw_ukernel_3x3s2p1c3x4__sse_2x2
xnn_qs8_gemm_minmax_fp32_ukernel_4x16c4__avx512vnni xnn_qd8_f32_qc4w_gemm_minmax_ukernel_4x16c4__neondot
xnn_qu8_igemm_minmax_rndnu_ukernel_4x16__asm_aarch64_neon_mlal_lane_cortex_a75_prfm
xnn_qs8_gemm_minmax_ukernel_1x8c8__aarch64_neon_mlal_padal_cortex_a53 xnn_pf32_gemm_minmax_ukernel_32x32__neonsme2
xnn_qs8_qc2w_gemm_minmax_fp32_ukernel_8x8c4__neondot xnn_x32_packw_gemm_goi_ukernel_x8s4__sse2_u4_prfm
xnn_x32_packw_gemm_goi_ukernel_x64__scalar_float_u2 xnn_f32_vmulcaddc_minmax_ukernel_c4__wasmrelaxedsimd_fma_2x
xnn_f32_raddstoreexpminusmax_ukernel__neon_rr2_lut64_p2_x8 xnn_x64_transposec_ukernel__4x1_scalar_float
xnn_x32_transposec_ukernel__4x4_multi_switch_wasmsimd xnn_f32_vadd_minmax_ukernel__neon_x8
xnn_f32_vsqrt_ukernel__scalar_sqrt_x1 xnn_f32_prelu_ukernel__neon_2x8 xnn_f32_vsqrdiffc_ukernel__neon_x8
xnn_f32_rmax_ukernel__neon xnn_f32_raddstoreexpminusmax_ukernel__avx512f_rr2_p5_u64_acc2
xnn_f32_gemm_ukernel_7x4v__rvv xnn_f32_maxpool_minmax_ukernel_9p__rvv_u2v xnn_xx_fill_ukernel__sse2_u64
xnn_xx_pad_ukernel_p16__sse2_u16 xnn_bf16_f32_vcvt_ukernel__avx2_u16 xnn_u32_filterbank_accumulate_ukernel__neon_x1
xnn_cs16_bfly4_samples1_ukernel__neon xnn_cs16_bfly4_ukernel__scalar_x4 xnn_cs16_fftr_ukernel__asm_aarch32_neon_x4
xnn_cs16_vsquareabs_ukernel__neon_mlal_ld128_x16 xnn_s16_window_shift12_ukernel__neon_u32
xnn_s16_vlshift_ukernel__neon_x8 xnn_s16_rmaxabs_ukernel__scalar_x2 xnn_u32_vlog_ukernel__scalar_x1
xnn_u64_u32_vsqrtshift_ukernel__scalar_cvtu32_sqrt xnn_f32_gavgpool_cw_ukernel__wasmsimd_x86_u4
xnn_xx_transposev_ukernel__1x1_scalar_memcpy xnn_f32_gemm_goi_minmax_ukernel_4x8__asm_aarch64_neonfma_ld128
xnn_qs8_gemm_xw_minmax_fp32_ukernel_1x4c8__avx_ld128 xnn_x32_packb_gemm_ukernel_4c4s1r__scalar_int
xnn_x32_zerob_gemm_ukernel_2c1s1r__scalar_float xnn_x32_pack_lh_ukernel__neonsme2
xnn_x8_packq_f32qp8_ukernel__aarch64_neon_u2 xnn_qs8_to_qu8_packw_gemm_goi_ukernel_x8c8__scalar
xnn_generate_f32_gemm_ukernel_upto6x8__aarch64_neonfma_cortex_a75 xnn_qs8_gemm_minmax_gemmlowp_ukernel_4x4__scalar
xnn_f32_avgpool_ukernel_mp9p8q__sse xnn_f32_gavgpool_ukernel_up7__psimd
xnn_f32_dwconv_minmax_ukernel_up16x9__avx512f_acc2 xnn_f32_dwconv_minmax_ukernel_9p8vc__rvv
xnn_qs8_qc8w_igemm_minmax_fp32_ukernel_2x2c4__armsimd32 xnn_f32_gemm_minmax_ukernel_4x4__asm_aarch32_vfp_ld64
xnn_f32_vrelu_ukernel__wasm32_shr_u4 xnn_q8_gemm_ukernel_4x8__neon xnn_f32_gemm_ukernel_1x16__avx512
xnn_qd8_f32_qb4w_gemm_minmax_ukernel_7x8c8__avx256skx_madd_prfm xnn_f32_ibilinear_chw_ukernel__neonfma_p8
xnn_f32_vrndne_ukernel__hvx_u64 xnn_x24_transposec_ukernel__1x2_scalar xnn_f32_argmaxpool_ukernel_9p8x__rvv_u1v
xnn_x8_lut_ukernel__avx512vbmi_vpermx2b_u256 xnn_x8_zip_xm_ukernel__neon
xnn_f32_spmm_minmax_ukernel_32x1__neonfma_pipelined_x2 xnn_f32_gemminc_minmax_ukernel_6x8s4__wasmrelaxedsimd_fma
xnn_bf16_gemm_minmax_ukernel_1x4c8__neonbf16_bfdot xnn_qs8_packw_gemm_goi_ukernel_x16c4__avx512vnnigfni_prfm
sk_f32_gemm_ukernel_12x32__avx512skx sk_bf16_gemm_ukernel_32x32c2__avx512amx sk_f32_softmax_ukernel__aiv
"""
PUBLISHED = tuple(_TEXT.split())


@pytest.mark.parametrize("text", PUBLISHED)
def test_published_names_round_trip(text: str) -> None:
    name = parse_name(text)
    assert format_name(name) == text


def test_fields_of_a_matrix_name() -> None:
    name = parse_name(
        "xnn_qd8_f32_qc4w_gemm_minmax_rndnu_ukernel_4x16vc8s2__asm_aarch64_neondot_cortex_a55_prfm_u2_acc4"
    )
    assert name.dtypes == ("qd8", "f32", "qc4w")
    assert (name.op, name.activation, name.requantisation) == ("gemm", "minmax", "rndnu")
    assert name.params is not None
    assert [name.params.get(f) for f in ("mr", "nr", "kr", "sr")] == [Size(4), Size(16, True), Size(8), Size(2)]
    assert name.instruction_set == "neondot"


def test_multi_pass_and_pooling_fields() -> None:
    multi = parse_name("xnn_f32_dwconv_ukernel_5f6m7l16c8s4r__avx2").params
    assert multi is not None
    assert [s.count for _, s in multi.sizes] == [5, 6, 7, 16, 8, 4]
    pool = parse_name("xnn_f32_pavgpool_ukernel_9p8x__scalar_c1").params
    assert pool is not None
    assert (pool.get("primary"), pool.get("incremental"), pool.get("mr")) == (Size(9), Size(8), None)


def test_the_instruction_set_may_stand_anywhere() -> None:
    assert parse_name("xnn_x32_transposec_ukernel__4x4_multi_mov_sse2").instruction_set == "sse2"
    assert parse_name("xnn_f32_vexp_ukernel__somethingnew_u4").instruction_set is None


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("xnn_f32_gemm_ukernel__avx2", "without its tile"),
        ("xnn_f32_dwconv_minmax_ukernel__neon", "without its tile"),
        ("xnn_x32_transposec_ukernel__sse2", "without its tile"),
        ("xnn_f32_gemm_ukernel_0x8__avx2", "a tile of nothing"),
        ("xnn_f32_dwconv_ukernel_5f5m5l6c4s4r__avx2", "channel tile is not whole"),
        ("xnn_f32_dwconv_ukernel_5f5m5l8c4s3r__avx2", "channel tile is not whole"),
        ("xnn_s16_window_shift_ukernel__neon", "unknown operator|unknown words"),
        ("xnn_f32_gemm_ukernel_4x8", "target is missing"),
        ("xnn_f32_gemm_ukernel_4x8__", "target has an empty"),
        ("xnn_f32_gemm_ukernel_4x8__avx2__u4", "target has an empty"),
        ("ynn_f32_gemm_ukernel_4x8__avx2", "unknown prefix"),
        ("xnn_gemm_ukernel_4x8__avx2", "no data type"),
        ("xnn_f32_gemn_ukernel_4x8__avx2", "unknown operator"),
        ("xnn_f32_gemm_gelu_ukernel_4x8__avx2", "unknown words behind operator"),
        ("xnn_f32_gemm_fp32_minmax_ukernel_4x8__avx2", "unknown words behind operator"),
        ("xnn_f32_gemm_ukernel_4y8__avx2", "parameters do not fit"),
        ("xnn_f32_gemm_ukernel_04x8__avx2", "parameters do not fit"),
        ("xnn_f32_rmax_ukernel_4x8__avx2", "parameters do not fit"),
        ("xnn_f32_gemm_kernel_4x8__avx2", "'ukernel' is missing"),
        ("", "target is missing"),
    ],
)
def test_what_is_no_name_is_refused(text: str, fault: str) -> None:
    with pytest.raises(UserError, match=fault) as caught:
        parse_name(text)
    assert caught.value.violations[0].expected


def test_avx512_is_an_instruction_set() -> None:
    assert parse_name("xnn_f32_gemm_ukernel_1x16__avx512").instruction_set == "avx512"


@pytest.mark.parametrize(
    ("text", "elements", "passes"),
    [
        ("xnn_f32_dwconv_ukernel_25p16c__avx2", 25, Passes(25)),
        ("xnn_f32_dwconv_ukernel_9p16c__avx2", 4, Passes(4)),
        ("xnn_f32_dwconv_ukernel_5f5m5l8c4s4r__avx2", 25, Passes(5, 5, 3, 5)),
        ("xnn_f32_dwconv_ukernel_5f5m5l8c4s4r__avx2", 6, Passes(5, 0, 0, 1)),
        ("xnn_f32_dwconv_ukernel_6f6m7l8c4s4r__avx2", 19, Passes(6, 6, 2, 1)),
        ("xnn_f32_avgpool_minmax_ukernel_9x__neon_c4", 9, Passes(9)),
        ("xnn_f32_avgpool_minmax_ukernel_9p8x__neon_c4", 25, Passes(8, 8, 2, 1)),
    ],
)
def test_a_window_is_walked_in_the_passes_of_the_tile(text: str, elements: int, passes: Passes) -> None:
    assert passes_of(parse_name(text), elements) == passes
    assert passes.elements == elements


@pytest.mark.parametrize(
    ("text", "elements", "expected"),
    [
        ("xnn_f32_dwconv_ukernel_9p16c__avx2", 10, "1 to 9"),
        ("xnn_f32_dwconv_ukernel_5f5m5l8c4s4r__avx2", 5, "at least 6"),
        ("xnn_f32_dwconv_ukernel_6f6m7l8c4s4r__avx2", 7, "at least 8"),
        ("xnn_f32_dwconv_ukernel_5f5m3l8c4s4r__avx2", 9, "a remainder of 1 to 3"),
        ("xnn_f32_avgpool_minmax_ukernel_9p8x__neon_c4", 8, "at least 9"),
        ("xnn_f32_gemm_ukernel_4x8__avx2", 9, ""),
    ],
)
def test_a_window_that_the_tile_does_not_take_is_refused(text: str, elements: int, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        passes_of(parse_name(text), elements)
    assert caught.value.violations[0].expected == expected


def test_channels_run_in_tiles_then_in_subtiles() -> None:
    name = parse_name("xnn_f32_dwconv_ukernel_5f5m5l16c8s4r__avx2")
    assert [channel_runs(name, n) for n in (13, 16, 17, 29)] == [
        ChannelRuns(1, 0),  # 13 rounds up to 16
        ChannelRuns(1, 0),
        ChannelRuns(1, 1),
        ChannelRuns(2, 0),
    ]
    assert channel_runs(parse_name("xnn_f32_dwconv_ukernel_9p16c__avx2"), 40) == ChannelRuns(2, 1)
    with pytest.raises(UserError, match="no fixed channel tile"):
        channel_runs(parse_name("xnn_f32_dwconv_ukernel_9p8vc__rvv"), 4)


def test_format_reports_every_violation() -> None:
    bad = KernelName(
        "sk", ("f31",), "gemm", ("AVX",), activation="erf", params=Params("c{channel}", (("channel", Size(4)),))
    )
    with pytest.raises(UserError) as caught:
        format_name(bad)
    assert len(caught.value.violations) == 4


def test_make_params_picks_the_form_with_these_fields() -> None:
    assert make_params("dwconv", {"primary": 9, "channel": 16}).form == "{primary}p{channel}c"
    assert make_params("gemm", {"mr": 6, "nr": 16}).sizes == (("mr", Size(6)), ("nr", Size(16)))
    with pytest.raises(UserError, match="no parameter form"):
        make_params("gemm", {"mr": 6})


@st.composite
def kernel_names(draw: st.DrawFn) -> KernelName:
    op = draw(st.sampled_from([*names.operators(), "vexp", "vadd", "vlrelu"]))
    params = None
    form = draw(st.sampled_from([*([] if names.needs_tile(op) == "parameters" else [None]), *names.forms_of(op)]))
    if form is not None:
        sizes = []
        for optional, field in ((o, f) for o, fs in _parts(form) for f in fs):
            if not optional or draw(st.booleans()):
                sizes.append((field, Size(draw(st.integers(1, 4096)), draw(st.booleans()))))
        if "first" in form:  # the subtile divides the channels, the rounding the subtile
            whole = dict(sizes)
            turn, subtile = whole["round"].count, whole["subtile"].count * whole["round"].count
            whole |= {"subtile": Size(subtile), "channel": Size(subtile * draw(st.integers(1, 4))), "round": Size(turn)}
            sizes = list(whole.items())
        params = Params(form, tuple(sizes))
    token = st.one_of(st.sampled_from(sorted(names.INSTRUCTION_SETS)), st.from_regex(r"[a-z0-9]{1,6}", fullmatch=True))
    tile = ["4x4"] if form is None and names.needs_tile(op) else []
    return KernelName(
        prefix=draw(st.sampled_from(names.PREFIXES)),
        dtypes=tuple(draw(st.lists(st.sampled_from(sorted(names.DATATYPES)), min_size=1, max_size=3))),
        op=op,
        target=(*tile, *draw(st.lists(token, min_size=1, max_size=5))),
        activation=draw(st.sampled_from([None, *names.ACTIVATIONS])),
        requantisation=draw(st.sampled_from([None, *names.REQUANTISATIONS])),
        params=params,
    )


def _parts(form: str) -> list[tuple[bool, list[str]]]:
    """(optional?, fields) of a template, left to right."""
    found = []
    for piece in form.replace("[", "|[").replace("]", "]|").split("|"):
        fields = [p.split("}")[0] for p in piece.split("{")[1:]]
        if fields:
            found.append((piece.startswith("["), fields))
    return found


@settings(max_examples=400)
@given(kernel_names())
def test_every_legal_name_reads_back(name: KernelName) -> None:
    text = format_name(name)
    assert parse_name(text) == name
    assert format_name(parse_name(text)) == text


@settings(max_examples=300)
@given(st.sampled_from(PUBLISHED), st.integers(0, 80), st.sampled_from("_x48cpv0az"))
def test_a_damaged_name_is_refused_or_round_trips(text: str, at: int, letter: str) -> None:
    damaged = text[: at % len(text)] + letter + text[at % len(text) + 1 :]
    try:
        name = parse_name(damaged)
    except UserError:
        return
    assert format_name(name) == damaged
