"""The networks of the zoo: fresh configurations of transformers, timm and torchvision with random weights, small where
the architecture is what matters.

A network is a function that gives a module and its inputs (a tuple, or a mapping by name). Parameters are drawn so that
nothing hides: those that begin as one number (biases, scales of norms and of layers) get values around it, matrices at
least the spread that keeps a signal's size, and batch norms the statistics of the inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn

Inputs: TypeAlias = "tuple[Any, ...] | dict[str, Any]"
Made: TypeAlias = tuple[nn.Module, Inputs]

VOCABULARY = 512
TOKENS = 48
DYNAMIC = (
    "transformers/bert", "transformers/distilbert", "transformers/mpnet", "transformers/t5-encoder", "transformers/vit",
    "transformers/clip-vision", "transformers/dinov2", "transformers/gpt2", "transformers/llama", "transformers/qwen3",
    "timm/vit_tiny_patch16_224", "timm/mixer_s32_224", "timm/convnext_atto", "timm/mobilenetv4_conv_small",
    "timm/resnet18d", "timm/poolformer_s12", "torchvision/resnet18", "torchvision/mobilenet_v2",
    "torchvision/squeezenet1_1", "torchvision/shufflenet_v2_x0_5", "torchvision/regnet_y_400mf",
)  # fmt: skip
"""Those that run with a batch that changes, as graphs of torch.compile."""


def _operators_of_torchvision() -> None:
    """torchvision cannot be imported without its compiled operators, and its package may hold those for another torch:
    declares the ones that the import asks for. No network here calls them."""
    spec = find_spec("torchvision")
    for library in Path(spec.origin).parent.glob("_C*.so") if spec is not None and spec.origin else ():
        try:
            torch.ops.load_library(library)
        except OSError:
            for name in ("nms", "qnms"):
                torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float threshold) -> Tensor")


_operators_of_torchvision()


def ids(tokens: int = TOKENS) -> torch.Tensor:
    return torch.randint(1, VOCABULARY, (1, tokens))


def image(size: int, batch: int = 1) -> torch.Tensor:
    return torch.randn(batch, 3, size, size)


# transformers ---------------------------------------------------------------------------------------------------------

_SIZES = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
_TEXT = {**_SIZES, "vocab_size": VOCABULARY, "max_position_embeddings": 128}
_GROUPED = {
    **_TEXT,
    "num_key_value_heads": 2,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_VISION = {**_SIZES, "image_size": 64, "patch_size": 16}
_SPEECH = {
    **_SIZES,
    "vocab_size": 32,
    "conv_dim": (32,) * 7,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
_SEQ2SEQ = {
    "vocab_size": VOCABULARY, "d_model": 128, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256, "max_position_embeddings": 128,
    "use_cache": False,
}  # fmt: skip


def hugging_face(model: str, inputs: Callable[[], Inputs], /, **config: Any) -> Callable[[], Made]:
    """A model of transformers by its class, configured with these values."""

    def make() -> Made:
        import transformers

        kind = getattr(transformers, model)
        return kind(kind.config_class(**config)), inputs()

    return make


def _masked() -> Inputs:
    """Tokens of which the last are padding."""
    mask = torch.ones(1, TOKENS, dtype=torch.int64)
    mask[:, -5:] = 0
    return {"input_ids": ids(), "attention_mask": mask}


def _tokens() -> Inputs:
    return {"input_ids": ids()}


def _boxed() -> Inputs:
    """Tokens with their places on a page."""
    return {"input_ids": ids(), "bbox": torch.tensor([1, 2, 7, 9]).repeat(1, TOKENS, 1)}


def _film() -> Inputs:
    return {"pixel_values": torch.randn(1, 4, 3, 64, 64)}


def _decoded() -> Inputs:
    return {"input_ids": ids(), "use_cache": False}


def _both() -> Inputs:
    return {"input_ids": ids(), "decoder_input_ids": ids(16), "use_cache": False}


def _pixels(size: int = 64) -> Callable[[], Inputs]:
    return lambda: {"pixel_values": image(size)}


def _wave() -> Inputs:
    return {"input_values": torch.randn(1, 8000)}


def _clip() -> Made:
    import transformers

    text, vision = ({**_TEXT, "eos_token_id": 2}, _VISION)
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=64)
    return transformers.CLIPModel(config), {"input_ids": ids(16), "pixel_values": image(64)}


def _siglip() -> Made:
    import transformers

    config = transformers.SiglipConfig(text_config={**_TEXT, "projection_size": 128}, vision_config=_VISION)
    return transformers.SiglipModel(config), {"input_ids": ids(16), "pixel_values": image(64)}


def _encoder_of(make: Callable[[], Made]) -> Callable[[], Made]:
    """The encoder of a model with both."""

    def encoder() -> Made:
        module, inputs = make()
        inputs = {k: v for k, v in inputs.items() if k.startswith("input")}
        return module.get_encoder(), inputs

    return encoder


def _detr() -> Made:
    import transformers

    backbone = transformers.ResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 32, 64, 64],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage4"],
    )
    config = transformers.DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone, d_model=64,
        encoder_layers=1, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128,
        decoder_ffn_dim=128, num_queries=10,
    )  # fmt: skip
    return transformers.DetrForObjectDetection(config), {"pixel_values": image(128)}


_T5 = {"vocab_size": VOCABULARY, "d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_heads": 4}
_GPT = {"vocab_size": VOCABULARY, "n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 128}
_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
_WINDOWS = {"image_size": 64, "patch_size": 4, "embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
_DISENTANGLED = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], **_TEXT}
_WHISPER = {
    **{k: v for k, v in _SEQ2SEQ.items() if k != "max_position_embeddings"}, "max_source_positions": 64,
    "num_mel_bins": 80, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip


def _without(config: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {k: v for k, v in config.items() if k not in names}


def _spoken() -> Inputs:
    return {"input_features": torch.randn(1, 80, 128), "decoder_input_ids": ids(8), "use_cache": False}


_whisper = hugging_face("WhisperModel", _spoken, **_WHISPER)
TRANSFORMERS: dict[str, Callable[[], Made]] = {
    "bert": hugging_face("BertModel", _masked, **_TEXT),
    "roberta": hugging_face("RobertaModel", _masked, **_TEXT),
    "distilbert": hugging_face(
        "DistilBertModel", _masked, vocab_size=VOCABULARY, dim=128, n_layers=2, n_heads=4, hidden_dim=256
    ),
    "albert": hugging_face("AlbertModel", _masked, embedding_size=64, **_TEXT),
    "deberta": hugging_face("DebertaModel", _masked, **_DISENTANGLED),
    "deberta-v2": hugging_face(
        "DebertaV2Model", _masked, position_buckets=32, norm_rel_ebd="layer_norm", share_att_key=True, **_DISENTANGLED
    ),
    "electra": hugging_face("ElectraModel", _masked, embedding_size=64, **_TEXT),
    "mpnet": hugging_face("MPNetModel", _masked, **_TEXT),
    "xlm-roberta": hugging_face("XLMRobertaModel", _masked, **_TEXT),
    "modernbert": hugging_face("ModernBertModel", _masked, local_attention=16, pad_token_id=0, **_TEXT),
    "mobilebert": hugging_face("MobileBertModel", _masked, embedding_size=32, intra_bottleneck_size=32, **_TEXT),
    "squeezebert": hugging_face("SqueezeBertModel", _masked, embedding_size=128, **_TEXT),
    "convbert": hugging_face("ConvBertModel", _masked, embedding_size=64, head_ratio=2, **_TEXT),
    "fnet": hugging_face("FNetModel", _tokens, **_without(_TEXT, "num_attention_heads")),
    "xlnet": hugging_face(
        "XLNetModel", _masked, vocab_size=VOCABULARY, d_model=128, n_layer=2, n_head=4, d_inner=256, use_mems_eval=False
    ),
    "funnel": hugging_face(
        "FunnelModel", _masked, vocab_size=VOCABULARY, block_sizes=[1, 1], num_decoder_layers=1, d_model=128, n_head=4,
        d_head=32, d_inner=256,
    ),
    "layoutlm": hugging_face("LayoutLMModel", _boxed, max_2d_position_embeddings=16, **_TEXT),
    "t5-encoder": hugging_face("T5EncoderModel", _masked, **_T5),
    "t5": hugging_face("T5Model", _both, use_cache=False, **_T5),
    "bart": hugging_face("BartModel", _both, **_SEQ2SEQ),
    "marian": hugging_face("MarianModel", _both, pad_token_id=0, decoder_start_token_id=0, **_SEQ2SEQ),
    "whisper-encoder": _encoder_of(_whisper),
    "whisper": _whisper,
    "wav2vec2": hugging_face("Wav2Vec2Model", _wave, **_SPEECH),
    "hubert": hugging_face("HubertModel", _wave, **_SPEECH),
    "wavlm": hugging_face("WavLMModel", _wave, **_SPEECH),
    "clip": _clip,
    "clip-vision": hugging_face("CLIPVisionModel", _pixels(), **_VISION),
    "siglip": _siglip,
    "vit": hugging_face("ViTModel", _pixels(), **_VISION),
    "deit": hugging_face("DeiTModel", _pixels(), **_VISION),
    "dinov2": hugging_face("Dinov2Model", _pixels(), **_without(_VISION, "intermediate_size")),
    "beit": hugging_face("BeitModel", _pixels(), use_relative_position_bias=True, **_VISION),
    "swin": hugging_face("SwinModel", _pixels(), **_WINDOWS),
    "swinv2": hugging_face("Swinv2Model", _pixels(), **_WINDOWS),
    "convnext": hugging_face("ConvNextModel", _pixels(), hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 2, 1]),
    "resnet": hugging_face(
        "ResNetModel", _pixels(), embedding_size=16, hidden_sizes=[32, 64, 96, 128], depths=[1, 1, 1, 1]
    ),
    "mobilevit": hugging_face(
        "MobileViTModel", _pixels(), image_size=64, hidden_sizes=[48, 64, 80],
        neck_hidden_sizes=[16, 16, 24, 32, 48, 64, 128],
    ),
    "segformer": hugging_face(
        "SegformerForSemanticSegmentation", _pixels(), hidden_sizes=[16, 32, 64, 96], depths=[1, 1, 1, 1],
        decoder_hidden_size=64,
    ),
    "detr": _detr,
    "yolos": hugging_face("YolosModel", _pixels(), **{**_VISION, "image_size": [64, 64], "num_detection_tokens": 10}),
    "dpt": hugging_face(
        "DPTForDepthEstimation", _pixels(), backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[16, 32, 64, 64],
        fusion_hidden_size=32, **{**_VISION, "num_hidden_layers": 4},
    ),
    "sam-vision": hugging_face(
        "SamVisionModel", _pixels(128), image_size=128, patch_size=16, output_channels=32, window_size=4,
        global_attn_indexes=[1], hidden_size=128, num_hidden_layers=2, num_attention_heads=4, mlp_dim=256,
    ),
    "videomae": hugging_face("VideoMAEModel", _film, num_frames=4, **_VISION),
    "cvt": hugging_face("CvtModel", _pixels(), embed_dim=[16, 32, 64], num_heads=[1, 2, 4], depth=[1, 2, 3]),
    "gpt2": hugging_face("GPT2LMHeadModel", _decoded, **_GPT),
    "gptj": hugging_face("GPTJForCausalLM", _decoded, rotary_dim=16, **_GPT),
    "gpt-neox": hugging_face("GPTNeoXForCausalLM", _decoded, **_TEXT),
    "opt": hugging_face(
        "OPTForCausalLM", _decoded, ffn_dim=256, word_embed_proj_dim=128, **_without(_TEXT, "intermediate_size")
    ),
    "bloom": hugging_face("BloomForCausalLM", _decoded, hidden_size=128, **_without(_GPT, "n_embd", "n_positions")),
    "falcon": hugging_face("FalconForCausalLM", _decoded, **_without(_TEXT, "intermediate_size")),
    "llama": hugging_face("LlamaForCausalLM", _decoded, **_GROUPED),
    "mistral": hugging_face("MistralForCausalLM", _decoded, sliding_window=16, **_GROUPED),
    "mixtral": hugging_face("MixtralForCausalLM", _decoded, num_local_experts=4, **_GROUPED),
    "qwen2": hugging_face("Qwen2ForCausalLM", _decoded, **_GROUPED),
    "qwen3": hugging_face("Qwen3ForCausalLM", _decoded, head_dim=32, **_GROUPED),
    "qwen3-moe": hugging_face("Qwen3MoeForCausalLM", _decoded, head_dim=32, **_MOE, **_GROUPED),
    "gemma": hugging_face("GemmaForCausalLM", _decoded, head_dim=32, **_GROUPED),
    "gemma2": hugging_face("Gemma2ForCausalLM", _decoded, head_dim=32, sliding_window=16, **_GROUPED),
    "phi": hugging_face("PhiForCausalLM", _decoded, **_GROUPED),
    "phi3": hugging_face("Phi3ForCausalLM", _decoded, **_GROUPED),
    "olmo2": hugging_face("Olmo2ForCausalLM", _decoded, **_GROUPED),
    "stablelm": hugging_face("StableLmForCausalLM", _decoded, **_GROUPED),
    "starcoder2": hugging_face("Starcoder2ForCausalLM", _decoded, **_GROUPED),
    "cohere": hugging_face("CohereForCausalLM", _decoded, **_GROUPED),
    "mamba": hugging_face(
        "MambaForCausalLM", _decoded, vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=2, state_size=8
    ),
}  # fmt: skip


# timm and torchvision -------------------------------------------------------------------------------------------------


def of_timm(name: str, size: int, **config: Any) -> Callable[[], Made]:
    """A model of timm for images of `size` pixels."""

    def make() -> Made:
        import timm

        return timm.create_model(name, pretrained=False, num_classes=100, **config), (image(size),)

    return make


def of_torchvision(name: str, size: int, family: str = "", **config: Any) -> Callable[[], Made]:
    """A model of torchvision for images of `size` pixels."""

    def make() -> Made:
        import torchvision

        rooms = torchvision.models if not family else getattr(torchvision.models, family)
        return getattr(rooms, name)(weights=None, **config), (image(size),)

    return make


def _video(name: str) -> Callable[[], Made]:
    def make() -> Made:
        import torchvision

        return getattr(torchvision.models.video, name)(weights=None, num_classes=100), (torch.randn(1, 3, 8, 48, 48),)

    return make


def _raft() -> Made:
    import torchvision

    class Flow(nn.Module):
        """Two steps of refinement."""

        def __init__(self) -> None:
            super().__init__()
            self.raft = torchvision.models.optical_flow.raft_small(weights=None)

        def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
            flow: torch.Tensor = self.raft(first, second, num_flow_updates=2)[-1]
            return flow

    return Flow(), (image(128), image(128))


_TIMM: dict[str, tuple[int, dict[str, Any]]] = {
    "vit_tiny_patch16_224": (64, {"img_size": 64, "depth": 3}),
    "deit3_small_patch16_224": (64, {"img_size": 64, "depth": 2}),
    "beit_base_patch16_224": (64, {"img_size": 64, "depth": 2, "embed_dim": 192, "num_heads": 3}),
    "eva02_tiny_patch14_224": (56, {"img_size": 56, "depth": 2}),
    "cait_xxs24_224": (64, {"img_size": 64, "depth": 2}),
    "swinv2_cr_tiny_224": (64, {"img_size": 64, "window_size": 4, "depths": (1, 1, 1, 1), "embed_dim": 48}),
    "mixer_s32_224": (64, {"img_size": 64}),
    "resmlp_12_224": (64, {"img_size": 64}),
    "gmlp_ti16_224": (64, {"img_size": 64}),
    "convmixer_1024_20_ks9_p14": (56, {}),
    "coat_lite_tiny": (64, {"img_size": 64}),
    "poolformer_s12": (64, {}),
    "edgenext_xx_small": (96, {}),
    "mobilevit_xxs": (96, {}),
    "mobilevitv2_050": (96, {}),
    "maxvit_pico_rw_256": (64, {"img_size": 64}),
    "levit_128s": (224, {}),
    "pit_ti_224": (224, {}),
    "twins_svt_small": (64, {"img_size": 64, "depths": (1, 1, 2, 1)}),
    "xcit_nano_12_p16_224": (64, {"img_size": 64, "depth": 2}),
    "focalnet_tiny_srf": (64, {}),
    "convnext_atto": (64, {"depths": (1, 1, 2, 1)}),
    "convnextv2_atto": (64, {"depths": (1, 1, 2, 1)}),
    "resnet18d": (96, {}),
    "seresnext26d_32x4d": (64, {"layers": (1, 1, 1, 1)}),
    "res2net50_26w_4s": (64, {"layers": (1, 1, 1, 1)}),
    "resnest14d": (64, {}),
    "nf_resnet26": (64, {}),
    "tf_efficientnetv2_b0": (96, {}),
    "mobilenetv4_conv_small": (96, {}),
    "ghostnet_050": (96, {}),
    "repvgg_a0": (64, {}),
    "hrnet_w18_small": (64, {}),
    "ese_vovnet19b_slim": (96, {}),
    "dla34": (64, {}),
    "xception41": (96, {}),
    "botnet26t_256": (256, {}),
    "sequencer2d_s": (64, {"img_size": 64, "layers": (1, 1, 1, 1)}),
}  # fmt: skip
TIMM = {name: of_timm(name, size, **config) for name, (size, config) in _TIMM.items()}

TORCHVISION: dict[str, Callable[[], Made]] = {
    "alexnet": of_torchvision("alexnet", 128),
    "resnet18": of_torchvision("resnet18", 128),
    "resnet50": of_torchvision("resnet50", 64),
    "regnet_y_400mf": of_torchvision("regnet_y_400mf", 96),
    "efficientnet_b0": of_torchvision("efficientnet_b0", 96),
    "mobilenet_v2": of_torchvision("mobilenet_v2", 96),
    "mobilenet_v3_small": of_torchvision("mobilenet_v3_small", 96),
    "densenet121": of_torchvision("densenet121", 64),
    "vgg11_bn": of_torchvision("vgg11_bn", 64),
    "inception_v3": of_torchvision("inception_v3", 128, init_weights=False),
    "googlenet": of_torchvision("googlenet", 96, init_weights=False),
    "shufflenet_v2_x0_5": of_torchvision("shufflenet_v2_x0_5", 96),
    "squeezenet1_1": of_torchvision("squeezenet1_1", 96),
    "mnasnet0_5": of_torchvision("mnasnet0_5", 96),
    "convnext_tiny": of_torchvision("convnext_tiny", 64),
    "swin_t": of_torchvision("swin_t", 64),
    "maxvit_t": of_torchvision("maxvit_t", 224),
    "vit_b_32": of_torchvision("vit_b_32", 64, image_size=64),
    "fcn_resnet50": of_torchvision("fcn_resnet50", 64, "segmentation", weights_backbone=None),
    "deeplabv3_mobilenet_v3_large": of_torchvision(
        "deeplabv3_mobilenet_v3_large", 96, "segmentation", weights_backbone=None
    ),
    "lraspp_mobilenet_v3_large": of_torchvision("lraspp_mobilenet_v3_large", 96, "segmentation", weights_backbone=None),
    "raft_small": _raft,
    "r3d_18": _video("r3d_18"),
    "r2plus1d_18": _video("r2plus1d_18"),
    "mc3_18": _video("mc3_18"),
}

NETWORKS: dict[str, Callable[[], Made]] = {
    f"{package}/{name}": make
    for package, rows in (("transformers", TRANSFORMERS), ("timm", TIMM), ("torchvision", TORCHVISION))
    for name, make in rows.items()
}


# Weights --------------------------------------------------------------------------------------------------------------


def made(name: str) -> Made:
    """A network in inference mode with its weights drawn (the same each time), and inputs."""
    torch.manual_seed(0)
    module, inputs = NETWORKS[name]()
    with torch.no_grad():
        for parameter in module.parameters():
            _draw(parameter)
        _give_statistics(module, inputs)
    return module.eval(), inputs


def _draw(parameter: nn.Parameter) -> None:
    """See the module docstring."""
    if not parameter.is_floating_point() or not parameter.numel():
        return
    first = float(parameter.flatten()[0])
    if bool((parameter == first).all()):
        parameter.copy_((0.5 if 0 < abs(first) < 0.1 else first) + 0.1 * torch.randn_like(parameter))
    elif parameter.ndim >= 2:
        wanted = 1 / math.sqrt(math.prod(parameter.shape[1:]))
        parameter.mul_(max(1.0, wanted / float(parameter.std())))


def _give_statistics(module: nn.Module, inputs: Inputs) -> None:
    """Batch norms as after a step of training on inputs like these."""
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return
    module.eval()
    momenta = [n.momentum for n in norms]
    for norm in norms:
        norm.train()
        norm.momentum = 1.0
    several = _doubled(inputs)
    run(module, several)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.eval()
        norm.momentum = momentum


def _doubled(inputs: Inputs) -> Inputs:
    """With further random examples: a batch norm of a single pixel has no spread otherwise."""

    def more(value: Any) -> Any:
        floats = isinstance(value, torch.Tensor) and value.is_floating_point()
        return torch.cat([value, torch.randn_like(value), torch.randn_like(value)]) if floats else value

    return {k: more(v) for k, v in inputs.items()} if isinstance(inputs, Mapping) else tuple(map(more, inputs))


def run(module: Any, inputs: Inputs) -> Any:
    """The module on its inputs."""
    return module(**inputs) if isinstance(inputs, Mapping) else module(*inputs)
