"""A GPT and a small Llama in PyTorch, with compiled forward and training step, for benchmarks of torch.compile."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LAYERS, WIDTH, HEADS, VOCABULARY, BATCH, LENGTH = 4, 256, 8, 8192, 4, 128
KV_HEADS, HEAD, INNER = HEADS // 2, WIDTH // HEADS, 4 * WIDTH
LR, BETAS, EPS, DECAY = 1e-3, (0.9, 0.999), 1e-8, 1e-2


class GPT(nn.Module):
    """Learned positions, LayerNorm, GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(GPTLayer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class GPTLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(2, (HEADS, HEAD)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, 2))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Llama(nn.Module):
    """Rotary positions, RMSNorm, grouped queries, SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(LlamaLayer() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDTH, eps=1e-6), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        angles = torch.arange(tokens.shape[1], device=x.device)[:, None] * (
            10000.0 ** (-torch.arange(0, HEAD, 2, device=x.device) / HEAD)
        )
        angles = torch.cat([angles, angles], 1)
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin())
        return self.head(self.norm(x))


class LlamaLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH, eps=1e-6), nn.RMSNorm(WIDTH, eps=1e-6)
        self.q, self.out = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k, self.v = (nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        h = self.norm1(x)
        q, k, v = (f(h).unflatten(2, (-1, HEAD)).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = (t * cos + torch.cat([-t[..., HEAD // 2 :], t[..., : HEAD // 2]], -1) * sin for t in (q, k))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(out.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class InTorch:
    """The model in PyTorch, compiled."""

    def __init__(self, module: nn.Module, tokens: Tensor) -> None:
        self.module, self.tokens = module, tokens
        self.optimizer = torch.optim.AdamW(module.parameters(), lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY)
        self._forward, self._loss = torch.compile(module), torch.compile(self.loss_of)
        self._update = torch.compile(self.optimizer.step)

    def loss_of(self, tokens: Tensor) -> Tensor:
        return F.cross_entropy(self.module(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    @torch.no_grad()
    def forward(self) -> Tensor:
        return self._forward(self.tokens)

    def step(self) -> Tensor:
        loss = self._loss(self.tokens)
        loss.backward()
        self._update()
        self.optimizer.zero_grad()
        return loss.detach()
