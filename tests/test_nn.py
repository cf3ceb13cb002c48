"""Modules: outputs, gradients of inputs and parameters, and buffers equal the CPU's, in training and evaluation."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from parity import assert_same, gradients, on_both, to_device, weights
from torch import nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

Tensor = torch.Tensor


def some(*shape: int) -> Tensor:
    """Distinct values of mixed sign."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator)


def step(module: nn.Module, inputs: list[Any]) -> Any:
    """Output, gradients of inputs and of parameters, and buffers after one forward and backward."""
    floats = [x for x in pytree.tree_leaves(inputs) if isinstance(x, Tensor) and x.is_floating_point()]
    # Targets of some losses have no gradient.
    leaves = [x.requires_grad_() for x in (floats[:1] if isinstance(module, nn.modules.loss._Loss) else floats)]
    out = module(*inputs)
    tensors = [o for o in pytree.tree_leaves(out) if isinstance(o, Tensor)]
    differentiable = [o for o in tensors if o.requires_grad]
    if differentiable:
        sum((o * weights(o)).sum() for o in differentiable).backward()
    grads = [x.grad for x in leaves if x.grad is not None] + [p.grad for p in module.parameters() if p.grad is not None]
    return [o.detach() for o in tensors], grads, list(module.buffers())


def check_module(make: Callable[[], nn.Module], *inputs: Any, training: bool = True, **tolerances: float) -> None:
    """Assert that a module's step on the device equals that on the CPU."""
    torch.manual_seed(0)
    host = make().train(training)
    there = copy.deepcopy(host).to("tpu")
    expected = step(host, to_device(list(inputs), "cpu"))
    assert_same(step(there, to_device(list(inputs), "tpu")), expected, **tolerances)


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...]]] = {
    "linear": (lambda: nn.Linear(4, 3), (some(2, 5, 4),)),
    "bilinear": (lambda: nn.Bilinear(3, 4, 2), (some(5, 3), some(5, 4))),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), (some(2, 4, 9),)),
    "conv1d same": (lambda: nn.Conv1d(2, 3, 4, padding="same"), (some(2, 2, 7),)),
    "conv2d": (lambda: nn.Conv2d(3, 4, 3, padding=1, dilation=2), (some(2, 3, 8, 7),)),
    "conv2d no batch": (lambda: nn.Conv2d(3, 4, (1, 3), bias=False), (some(3, 5, 6),)),
    "conv2d depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4), (some(2, 4, 6, 6),)),
    "conv2d reflect": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), (some(2, 2, 5, 5),)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2, stride=(1, 2, 1)), (some(1, 2, 4, 5, 4),)),
    "conv transpose 1d": (lambda: nn.ConvTranspose1d(3, 2, 3, stride=2, output_padding=1), (some(2, 3, 5),)),
    "conv transpose 2d": (
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2, dilation=2),
        (some(2, 4, 5, 4),),
    ),
    "conv transpose 3d": (lambda: nn.ConvTranspose3d(2, 3, 2), (some(1, 2, 3, 3, 3),)),
    "batch norm 1d": (lambda: nn.BatchNorm1d(3), (some(6, 3),)),
    "batch norm 2d": (lambda: nn.BatchNorm2d(3, momentum=None), (some(2, 3, 4, 4),)),
    "batch norm untracked": (lambda: nn.BatchNorm2d(3, affine=False, track_running_stats=False), (some(2, 3, 2, 2),)),
    "batch norm 3d": (lambda: nn.BatchNorm3d(2), (some(2, 2, 2, 3, 2),)),
    "layer norm": (lambda: nn.LayerNorm((3, 4)), (some(5, 3, 4),)),
    "rms norm": (lambda: nn.RMSNorm(4), (some(2, 3, 4),)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (some(2, 4, 3, 3),)),
    "group norm channels last": (
        lambda: nn.GroupNorm(2, 4),
        (some(2, 4, 3, 3).to(memory_format=torch.channels_last),),
    ),
    "instance norm": (lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True), (some(2, 3, 4, 4),)),
    "local response norm": (lambda: nn.LocalResponseNorm(3), (some(2, 5, 4, 4),)),
    "max pool 1d": (lambda: nn.MaxPool1d(3, stride=2), (some(2, 3, 9),)),
    "max pool 2d": (lambda: nn.MaxPool2d(3, 2, padding=1, dilation=2, ceil_mode=True), (some(2, 2, 9, 8),)),
    "max pool indices": (lambda: nn.MaxPool2d(2, return_indices=True), (some(2, 2, 4, 6),)),
    "max pool 3d": (lambda: nn.MaxPool3d(2), (some(1, 2, 4, 4, 4),)),
    "avg pool 1d": (lambda: nn.AvgPool1d(3, stride=2, padding=1, count_include_pad=False), (some(2, 3, 8),)),
    "avg pool 2d": (lambda: nn.AvgPool2d(3, ceil_mode=True, divisor_override=2), (some(2, 3, 7, 8),)),
    "avg pool 3d": (lambda: nn.AvgPool3d(2), (some(1, 2, 4, 4, 4),)),
    "adaptive avg pool": (lambda: nn.AdaptiveAvgPool2d((3, None)), (some(2, 2, 7, 5),)),
    "adaptive max pool": (lambda: nn.AdaptiveMaxPool2d((2, 3)), (some(2, 2, 5, 7),)),
    "adaptive avg pool 1d": (lambda: nn.AdaptiveAvgPool1d(4), (some(2, 2, 6),)),
    "lp pool": (lambda: nn.LPPool2d(2, 2), (some(2, 2, 4, 4).abs() + 0.1,)),
    "upsample nearest": (lambda: nn.Upsample(scale_factor=2), (some(2, 2, 3, 4),)),
    "upsample bilinear": (lambda: nn.Upsample((5, 7), mode="bilinear"), (some(2, 2, 3, 4),)),
    "upsample aligned": (lambda: nn.Upsample((5, 7), mode="bilinear", align_corners=True), (some(2, 2, 3, 4),)),
    "upsample bicubic": (lambda: nn.Upsample(scale_factor=1.5, mode="bicubic"), (some(1, 2, 4, 4),)),
    "upsample linear": (lambda: nn.Upsample(5, mode="linear"), (some(2, 2, 3),)),
    "upsample trilinear": (lambda: nn.Upsample(scale_factor=2, mode="trilinear"), (some(1, 1, 2, 3, 2),)),
    "pixel shuffle": (lambda: nn.PixelShuffle(2), (some(1, 8, 2, 3),)),
    "pixel unshuffle": (lambda: nn.PixelUnshuffle(2), (some(1, 2, 4, 6),)),
    "channel shuffle": (lambda: nn.ChannelShuffle(2), (some(1, 4, 2, 2),)),
    "pad constant": (lambda: nn.ConstantPad2d((1, -1, 0, 2), 3.5), (some(2, 2, 3, 4),)),
    "pad reflect": (lambda: nn.ReflectionPad2d((1, 2, 0, 1)), (some(2, 2, 3, 4),)),
    "pad replicate": (lambda: nn.ReplicationPad1d((2, 1)), (some(2, 2, 4),)),
    "pad circular": (lambda: nn.CircularPad2d((1, 1, 2, 0)), (some(2, 2, 3, 4),)),
    "unfold": (lambda: nn.Unfold(2, padding=1, stride=2), (some(2, 2, 4, 5),)),
    "fold": (lambda: nn.Fold((4, 5), 2, stride=1), (some(2, 8, 12),)),
    "embedding": (lambda: nn.Embedding(6, 3, padding_idx=0), (torch.tensor([[1, 0, 5], [1, 1, 2]]),)),
    "embedding max norm": (lambda: nn.Embedding(6, 3, max_norm=0.5), (torch.tensor([1, 0, 1]),)),
    "embedding scaled": (lambda: nn.Embedding(6, 3, scale_grad_by_freq=True), (torch.tensor([1, 1, 2]),)),
    "embedding bag mean": (
        lambda: nn.EmbeddingBag(6, 3),
        (torch.tensor([1, 2, 4, 5, 1]), torch.tensor([0, 2, 2])),
    ),
    "embedding bag max": (lambda: nn.EmbeddingBag(6, 3, mode="max"), (torch.tensor([[1, 2], [4, 5]]),)),
    "embedding bag sum weighted": (
        lambda: nn.EmbeddingBag(6, 3, mode="sum"),
        (torch.tensor([[1, 2], [4, 5]]), None, some(2, 2)),
    ),
    "rnn": (lambda: nn.RNN(3, 4, nonlinearity="relu"), (some(5, 2, 3),)),
    "lstm": (lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True), (some(2, 5, 3),)),
    "lstm projected": (lambda: nn.LSTM(3, 4, proj_size=2), (some(5, 2, 3), (some(1, 2, 2), some(1, 2, 4)))),
    "gru": (lambda: nn.GRU(3, 4, bidirectional=True), (some(5, 2, 3), some(2, 2, 4))),
    "lstm cell": (lambda: nn.LSTMCell(3, 4), (some(2, 3), (some(2, 4), some(2, 4)))),
    "gru cell": (lambda: nn.GRUCell(3, 4), (some(2, 3), some(2, 4))),
    "rnn cell": (lambda: nn.RNNCell(3, 4, bias=False), (some(2, 3),)),
    "attention": (lambda: nn.MultiheadAttention(8, 2, batch_first=True), (some(2, 5, 8), some(2, 6, 8), some(2, 6, 8))),
    "transformer encoder layer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True),
        (some(2, 5, 8),),
    ),
    "transformer decoder layer": (
        lambda: nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, activation="gelu"),
        (some(4, 2, 8), some(5, 2, 8)),
    ),
    "transformer": (
        lambda: nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True),
        (some(2, 4, 8), some(2, 3, 8)),
    ),
    "cosine similarity": (lambda: nn.CosineSimilarity(), (some(3, 4), some(3, 4).flip(0))),
    "pairwise distance": (lambda: nn.PairwiseDistance(1.5), (some(3, 4), some(3, 4).flip(0))),
    "adaptive softmax": (
        lambda: nn.AdaptiveLogSoftmaxWithLoss(6, 10, cutoffs=[3, 6], div_value=2),
        (some(5, 6), torch.tensor([0, 9, 4, 2, 7])),
    ),
    "prelu": (lambda: nn.PReLU(3), (some(2, 3, 4),)),
    "glu": (lambda: nn.GLU(1), (some(2, 6, 3),)),
    "softmax 2d": (lambda: nn.Softmax2d(), (some(2, 3, 2, 2),)),
    "multihead": (lambda: nn.Sequential(nn.Flatten(), nn.Unflatten(1, (2, 6)), nn.Softplus()), (some(2, 3, 4),)),
}
ONLY_IN_TRAINING = ["batch", "norm", "attention", "transformer", "lstm", "gru", "embedding max norm"]


@pytest.mark.parametrize("name", MODULES)
def test_training(name: str) -> None:
    make, inputs = MODULES[name]
    check_module(make, *inputs)


@pytest.mark.parametrize("name", [n for n in MODULES if any(part in n for part in ONLY_IN_TRAINING)])
def test_evaluation(name: str) -> None:
    make, inputs = MODULES[name]
    check_module(make, *inputs, training=False)


@pytest.mark.parametrize(
    "name", [n for n in MODULES if any(p in n for p in ("attention", "encoder", "lstm", "norm 2d"))]
)
def test_inference_without_gradients(name: str) -> None:
    """Modules take other ways where no gradient is asked for."""
    make, inputs = MODULES[name]
    torch.manual_seed(0)
    host = make().eval()
    there = copy.deepcopy(host).to("tpu")
    with torch.no_grad():
        expected, got = host(*inputs), there(*to_device(inputs, "tpu"))
    assert_same(got, expected)


LOSSES: dict[str, tuple[nn.Module, tuple[Any, ...]]] = {
    "l1": (nn.L1Loss(), (some(3, 4), some(4, 3).t())),
    "mse none": (nn.MSELoss(reduction="none"), (some(3, 4), some(4, 3).t())),
    "smooth l1": (nn.SmoothL1Loss(beta=0.5), (some(3, 4), some(4, 3).t())),
    "huber": (nn.HuberLoss(delta=0.7), (some(3, 4), some(4, 3).t())),
    "cross entropy": (
        nn.CrossEntropyLoss(some(5).abs(), ignore_index=-100, label_smoothing=0.1),
        (some(4, 5), torch.tensor([1, -100, 0, 4])),
    ),
    "cross entropy of probabilities": (nn.CrossEntropyLoss(), (some(4, 5), some(4, 5).softmax(1))),
    "cross entropy 2d": (nn.CrossEntropyLoss(), (some(2, 3, 2, 2), torch.tensor([[[0, 1], [2, 2]], [[1, 1], [0, 2]]]))),
    "nll": (nn.NLLLoss(reduction="sum"), (some(4, 5).log_softmax(1).detach(), torch.tensor([1, 3, 0, 4]))),
    "bce": (nn.BCELoss(), (some(3, 4).sigmoid(), some(4, 3).t().sigmoid())),
    "bce with logits": (
        nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 2, 3, 4])),
        (some(3, 4), some(3, 4).sigmoid()),
    ),
    "kl": (nn.KLDivLoss(reduction="batchmean"), (some(3, 4).log_softmax(1), some(4, 3).t().softmax(1))),
    "kl of logs": (nn.KLDivLoss(log_target=True, reduction="sum"), (some(3, 4), some(4, 3).t())),
    "poisson": (nn.PoissonNLLLoss(full=True), (some(3, 4), some(4, 3).t().abs() * 3)),
    "gaussian": (nn.GaussianNLLLoss(), (some(3, 4), some(4, 3).t(), some(3, 4).abs() + 0.1)),
    "hinge": (nn.HingeEmbeddingLoss(), (some(3, 4), some(4, 3).t().sign())),
    "soft margin": (nn.SoftMarginLoss(), (some(3, 4), some(4, 3).t().sign())),
    "multi margin none": (nn.MultiMarginLoss(2, reduction="none"), (some(3, 4), torch.tensor([0, 3, 1]))),
    "multi margin": (nn.MultiMarginLoss(), (some(3, 4), torch.tensor([0, 3, 1]))),
    "multilabel margin": (nn.MultiLabelMarginLoss(), (some(1, 4), torch.tensor([[3, 0, -1, 1]]))),
    "multilabel soft margin": (nn.MultiLabelSoftMarginLoss(), (some(3, 4), (some(3, 4) > 0).float())),
    "triplet": (nn.TripletMarginLoss(), (some(3, 4), some(4, 3).t(), some(3, 4).flip(0))),
    "margin ranking": (nn.MarginRankingLoss(0.2), (some(3), some(3).flip(0), torch.tensor([1.0, -1.0, 1.0]))),
    "cosine embedding": (nn.CosineEmbeddingLoss(), (some(3, 4), some(3, 4).flip(1), torch.tensor([1.0, -1.0, 1.0]))),
    "ctc": (
        nn.CTCLoss(),
        (some(6, 2, 4).log_softmax(2), torch.tensor([[1, 2], [3, 3]]), torch.tensor([6, 6]), torch.tensor([2, 2])),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    loss, inputs = LOSSES[name]
    check_module(lambda: loss, *inputs)


ACTIVATIONS = [
    nn.ELU(), nn.Hardshrink(), nn.Hardsigmoid(), nn.Hardtanh(), nn.Hardswish(), nn.LeakyReLU(0.2), nn.LogSigmoid(),
    nn.ReLU6(), nn.SELU(), nn.CELU(0.7), nn.GELU("tanh"), nn.Sigmoid(), nn.SiLU(), nn.Mish(), nn.Softplus(2, 3),
    nn.Softshrink(), nn.Softsign(), nn.Tanh(), nn.Tanhshrink(), nn.Threshold(0.1, 2), nn.LogSoftmax(-1), nn.Softmin(0),
]  # fmt: skip


def test_activations() -> None:
    x = torch.linspace(-4, 4, 24).reshape(4, 6)
    for module in ACTIVATIONS:
        check_module(lambda m=module: m, x)


def test_packed_sequences() -> None:
    def run(x: Tensor) -> Any:
        torch.manual_seed(0)
        lstm = nn.LSTM(3, 4, bidirectional=True, num_layers=2).to(x.device)
        packed = pack_padded_sequence(x, torch.tensor([5, 2, 4]), enforce_sorted=False)
        out, (h, c) = lstm(packed)
        padded, lengths = pad_packed_sequence(out, total_length=6)
        (padded.sum() + h.sum()).backward()
        return padded, h, c, [p.grad for p in lstm.parameters()], lengths.tolist()

    on_both(run, some(5, 3, 3))


def test_unpooling_and_samplers() -> None:
    def run(x: Tensor, grid: Tensor) -> Any:
        pooled, places = F.max_pool2d(x, 2, return_indices=True)
        return (
            F.max_unpool2d(pooled, places, 2),
            F.grid_sample(x, grid, align_corners=False),
            F.grid_sample(x, grid, mode="nearest", padding_mode="border", align_corners=True),
            F.affine_grid(grid[:, :2, :3, 0], [2, 2, 3, 3], align_corners=False),
            F.interpolate(x, scale_factor=0.5, mode="area"),
        )

    on_both(run, some(2, 2, 4, 4), some(2, 3, 3, 2).clamp(-1.2, 1.2))


def test_adaptive_pools_that_keep_a_side() -> None:
    for size in ((3, None), (None, 3), (2, 3), (7, 7)):
        on_both(lambda x, n=size: F.adaptive_max_pool2d(x, n, return_indices=True), some(2, 2, 4, 3))
    on_both(lambda x: F.adaptive_max_pool3d(x, (2, 3, None), return_indices=True), some(2, 2, 3, 4, 3))


def test_attention_of_batches_that_broadcast() -> None:
    q, k = some(3, 5, 8), some(2, 3, 6, 8)
    on_both(lambda q, k: F.scaled_dot_product_attention(q, k, k), q, k)
    on_both(lambda q, k: F.scaled_dot_product_attention(q, k[:1], k[:1]), some(2, 3, 5, 8), k)


def test_attention_masks() -> None:
    def run(x: Tensor) -> Any:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).to(x.device)
        attention = nn.MultiheadAttention(8, 2, add_bias_kv=True).to(x.device)
        causal = nn.Transformer.generate_square_subsequent_mask(5, device=x.device)
        padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2], device=x.device)
        trained = layer(x, src_mask=causal)
        padded = layer.eval()(x, src_key_padding_mask=padding)[:, :3]
        encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
        with torch.no_grad():
            quick = encoder(x, src_key_padding_mask=padding)[:, :3]
        out, shares = attention(x, x, x, need_weights=True, average_attn_weights=False)
        return trained, padded, quick, out, shares

    on_both(run, some(2, 5, 8))


def test_dropout_modules() -> None:
    x = torch.ones(100, 8, 4, device="tpu")
    for module, group in ((nn.Dropout(0.25), ()), (nn.Dropout1d(0.25), (2,)), (nn.AlphaDropout(0.25), ())):
        out = module(x)
        assert torch.equal(module.eval()(x), x)
        kept = (out == out.max()).float()
        assert abs(kept.mean().item() - 0.75) < 0.1
        if group:
            assert torch.equal(kept.amax(2), kept.amin(2)), "whole channels"
    torch.manual_seed(3)
    a = F.dropout(x, 0.5)
    torch.manual_seed(3)
    assert torch.equal(a, F.dropout(x, 0.5))
    p = x.clone().requires_grad_()
    out = F.dropout(p, 0.5)
    out.sum().backward()
    assert torch.equal(p.grad, out.detach())
    assert F.dropout(x, 1.0).abs().sum() == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions(dtype: torch.dtype) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)).to(
            dtype
        )

    # Half precisions keep three digits and sums are added in another order.
    loose = {} if dtype == torch.float64 else {"rtol": 5e-2, "atol": 5e-2}
    check_module(make, some(2, 2, 4, 4).to(dtype), **loose)


def test_channels_last_model() -> None:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
        return model.to(memory_format=torch.channels_last)

    x = some(2, 3, 4, 4).to(memory_format=torch.channels_last)
    check_module(make, x)
    model = make().to("tpu")
    assert model(x.to("tpu")).is_contiguous(memory_format=torch.channels_last)


def test_lazy_modules_initialisers_and_hooks() -> None:
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2)).to("tpu")
    seen: list[str] = []
    model[0].register_forward_hook(lambda *_: seen.append("forward"))
    model[0].register_full_backward_hook(lambda *_: seen.append("backward"))
    model(some(2, 3, 4, 4).to("tpu")).sum().backward()
    assert seen == ["forward", "backward"]
    w = torch.empty(64, 32, device="tpu")
    for init in (
        nn.init.xavier_uniform_, nn.init.kaiming_normal_, nn.init.orthogonal_, nn.init.trunc_normal_, nn.init.zeros_,
        nn.init.eye_, nn.init.normal_, nn.init.uniform_, lambda t: nn.init.sparse_(t, 0.5), nn.init.dirac_,
    ):  # fmt: skip
        if init is nn.init.dirac_:
            init(torch.empty(4, 4, 3, device="tpu"))
        else:
            init(w)
    nn.init.orthogonal_(w)
    torch.testing.assert_close((w.t() @ w).cpu(), torch.eye(32), atol=1e-5, rtol=1e-5)
    nn.init.trunc_normal_(w, std=1.0, a=-0.5, b=0.5)
    assert w.abs().max() <= 0.5 and w.std() > 0.1


def test_gradient_accumulation_equals_one_large_batch() -> None:
    x = some(8, 4).to("tpu")
    torch.manual_seed(0)
    model = nn.Linear(4, 3).to("tpu")
    model(x).square().mean().backward()
    whole = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    for part in x.chunk(4):
        (model(part).square().mean() / 4).backward()
    for p, w in zip(model.parameters(), whole, strict=True):
        torch.testing.assert_close(p.grad, w)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grouped_products_of_experts(dtype: torch.dtype) -> None:
    """torch._grouped_mm, as mixtures of experts call it, with gradients; an expert may have no rows."""
    x, weight = some(10, 8).to(dtype).requires_grad_(), some(4, 8, 16).to(dtype).requires_grad_()
    ends = torch.tensor([3, 3, 4, 10], dtype=torch.int32)
    close = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {}
    on_both(gradients(lambda x, w, e: torch._grouped_mm(x, w, offs=e)), x, weight, ends, **close)
    weight = some(4, 16, 8).to(dtype).requires_grad_()
    on_both(gradients(lambda x, w, e: torch._grouped_mm(x, w.mT, offs=e)), x, weight, ends, **close)


def test_grouped_products_refuse_what_does_not_fit() -> None:
    ends = torch.tensor([2, 5], dtype=torch.int32)
    on_both(lambda x, w, e: torch._grouped_mm(x, w, offs=e), some(5, 8), some(2, 4, 3), ends)


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (2, 0)])
def test_attention_of_packed_sequences(window: tuple[int, int]) -> None:
    """torch.nn.attention.varlen gives what attention of each sequence by itself gives, and its gradients."""
    q, k, v = (some(9, 2, 8 + i)[..., :8].clone().requires_grad_() for i in range(3))
    ends = torch.tensor([0, 4, 9], dtype=torch.int32)

    def packed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        e = ends.to(q.device)
        return varlen_attn(q, k, v, e, e, 5, 5, window_size=window)

    def apart(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        results = []
        for start, end in itertools.pairwise(ends.tolist()):
            rows, cols = torch.arange(end - start)[:, None], torch.arange(end - start)
            left, right = (w if w >= 0 else 99 for w in window)
            mask = (cols >= rows - left) & (cols <= rows + right)
            parts = (x[start:end].transpose(0, 1) for x in (q, k, v))
            results.append(F.scaled_dot_product_attention(*parts, attn_mask=mask).transpose(0, 1))
        return torch.cat(results)

    expected = gradients(apart)(q, k, v)
    got = gradients(packed)(*to_device((q, k, v), "tpu"))
    assert_same(got, expected, rtol=1e-4, atol=1e-5)


def test_rotary_positions_as_complex_numbers() -> None:
    """x rotated as pairs of numbers, the way Llama's own code does it."""
    angles = torch.outer(torch.arange(6.0), 1 / 100 ** (torch.arange(0, 8, 2) / 8))

    def rotate(x: Tensor, angles: Tensor) -> Tensor:
        turns = torch.polar(torch.ones_like(angles), angles)[None, :, None]
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns).flatten(3).type_as(x)

    on_both(gradients(rotate), some(2, 6, 3, 8).requires_grad_(), angles)
    on_both(gradients(lambda x, a: rotate(x, -a).conj()), some(2, 6, 3, 8).requires_grad_(), angles)


def test_overrideable_convolutions() -> None:
    """The ops that out-of-tree backends are asked for are the convolution and its gradient."""
    x, w, b = some(2, 4, 8, 8).requires_grad_(), some(6, 2, 3, 3).requires_grad_(), some(6).requires_grad_()
    options = ([2, 1], [1, 0], [1, 1], False, [0, 0], 2)
    expected = gradients(lambda *o: torch.convolution(*o, *options))(x, w, b)
    got = gradients(lambda *o: torch.ops.aten.convolution_overrideable(*o, *options))(*to_device((x, w, b), "tpu"))
    assert_same(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("module", [nn.BatchNorm1d, nn.LayerNorm, lambda n: nn.GroupNorm(2, n)])
def test_gradients_of_a_first_norm(module: Callable[[int], nn.Module], training: bool) -> None:
    """The input needs no gradient, so backward is asked for those of the parameters only."""
    x, norm = some(8, 4), module(4).train(training)
    on_device = copy.deepcopy(norm).to("tpu")
    norm(x).square().sum().backward()
    on_device(x.to("tpu")).square().sum().backward()
    for got, expected in zip(on_device.parameters(), norm.parameters(), strict=True):
        assert_same(got.grad, expected.grad, rtol=1e-4, atol=1e-5)
