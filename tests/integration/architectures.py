"""Hugging Face architectures with small random weights, built from their configuration classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor

Inputs = dict[str, Tensor]

VOCABULARY = 96
# In quick runs: one of each kind, and those that reach ops the others don't.
QUICK = frozenset({"gpt2", "qwen3", "mamba", "gpt_oss", "bert", "t5", "vit"})

_TEXT = {"vocab_size": VOCABULARY, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1}
_TEXT |= {"eos_token_id": None}
_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_WIDE = {**_SIZES, "intermediate_size": 64}
_DECODER = {**_TEXT, **_WIDE, "num_key_value_heads": 2}
_HEADS = {**_DECODER, "head_dim": 8}
_ENCODER = {**_TEXT, **_WIDE}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_BOTH = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
_BOTH |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "decoder_start_token_id": 2}
_IMAGE = {"image_size": 32, "patch_size": 8, "num_labels": 5}


def _tokens(batch: int = 2, length: int = 12) -> Tensor:
    return torch.randint(4, VOCABULARY, (batch, length))


def _pixels(size: int = 32) -> Tensor:
    return torch.randn(2, 3, size, size)


def _causal() -> Inputs:
    tokens = _tokens()
    return {"input_ids": tokens, "labels": tokens}


def _masked() -> Inputs:
    """A batch with padding at its end."""
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 9:] = 0
    return {"input_ids": _tokens(), "attention_mask": mask, "labels": _tokens()}


def _sequences() -> Inputs:
    return {"input_ids": _tokens(), "labels": _tokens(2, 7)}


def _speech_to_text() -> Inputs:
    return {"input_features": torch.randn(2, 8, 64), "labels": _tokens(2, 7)}


def _image() -> Inputs:
    return {"pixel_values": _pixels(), "labels": torch.randint(5, (2,))}


def _segments() -> Inputs:
    return {"pixel_values": _pixels(64), "labels": torch.randint(5, (2, 16, 16))}


def _pairs() -> Inputs:
    tokens = _tokens(2, 8)
    tokens[:, -1] = VOCABULARY - 1  # the end of the text, which CLIP looks for
    return {"input_ids": tokens, "pixel_values": _pixels()}


def _sound() -> Inputs:
    return {"input_values": torch.randn(2, 800), "labels": torch.randint(1, 20, (2, 5))}


@dataclass(frozen=True)
class Architecture:
    """model, config: names in transformers. options: of the configuration. inputs: makes a batch with labels.

    prompt: the inputs that `generate` takes; empty where there is no generation. call: further arguments of the model.
    """

    model: str
    config: str
    options: dict[str, Any]
    inputs: Callable[[], Inputs]
    prompt: tuple[str, ...] = ()
    call: dict[str, Any] = field(default_factory=dict)

    def build(self) -> transformers.PreTrainedModel:
        """The model on the CPU, without dropout, in training mode."""
        config = getattr(transformers, self.config)(**self.options)
        _without_dropout(config)
        return getattr(transformers, self.model)(config).train()


def _without_dropout(config: transformers.PreTrainedConfig) -> None:
    for name, value in vars(config).items():
        if isinstance(value, transformers.PreTrainedConfig):
            _without_dropout(value)
        elif "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)


def _decoder(name: str, options: dict[str, Any] = _DECODER, **more: Any) -> Architecture:
    return Architecture(f"{name}ForCausalLM", f"{name}Config", {**options, **more}, _causal, ("input_ids",))


def _encoder(name: str, options: dict[str, Any] = _ENCODER, **more: Any) -> Architecture:
    return Architecture(f"{name}ForMaskedLM", f"{name}Config", {**options, **more}, _masked)


def _both(model: str, config: str, options: dict[str, Any], **more: Any) -> Architecture:
    return Architecture(model, config, {**_TEXT, **options, **more}, _sequences, ("input_ids",))


def _vision(name: str, head: str = "ForImageClassification", **options: Any) -> Architecture:
    return Architecture(f"{name}{head}", f"{name}Config", options, _image)


ARCHITECTURES = {
    # decoders
    "gpt2": Architecture(
        "GPT2LMHeadModel",
        "GPT2Config",
        {**_TEXT, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4},
        _causal,
        ("input_ids",),
    ),
    "llama": _decoder("Llama"),
    "qwen2": _decoder("Qwen2"),
    "qwen3": _decoder("Qwen3", _HEADS, tie_word_embeddings=True),
    "gemma": _decoder("Gemma", _HEADS),
    "gemma2": _decoder("Gemma2", _HEADS, sliding_window=8),
    "gemma3": Architecture(
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {**_HEADS, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
        _causal,
        ("input_ids",),
    ),
    "phi": _decoder("Phi"),
    "phi3": _decoder("Phi3"),
    "mistral": _decoder("Mistral", sliding_window=8),
    "olmo2": _decoder("Olmo2"),
    "gpt_neox": _decoder("GPTNeoX", _ENCODER),
    "gptj": Architecture(
        "GPTJForCausalLM",
        "GPTJConfig",
        {**_TEXT, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4},
        _causal,
        ("input_ids",),
    ),
    "opt": _decoder("OPT", {**_TEXT, **_SIZES, "ffn_dim": 64, "word_embed_proj_dim": 32}),
    "bloom": _decoder("Bloom", {**_TEXT, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "falcon": _decoder("Falcon", {**_TEXT, **_SIZES}),
    "cohere": _decoder("Cohere"),
    "granite": _decoder("Granite"),
    "stablelm": _decoder("StableLm"),
    "starcoder2": _decoder("Starcoder2"),
    "smollm3": _decoder("SmolLM3"),
    "glm4": _decoder("Glm4", _HEADS),
    "mamba": _decoder("Mamba", {**_TEXT, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}),
    # mixtures of experts
    "mixtral": _decoder("Mixtral", num_local_experts=4),
    "qwen2_moe": _decoder("Qwen2Moe", shared_expert_intermediate_size=32, **_EXPERTS),
    "qwen3_moe": _decoder("Qwen3Moe", _HEADS, **_EXPERTS),
    "olmoe": _decoder("Olmoe", num_experts=4, num_experts_per_tok=2),
    "deepseek_v3": _decoder(
        "DeepseekV3",
        {**_DECODER, "num_key_value_heads": 4},
        **{"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2},
        **{"moe_intermediate_size": 32, "first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 16},
        **{"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8},
    ),
    "gpt_oss": _decoder("GptOss", _HEADS, num_local_experts=4, num_experts_per_tok=2, sliding_window=8),
    # encoders
    "bert": _encoder("Bert"),
    "roberta": _encoder("Roberta"),
    "distilbert": _encoder("DistilBert", {**_TEXT, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}),
    "albert": _encoder("Albert", embedding_size=16),
    "electra": _encoder("Electra", embedding_size=16),
    "deberta_v2": _encoder("DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"]),
    "modernbert": _encoder("ModernBert", local_attention=8),
    "mpnet": _encoder("MPNet"),
    # encoder-decoders
    "t5": _both(
        "T5ForConditionalGeneration",
        "T5Config",
        {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0},
    ),
    "bart": _both("BartForConditionalGeneration", "BartConfig", _BOTH, forced_eos_token_id=None),
    "pegasus": _both("PegasusForConditionalGeneration", "PegasusConfig", _BOTH, forced_eos_token_id=None),
    "marian": _both("MarianMTModel", "MarianConfig", _BOTH, forced_eos_token_id=None),
    "whisper": Architecture(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {**_TEXT, **_BOTH, "num_mel_bins": 8, "max_source_positions": 32, "max_target_positions": 64},
        _speech_to_text,
        ("input_features",),
    ),
    # vision
    "vit": _vision("ViT", **_WIDE, **_IMAGE),
    "deit": _vision("DeiT", **_WIDE, **_IMAGE),
    "dinov2": _vision("Dinov2", **_SIZES, **_IMAGE),
    "swin": _vision(
        "Swin",
        **{"image_size": 32, "patch_size": 2, "num_labels": 5, "embed_dim": 16, "depths": [1, 2], "num_heads": [2, 4]},
        window_size=4,
    ),
    "resnet": _vision("ResNet", embedding_size=16, hidden_sizes=[16, 32], depths=[1, 2], num_labels=5),
    "convnext": _vision("ConvNext", hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], num_labels=5),
    "segformer": Architecture(
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        {"num_encoder_blocks": 4, "depths": [1] * 4, "hidden_sizes": [8, 8, 16, 16], "decoder_hidden_size": 16}
        | {"num_attention_heads": [1, 1, 2, 2], "num_labels": 5},
        _segments,
    ),
    "clip": Architecture(
        "CLIPModel",
        "CLIPConfig",
        {
            "text_config": {**_TEXT, **_WIDE, "eos_token_id": VOCABULARY - 1},
            "vision_config": {**_WIDE, "image_size": 32, "patch_size": 8},
            "projection_dim": 16,
        },
        _pairs,
        call={"return_loss": True},
    ),
    # speech
    "wav2vec2": Architecture(
        "Wav2Vec2ForCTC",
        "Wav2Vec2Config",
        {**_WIDE, "vocab_size": 32, "conv_dim": [16] * 3, "conv_stride": [5, 2, 2], "conv_kernel": [10, 3, 2]}
        | {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "apply_spec_augment": False},
        _sound,
    ),
}
