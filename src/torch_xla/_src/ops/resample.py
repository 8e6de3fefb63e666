"""Lowerings of interpolation: upsample_* in every mode, and grid_sampler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._src.ops import dtypes
from torch_xla._src.ops.registry import OutSpec, lowers
from torch_xla._src.ops.shape import replicate_edges, transpose_linear

# Note [Resampling is separable]
# Each spatial dimension is resampled on its own: output i is a weighted sum of a few inputs ("taps"). The positions and
# weights are known when the program is built, so numpy computes them, in the precision of PyTorch's kernels.

_SCALES = ("scales", "scales_d", "scales_h", "scales_w")
Taps = list[tuple[np.ndarray, np.ndarray]]  # (positions, weights) of each tap, one element for each output


def _scale(in_size: int, out_size: int, align_corners: bool, factor: float | None, dtype: Any) -> Any:
    """Input elements per output element."""
    if align_corners:
        return dtype(in_size - 1) / dtype(out_size - 1) if out_size > 1 else dtype(0)
    return dtype(1.0 / factor) if factor is not None and factor > 0 else dtype(in_size) / dtype(out_size)


# ---- taking elements at known positions


def _take(x: jax.Array, positions: np.ndarray, dim: int) -> jax.Array:
    """x at `positions` of `dim`: by slices where they form a pattern, else by a gather."""
    in_size, out_size = x.shape[dim], len(positions)
    step = int(positions[1] - positions[0]) if out_size > 1 else 1
    start = int(positions[0])
    if step > 0 and np.array_equal(positions, start + step * np.arange(out_size)):
        return lax.slice_in_dim(x, start, int(positions[-1]) + 1, step, dim)
    factor = out_size // in_size
    if out_size == factor * in_size and factor <= 8:
        phases = positions.reshape(in_size, factor)
        middle = in_size // 2
        shifts = [int(p) - middle for p in phases[middle]]
        shifted = np.clip(np.arange(in_size)[:, None] + np.array(shifts), 0, in_size - 1)
        if np.array_equal(phases, shifted):
            return _interleave(x, shifts, dim)
    return jnp.take(x, positions, axis=dim, mode="clip")


def _interleave(x: jax.Array, shifts: list[int], dim: int) -> jax.Array:
    """Output i * len(shifts) + p is the input at i + shifts[p], clamped to the edges."""
    size, before, after = x.shape[dim], max(0, -min(shifts)), max(0, max(shifts))
    padded = replicate_edges(x, dim, before, after)
    phases = [lax.slice_in_dim(padded, s + before, s + before + size, 1, dim) for s in shifts]
    return jnp.stack(phases, axis=dim + 1).reshape(*x.shape[:dim], size * len(shifts), *x.shape[dim + 1 :])


def _combine(x: jax.Array, taps: Taps, dim: int) -> jax.Array:
    """Weighted sum of the taps along `dim`."""
    shape = [1] * x.ndim
    shape[dim] = -1
    terms = [_take(x, positions, dim) * weights.reshape(shape).astype(x.dtype) for positions, weights in taps]
    return sum(terms[1:], terms[0])


# ---- the modes: taps of one dimension


def _nearest_positions(in_size: int, out_size: int, factor: float | None, exact: bool) -> np.ndarray:
    index = np.arange(out_size)
    if not exact and out_size in (in_size, 2 * in_size):
        return index * in_size // out_size
    scale = _scale(in_size, out_size, False, factor, np.float32)
    source = (index + 0.5) * scale if exact else index.astype(np.float32) * scale
    return np.minimum(np.floor(source.astype(np.float32)), in_size - 1).astype(np.int64)


def _linear_taps(in_size: int, out_size: int, align_corners: bool, factor: float | None, dtype: Any) -> Taps:
    if in_size == out_size:
        return [(np.arange(out_size), np.ones(out_size, dtype))]
    source = _source(in_size, out_size, align_corners, factor, dtype)
    source = np.maximum(source, dtype(0))
    low = np.minimum(np.floor(source).astype(np.int64), in_size - 1)
    weight = np.clip(source - low.astype(dtype), 0, 1).astype(dtype)
    return [(low, dtype(1) - weight), (np.minimum(low + 1, in_size - 1), weight)]


def _source(in_size: int, out_size: int, align_corners: bool, factor: float | None, dtype: Any) -> np.ndarray:
    scale, index = _scale(in_size, out_size, align_corners, factor, dtype), np.arange(out_size).astype(dtype)
    return scale * index if align_corners else scale * (index + dtype(0.5)) - dtype(0.5)


def _near(t: Any, a: float) -> Any:
    """Cubic convolution kernel at a distance of at most 1."""
    return ((a + 2) * t - (a + 3)) * t * t + 1


def _far(t: Any, a: float) -> Any:
    """Cubic convolution kernel at a distance of 1 to 2."""
    return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a


def _cubic_weights(t: Any) -> list[Any]:
    """Weights of the elements at -1, 0, 1, 2 for a point `t` past element 0 (PyTorch's kernel has a = -0.75)."""
    return [_far(t + 1, -0.75), _near(t, -0.75), _near(1 - t, -0.75), _far(2 - t, -0.75)]


def _cubic_taps(in_size: int, out_size: int, align_corners: bool, factor: float | None, dtype: Any) -> Taps:
    if in_size == out_size:
        return [(np.arange(out_size), np.ones(out_size, dtype))]
    source = _source(in_size, out_size, align_corners, factor, dtype)
    low = np.floor(source)
    weights = _cubic_weights((source - low).astype(dtype))
    return [(np.clip(low.astype(np.int64) + k - 1, 0, in_size - 1), w.astype(dtype)) for k, w in enumerate(weights)]


# ---- antialiasing: the filter widens with the scale, so a dimension is one product with a banded matrix


def _triangle(t: np.ndarray) -> np.ndarray:
    return np.maximum(0, 1 - np.abs(t))


def _cubic_filter(t: np.ndarray) -> np.ndarray:
    t = np.abs(t)
    return np.where(t < 1, _near(t, -0.5), np.where(t < 2, _far(t, -0.5), 0))


def _lanczos_filter(t: np.ndarray) -> np.ndarray:
    return np.where(np.abs(t) < 3, np.sinc(t) * np.sinc(t / 3), 0)


def _antialias_matrix(
    filter: Callable[[Any], Any], width: int, in_size: int, out_size: int, align: bool, factor: Any, dtype: Any
) -> np.ndarray:
    """(out_size, in_size) weights; rows add up to 1."""
    half = dtype(0.5)
    scale = _scale(in_size, out_size, align, factor, dtype)
    stretch = max(scale, dtype(1))
    center = scale * (np.arange(out_size).astype(dtype) + half)[:, None]
    reach = dtype(width / 2) * stretch
    first = np.maximum(np.trunc(center - reach + half), 0)
    last = np.minimum(np.trunc(center + reach + half), in_size)
    index = np.arange(in_size).astype(dtype)[None, :]
    weights = np.where((index >= first) & (index < last), filter((index - center + half) / stretch), dtype(0))
    total = weights.sum(axis=1, keepdims=True)
    return weights / np.where(total == 0, 1, total)


def _apply_matrix(x: jax.Array, matrix: np.ndarray, dim: int) -> jax.Array:
    product = jnp.tensordot(x, jnp.asarray(matrix, x.dtype), ((dim,), (1,)), precision=lax.Precision.HIGHEST)
    return jnp.moveaxis(product, -1, dim)


# ---- registration: `forward(x, out sizes, align_corners, scale factors)` of each mode


def _resize_nearest(exact: bool) -> Callable[..., jax.Array]:
    def forward(x: jax.Array, sizes: Sequence[int], _: bool, factors: Sequence[float | None]) -> jax.Array:
        for d, (size, factor) in enumerate(zip(sizes, factors), 2):
            x = _take(x, _nearest_positions(x.shape[d], size, factor, exact), d)
        return x

    return forward


def _separable(one_dim: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """A mode from its pass along one dimension. Computes in float32 at least; uint8 is rounded at each pass."""

    def forward(x: jax.Array, sizes: Sequence[int], align: bool, factors: Sequence[float | None]) -> jax.Array:
        integral = dtypes.is_integral(x)
        x = x.astype(np.float32 if integral else dtypes.opmath(x.dtype))
        # The last dimension first: it is the contiguous one, and the order in which PyTorch rounds.
        for d, (size, factor) in reversed(list(enumerate(zip(sizes, factors), 2))):
            x = one_dim(x, d, size, align, factor, np.dtype(x.dtype).type)
            x = jnp.clip(jnp.floor(x + 0.5), 0, 255) if integral else x
        return x

    return forward


def _resize_taps(make_taps: Callable[..., Taps]) -> Callable[..., jax.Array]:
    return _separable(lambda x, dim, size, *how: _combine(x, make_taps(x.shape[dim], size, *how), dim))


def _resize_antialiased(filter: Callable[[Any], Any], width: int) -> Callable[..., jax.Array]:
    def one_dim(x: jax.Array, dim: int, size: int, *how: Any) -> jax.Array:
        if size == x.shape[dim]:
            return x
        return _apply_matrix(x, _antialias_matrix(filter, width, x.shape[dim], size, *how), dim)

    return _separable(one_dim)


def _register(name: str, rank: int, forward: Callable[..., jax.Array], moves_only: bool) -> None:
    """Registers forward and backward; `moves_only`: nearest, which neither computes nor has align_corners."""
    first_scale = 0 if moves_only else 1
    names = ["scales"] if rank == 1 else ["scales_d", "scales_h", "scales_w"][-rank:]
    names = names if moves_only else ["align_corners", *names]

    def _positional(options: Sequence[Any], named: dict[str, Any]) -> list[Any]:
        return [*options, *(named.get(name) for name in names[len(options) :])]

    def run(x: jax.Array, sizes: Sequence[int], options: Sequence[Any]) -> jax.Array:
        align = False if moves_only else bool(options[0])
        factors = [*options[first_scale:], *[None] * rank][:rank]
        return forward(x, tuple(sizes), align, factors)

    @lowers(f"aten.{name}", specs=True, static=_SCALES)
    def resize(spec: OutSpec, x: jax.Array, output_size: Sequence[int], *options: Any, **named: Any) -> jax.Array:
        return run(x, spec.shape[2:], _positional(options, named))

    @lowers(f"aten.{name}.vec", specs=True)
    def resize_vec(spec: OutSpec, x: jax.Array, output_size: Any, *options: Any) -> jax.Array:
        *align, factors = options
        return run(x, spec.shape[2:], [*align, *(factors or [])])

    @lowers(f"aten.{name}_backward", static=_SCALES)
    def resize_backward(
        grad_output: jax.Array, output_size: Sequence[int], input_size: Sequence[int], *options: Any, **named: Any
    ) -> jax.Array:
        values = _positional(options, named)
        return transpose_linear(lambda x: run(x, output_size, values), input_size, grad_output)


for _rank in (1, 2, 3):
    _register(f"upsample_nearest{_rank}d", _rank, _resize_nearest(exact=False), True)
    _register(f"_upsample_nearest_exact{_rank}d", _rank, _resize_nearest(exact=True), True)
_register("upsample_linear1d", 1, _resize_taps(_linear_taps), False)
_register("upsample_bilinear2d", 2, _resize_taps(_linear_taps), False)
_register("upsample_trilinear3d", 3, _resize_taps(_linear_taps), False)
_register("upsample_bicubic2d", 2, _resize_taps(_cubic_taps), False)
_register("_upsample_bilinear2d_aa", 2, _resize_antialiased(_triangle, 2), False)
_register("_upsample_bicubic2d_aa", 2, _resize_antialiased(_cubic_filter, 4), False)
_register("_upsample_lanczos2d_aa", 2, _resize_antialiased(_lanczos_filter, 6), False)


# ---- grid_sampler: the positions are data
_BILINEAR, _NEAREST, _BICUBIC = 0, 1, 2
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2


def _unnormalize(coordinate: jax.Array, size: int, align_corners: bool) -> jax.Array:
    """From [-1, 1] to element positions."""
    return (coordinate + 1) / 2 * (size - 1) if align_corners else ((coordinate + 1) * size - 1) / 2


def _clamp(position: jax.Array, size: int) -> jax.Array:
    """Clamps to the image. Its derivative is 0 on the border itself, as PyTorch's (jnp.clip has 1/2 there)."""
    return jnp.where(position <= 0, 0, jnp.where(position >= size - 1, size - 1, position))


def _reflect(position: jax.Array, size: int, align_corners: bool) -> jax.Array:
    low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
    if span == 0:
        return jnp.zeros_like(position)
    distance = jnp.where(position < low, low - position, position - low)
    flips = lax.stop_gradient(jnp.floor(distance / span))
    rest = distance - flips * span
    return jnp.where(flips % 2 == 0, rest, span - rest) + low


def _pad_position(position: jax.Array, size: int, padding: int, align_corners: bool) -> jax.Array:
    if padding == _REFLECTION:
        position = _reflect(position, size, align_corners)
    return position if padding == _ZEROS else _clamp(position, size)


def _grid_taps(position: jax.Array, size: int, mode: int, padding: int, align: bool) -> list[tuple[Any, Any]]:
    """(element position, weight) of the taps of one dimension."""
    if mode == _BICUBIC:
        low = lax.stop_gradient(jnp.floor(position))
        taps = [_pad_position(low + k, size, padding, align) for k in (-1, 0, 1, 2)]
        return list(zip(taps, _cubic_weights(position - low)))
    position = _pad_position(position, size, padding, align)
    if mode == _NEAREST:
        return [(jnp.round(position), jnp.ones_like(position))]
    low = lax.stop_gradient(jnp.floor(position))
    weight = position - low
    return [(low, 1 - weight), (low + 1, weight)]


def _sample(flat: jax.Array, taps: Sequence[tuple[Any, Any]], sizes: Sequence[int]) -> jax.Array:
    """The term of the interpolation given by one tap for each dimension; zero outside of the image."""
    index, weight, inside = jnp.zeros_like(taps[0][0], np.int32), jnp.ones((), flat.dtype), jnp.ones((), bool)
    for (position, part), size in zip(taps, sizes):
        position, weight = lax.stop_gradient(position), weight * part
        inside = inside & (position >= 0) & (position < size)
        index = index * size + jnp.clip(position, 0, size - 1).astype(np.int32)
    weight = jnp.where(inside, weight, 0)
    values = jax.vmap(lambda image, at: jnp.take(image, at, axis=1, mode="clip"))(flat, index)  # (N, C, *out)
    return jnp.where(inside[:, None], values * weight[:, None], 0)


def _product(choices: list[list[tuple[Any, Any]]]) -> list[list[tuple[Any, Any]]]:
    combinations: list[list[tuple[Any, Any]]] = [[]]
    for taps in choices:
        combinations = [[*chosen, tap] for chosen in combinations for tap in taps]
    return combinations


@lowers("aten.grid_sampler_2d", "aten.grid_sampler_3d", "aten._grid_sampler_2d_cpu_fallback")
def grid_sampler(
    x: jax.Array, grid: jax.Array, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> jax.Array:
    """x (N, C, *in), grid (N, *out, dims) with the last dimension of the image first -> (N, C, *out)."""
    wide = dtypes.opmath(x.dtype)
    x, grid, sizes = x.astype(wide), grid.astype(wide), x.shape[2:]
    positions = [_unnormalize(grid[..., len(sizes) - 1 - d], n, align_corners) for d, n in enumerate(sizes)]
    choices = [_grid_taps(p, n, interpolation_mode, padding_mode, align_corners) for p, n in zip(positions, sizes)]
    flat = x.reshape(*x.shape[:2], -1)
    terms = [_sample(flat, taps, sizes) for taps in _product(choices)]
    return sum(terms[1:], terms[0])


@lowers("aten.grid_sampler_2d_backward", "aten.grid_sampler_3d_backward", "aten._grid_sampler_2d_cpu_fallback_backward")
def grid_sampler_backward(
    grad_output: jax.Array,
    x: jax.Array,
    grid: jax.Array,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool] = (True, True),
) -> tuple[jax.Array | None, jax.Array | None]:
    wide = dtypes.opmath(x.dtype)
    sample = lambda x, grid: grid_sampler(x, grid, interpolation_mode, padding_mode, align_corners)
    _, pull_back = jax.vjp(sample, x.astype(wide), grid.astype(wide))
    grad_x, grad_grid = pull_back(grad_output.astype(wide))
    return grad_x if output_mask[0] else None, grad_grid if output_mask[1] else None


# ---- affine grids


def _affine_base(size: Sequence[int], align_corners: bool, dtype: Any) -> jax.Array:
    """Homogeneous coordinates of the pixels, [*spatial, dims + 1], the last spatial dim first."""
    axes = []
    for n in size[2:]:
        line = jnp.linspace(-1, 1, n, dtype=dtype) if n > 1 else jnp.zeros(n, dtype)
        axes.append(line if align_corners else line * (n - 1) / n)
    grids = jnp.meshgrid(*axes, indexing="ij")
    return jnp.stack([*grids[::-1], jnp.ones_like(grids[0])], -1)


@lowers("aten.affine_grid_generator")
def affine_grid_generator(theta: jax.Array, size: Sequence[int], align_corners: bool) -> jax.Array:
    """Coordinates [batch, *spatial, dims] of an affine map [batch, dims, dims + 1]."""
    return jnp.einsum("...k,bjk->b...j", _affine_base(size, align_corners, theta.dtype), theta)


@lowers("aten.affine_grid_generator_backward")
def affine_grid_generator_backward(grad: jax.Array, size: Sequence[int], align_corners: bool) -> jax.Array:
    base = _affine_base(size, align_corners, grad.dtype).reshape(-1, len(size) - 1)
    return jnp.einsum("bpj,pk->bjk", grad.reshape(grad.shape[0], -1, grad.shape[-1]), base)
