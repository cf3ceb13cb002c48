"""The layers that torch.nn runs as one op in inference: multi-head attention, a transformer encoder's layer."""

from __future__ import annotations

from typing import Any

from ._jax import jax, jnp
from .attention import attention, dense_plan
from .context import out
from .matmul import product
from .norm import normalised
from .registry import lowers


def _linear(x: Any, weight: Any, bias: Any) -> Any:
    value = product(x.reshape(-1, x.shape[-1]), weight.T)
    return (value + bias.astype(value.dtype)).astype(x.dtype).reshape(*x.shape[:-1], weight.shape[0])


def _bias(mask: Any, mask_type: int | None) -> Any:
    """The mask of a kind (0: [L, S], 1: [B, S], 2: as the scores) as one of scores [B, heads, 1, L, S]."""
    if mask is None:
        return None
    mask = mask[:, None, None] if mask_type == 1 else mask
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)[:, :, None]
    # In a bool mask, True is left out.
    return ~mask if mask.dtype == bool else mask


def _split(query: Any, key: Any, value: Any, heads: int, weight: Any, bias: Any) -> list[Any]:
    """Queries, keys and values [B, heads, L, size]."""
    if query is key and key is value:
        parts = jnp.split(_linear(query, weight, bias), 3, -1)
    else:
        layers = zip(jnp.split(weight, 3), jnp.split(bias, 3), strict=True)
        parts = [_linear(x, w, b) for x, (w, b) in zip((query, key, value), layers, strict=True)]
    return [x.reshape(*x.shape[:2], heads, x.shape[2] // heads).swapaxes(1, 2) for x in parts]


def _attend(q: Any, k: Any, v: Any, mask: Any, mask_type: int | None) -> Any:
    """[B, L, heads * size]."""
    value, _ = attention(q[:, :, None], k, v, dense_plan(q[:, :, None], k, bias=_bias(mask, mask_type)))
    return value[:, :, 0].swapaxes(1, 2).reshape(q.shape[0], q.shape[2], -1).astype(q.dtype)


def _weights(q: Any, k: Any, mask: Any, mask_type: int | None) -> Any:
    """[B, heads, L, S]."""
    plan = dense_plan(q[:, :, None], k, bias=_bias(mask, mask_type))
    scores = plan.scores(q[:, :, None], k, 0, 0)[:, :, 0]
    return jax.nn.softmax(scores, -1)


@lowers("aten::_native_multi_head_attention")
def multi_head_attention(
    query: Any,
    key: Any,
    value: Any,
    embed_dim: int,
    heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    mask: Any,
    need_weights: bool,
    average_attn_weights: bool,
    mask_type: int | None,
) -> tuple[Any, Any]:
    if query.size == 0:
        return query, jnp.zeros(tuple(out(1).shape), query.dtype)
    q, k, v = _split(query, key, value, heads, qkv_weight, qkv_bias)
    result = _linear(_attend(q, k, v, mask, mask_type), proj_weight, proj_bias)
    if not need_weights:
        return result, None if out(1) is None else jnp.zeros(tuple(out(1).shape), query.dtype)
    weights = _weights(q, k, mask, mask_type)
    return result, (weights.mean(1) if average_attn_weights else weights).astype(query.dtype)


@lowers("aten::_transformer_encoder_layer_fwd")
def encoder_layer(
    x: Any,
    embed_dim: int,
    heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Any,
    norm_bias_1: Any,
    norm_weight_2: Any,
    norm_bias_2: Any,
    ffn_weight_1: Any,
    ffn_bias_1: Any,
    ffn_weight_2: Any,
    ffn_bias_2: Any,
    mask: Any,
    mask_type: int | None,
) -> Any:
    if x.size == 0:
        return x

    def attend(x: Any) -> Any:
        q, k, v = _split(x, x, x, heads, qkv_weight, qkv_bias)
        return _linear(_attend(q, k, v, mask, mask_type), proj_weight, proj_bias)

    def feed(x: Any) -> Any:
        x = _linear(x, ffn_weight_1, ffn_bias_1)
        return _linear(jax.nn.gelu(x, approximate=False) if use_gelu else jax.nn.relu(x), ffn_weight_2, ffn_bias_2)

    for layer, weight, bias in ((attend, norm_weight_1, norm_bias_1), (feed, norm_weight_2, norm_bias_2)):
        x = x + layer(normalised(x, weight, bias, eps)) if norm_first else normalised(x + layer(x), weight, bias, eps)
    return x
