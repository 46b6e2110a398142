"""The formulas of the losses, over plain tensors: no networks and no samples in them.

A function of `x` and `y` compares n of one with m of the other and gives (..., n, m). What the
papers say, what their authors' code does and what is done here is written where they differ.
"""

from __future__ import annotations

import torch
from torch import Tensor

TINY = 1e-12  # added below roots, whose slope at 0 is not finite


def lengths(x: Tensor, y: Tensor, p: float = 2.0) -> Tensor:
    """Distances of points; their slope at 0 is taken as 0."""
    return torch.cdist(x, y, p=p, compute_mode="donot_use_mm_for_euclid_dist")


def angles(x: Tensor, y: Tensor) -> Tensor:
    """Angles of vectors, in [0, pi], with finite slopes everywhere.

    Kahan's formula, 2·atan2(|x/|x| - y/|y||, |x/|x| + y/|y||), is exact near both ends: no
    cosine close to 1 appears.
    """
    x = x / (x.square().sum(dim=-1, keepdim=True) + TINY).sqrt()
    y = y / (y.square().sum(dim=-1, keepdim=True) + TINY).sqrt()
    # Two vanishing vectors would leave both arguments 0, where atan2 has no slope.
    return 2.0 * torch.atan2(lengths(x, y) + TINY, lengths(x, -y) + TINY)


def reward_gaps(x: Tensor, y: Tensor) -> Tensor:
    """|r_i - r_j|; the authors of DBC soften it near 0 (smooth L1), their paper does not."""
    return (x[..., :, None] - y[..., None, :]).abs()


def gaussian_distances(x: tuple[Tensor, Tensor], y: tuple[Tensor, Tensor]) -> Tensor:
    """2-Wasserstein distances of Gaussians, given by means and standard deviations.

    For diagonal covariances sqrt(|mu_i - mu_j|² + |sigma_i - sigma_j|²), as DBC's paper has it.
    """
    return lengths(torch.cat(x, dim=-1), torch.cat(y, dim=-1))


def coordinate_distances(x: tuple[Tensor, Tensor], y: tuple[Tensor, Tensor]) -> Tensor:
    """The sum over coordinates k of sqrt((mu_ik - mu_jk)² + (sigma_ik - sigma_jk)²).

    The code of DBC's authors compares coordinate by coordinate, and adds the whole reward gap to
    each; here the gap is counted once, so that the sum is what L1 distances are fitted to.
    """
    moved = (x[0][..., :, None, :] - y[0][..., None, :, :]).square()
    moved = moved + (x[1][..., :, None, :] - y[1][..., None, :, :]).square()
    return moved.sqrt().sum(dim=-1)


def gaussian_surprise(points: Tensor, mean: Tensor, width: Tensor) -> Tensor:
    """-log N(point; mean, width²) of each coordinate, but for its constant."""
    return 0.5 * ((mean - points) / width).square() + width.log()


def mico_distances(x: Tensor, y: Tensor, beta: float) -> Tensor:
    """U = (|x|² + |y|²)/2 + beta·angle, of which only the angle vanishes for equal points."""
    norms = x.square().sum(dim=-1)[..., :, None] + y.square().sum(dim=-1)[..., None, :]
    return norms / 2.0 + beta * angles(x, y)


def cautious_squares(gap: Tensor, caution: float) -> Tensor:
    """gap², `caution` times as much where it is above 0."""
    return torch.where(gap.detach() > 0.0, caution, 1.0) * gap.square()


def same_actions(actions: Tensor, n: int) -> Tensor:
    """(n, rest) whether one of the first n samples and one of the rest took the same action."""
    return actions[:n, None] == actions[None, n:]


def mean_over(losses: Tensor, is_used: Tensor | None) -> Tensor:
    """The mean of the losses of the pairs that are used, 0 where there is none."""
    if is_used is None:
        return losses.mean()
    weight = is_used.to(losses.dtype)
    return (losses * weight).sum() / weight.sum().clamp(min=1.0)
