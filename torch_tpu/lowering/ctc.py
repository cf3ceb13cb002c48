"""Connectionist temporal classification: the loss by recursion over time in log space, and its gradient."""

from __future__ import annotations

from typing import Any

from ._jax import jnp, lax
from .registry import lowers

# Targets are extended by blanks: states 0 to 2S of a sequence of S labels, state 2i + 1 being label i.


def label_count(steps: int, targets: Any) -> int:
    """Labels of a sequence, at most, from the shape of the targets: no path has more labels than steps."""
    return min(steps, targets[-1])


def _lengths(lengths: Any) -> Any:
    """int32[N] of a tensor or a list of numbers."""
    if isinstance(lengths, (list, tuple)):
        return jnp.stack([jnp.asarray(n, jnp.int32) for n in lengths])
    return lengths.astype(jnp.int32)


def _states(targets: Any, lengths: Any, labels: int, blank: int) -> Any:
    """int32[N, 2 labels + 1], the class of each state, from [N, S] or from all labels one after the other."""
    at = jnp.arange(labels, dtype=jnp.int32)
    if targets.ndim == 1:
        first = jnp.cumsum(lengths) - lengths
        chosen = (
            jnp.take(targets, first[:, None] + at, mode="clip") if targets.size else jnp.zeros((first.size, labels))
        )
    else:
        chosen = targets[:, :labels]
    inside = at < lengths[:, None]
    chosen = jnp.where(inside, chosen, blank).astype(jnp.int32)
    spaced = jnp.stack([jnp.full_like(chosen, blank), chosen], 2).reshape(lengths.size, 2 * labels)
    return jnp.pad(spaced, ((0, 0), (0, 1)), constant_values=blank)


def _shift(x: Any, by: int, fill: Any) -> Any:
    """x[:, s - by], with `fill` where there is none."""
    return lax.pad(x, jnp.asarray(fill, x.dtype), [(0, 0, 0), (by, -by, 0)])


def _sum_exp(*xs: Any) -> Any:
    top = jnp.maximum(jnp.maximum(*xs[:2]), xs[2])
    top = jnp.where(top == -jnp.inf, 0, top)
    return jnp.log(sum(jnp.exp(x - top) for x in xs)) + top


def _emitted(log_probs: Any, states: Any) -> Any:
    """[T, N, states], the log probability of each state's class."""
    return jnp.take_along_axis(log_probs, states[None], 2, mode="clip")


@lowers("aten::_ctc_loss", "aten::_ctc_loss.Tensor", runtime=("input_lengths", "target_lengths"))
def ctc_loss(
    log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int, zero_infinity: bool
) -> tuple[Any, Any]:
    """(negative log likelihood [N], log alpha [N, T, states])."""
    steps, wide = log_probs.shape[0], log_probs.dtype
    inputs, lengths = _lengths(input_lengths), _lengths(target_lengths)
    states = _states(targets, lengths, label_count(steps, targets.shape), blank)
    emitted = _emitted(log_probs, states)
    # A label may follow the one before it directly, past the blank between them, if they differ.
    skips = (states != _shift(states, 2, blank)) & (states != blank)
    place = jnp.arange(states.shape[1], dtype=jnp.int32)
    last = 2 * lengths[:, None]

    def step(alpha: Any, now: Any) -> tuple[Any, Any]:
        t, emitted = now
        hop = jnp.where(skips, _shift(alpha, 2, -jnp.inf), -jnp.inf)
        new = _sum_exp(alpha, _shift(alpha, 1, -jnp.inf), hop) + emitted
        running = t < inputs[:, None]
        alpha = jnp.where(running, new, alpha)
        return alpha, jnp.where(running, new, -jnp.inf)

    # Before the first step, as if in a blank before the first one: one may stay or go to the first label.
    start = jnp.where(place == 0, 0, jnp.full(states.shape, -jnp.inf, wide))
    now = jnp.arange(steps, dtype=jnp.int32), emitted
    final, alphas = lax.scan(step, start, now)
    ends = (place == last) | (place == last - 1)
    final = jnp.where(ends, final, -jnp.inf)
    top = final.max(1, keepdims=True)
    top = jnp.where(top == -jnp.inf, 0, top)
    loss = -(jnp.log(jnp.exp(final - top).sum(1)) + top[:, 0])
    return loss, jnp.swapaxes(alphas, 0, 1)


@lowers("aten::_ctc_loss_backward", "aten::_ctc_loss_backward.Tensor", runtime=("input_lengths", "target_lengths"))
def ctc_loss_backward(
    grad: Any,
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    loss: Any,
    log_alpha: Any,
    blank: int,
    zero_infinity: bool,
) -> Any:
    steps, batch, _ = log_probs.shape
    inputs, lengths = _lengths(input_lengths), _lengths(target_lengths)
    states = _states(targets, lengths, (log_alpha.shape[2] - 1) // 2, blank)
    emitted = _emitted(log_probs, states)
    skips = _shift((states != _shift(states, 2, blank)) & (states != blank), -2, False)
    place, last = jnp.arange(states.shape[1], dtype=jnp.int32), 2 * lengths[:, None]
    ends = (place == last) | (place == last - 1)

    def step(beta: Any, now: Any) -> tuple[Any, Any]:
        t, emitted = now
        hop = jnp.where(skips, _shift(beta, -2, -jnp.inf), -jnp.inf)
        new = _sum_exp(beta, _shift(beta, -1, -jnp.inf), hop)
        new = jnp.where(t == inputs[:, None] - 1, jnp.where(ends, 0.0, -jnp.inf), new)
        return new + emitted, new

    start = jnp.full(states.shape, -jnp.inf, log_probs.dtype)
    _, after = lax.scan(step, start, (jnp.arange(steps, dtype=jnp.int32), emitted), reverse=True)
    # The probability of being in each state at each step, given the labels.
    weight = jnp.exp(jnp.swapaxes(log_alpha, 0, 1) + after + loss[:, None])
    at = jnp.arange(steps, dtype=jnp.int32)[:, None, None], jnp.arange(batch, dtype=jnp.int32)[:, None], states
    share = jnp.zeros(log_probs.shape, weight.dtype).at[at].add(weight, mode="drop")
    value = (jnp.exp(log_probs) - share) * grad[:, None]
    running = at[0] < inputs[:, None]
    if zero_infinity:
        running = running & (loss != jnp.inf)[:, None]
    return jnp.where(running, value, 0).astype(log_probs.dtype)
