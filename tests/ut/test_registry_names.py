"""Kernel names: every published form is read and written back unchanged; what is no name is refused with the part at
fault."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superkernel.core.errors import UserError
from superkernel.registry import names
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


def test_format_reports_every_violation() -> None:
    bad = KernelName(
        "sk", ("f31",), "gemm", ("AVX",), activation="gelu", params=Params("c{channel}", (("channel", Size(4)),))
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
    form = draw(st.sampled_from([None, *names.forms_of(op)]))
    if form is not None:
        sizes = []
        for optional, field in ((o, f) for o, fs in _parts(form) for f in fs):
            if not optional or draw(st.booleans()):
                sizes.append((field, Size(draw(st.integers(0, 4096)), draw(st.booleans()))))
        params = Params(form, tuple(sizes))
    token = st.one_of(st.sampled_from(sorted(names.INSTRUCTION_SETS)), st.from_regex(r"[a-z0-9]{1,6}", fullmatch=True))
    return KernelName(
        prefix=draw(st.sampled_from(names.PREFIXES)),
        dtypes=tuple(draw(st.lists(st.sampled_from(sorted(names.DATATYPES)), min_size=1, max_size=3))),
        op=op,
        target=tuple(draw(st.lists(token, min_size=1, max_size=5))),
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
