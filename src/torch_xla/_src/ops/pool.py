"""Pooling over trailing dims: maximum with indices, average, adaptive, fractional, and their gradients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._src.ops import dtypes
from torch_xla._src.ops.registry import lowers

# Note [Windows]
# A window of few elements is unrolled: one strided slice for each position in the window, which XLA fuses into a single
# loop. Larger windows are reduced over dims of their own where they do not overlap, and go through reduce_window where
# they do. Backward, each element looks at the few windows that it can be in: that takes no scatter, which on CPU is a
# loop of its own, and no dilated gradient. Where it can be in many, a scatter is the lesser evil.
_UNROLLED = 32  # elements of a window
_TILE = 8  # elements of a window that does not overlap others, from which a reduction is faster than slices
_COVERING = 16  # windows that an element can be in
_SLICED = 64  # windows of different sizes, from which a program with one reduction for each gets too long

# Note [Maximum of a window]
# As in the CPU kernels: the first of equal maxima wins, but the last NaN of the window beats everything. A window of
# nothing but -inf gives its first element that is not padding.


@dataclass(frozen=True)
class Windows:
    """Equal windows that slide over the trailing dims of an array; every field but `size` has one entry a dim."""

    size: tuple[int, ...]  # of the input
    out: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.kernel)

    @property
    def ends(self) -> list[int]:
        """Padding (negative: rows left out) at the far end of each dim, so that `out` windows fit exactly."""
        spans = [s * (o - 1) + d * (k - 1) + 1 for s, o, d, k in zip(self.stride, self.out, self.dilation, self.kernel)]
        return [span - p - n for span, p, n in zip(spans, self.padding, self.size)]

    def offsets(self) -> Iterator[tuple[int, ...]]:
        """Positions within the window, in the order of memory."""
        return iter(np.ndindex(*self.kernel))

    def padded(self, x: jax.Array, value: Any) -> jax.Array:
        config = [(0, 0, 0)] * (x.ndim - len(self.size))
        config += [(p, e, 0) for p, e in zip(self.padding, self.ends)]
        return lax.pad(x, jnp.asarray(value, x.dtype), config)

    def slice(self, padded: jax.Array, offset: Sequence[int]) -> jax.Array:
        """The element at `offset` of every window."""
        lead = padded.ndim - len(offset)
        start = [0] * lead + [o * d for o, d in zip(offset, self.dilation)]
        span = [s * (o - 1) + 1 for s, o in zip(self.stride, self.out)]
        stop = [*padded.shape[:lead], *(a + n for a, n in zip(start[lead:], span))]
        return lax.slice(padded, start, stop, [1] * lead + list(self.stride))

    def spread(self, g: jax.Array, offset: Sequence[int]) -> jax.Array:
        """Transpose of `padded` and `slice`: puts the element of every window at its place in the input."""
        config = [(0, 0, 0)] * (g.ndim - len(offset))
        for o, d, p, s, n, size in zip(offset, self.dilation, self.padding, self.stride, self.out, self.size):
            low = o * d - p
            config.append((low, size - low - (s * (n - 1) + 1), s - 1))
        return lax.pad(g, jnp.zeros((), g.dtype), config)

    @property
    def tiled(self) -> bool:
        """Whether the windows neither overlap nor leave gaps, but for rows left over at the far ends."""
        return (
            self.kernel == self.stride
            and not any(self.padding)
            and all(e <= 0 for e in self.ends)
            and (all(d == 1 or k == 1 for d, k in zip(self.dilation, self.kernel)))
        )

    @property
    def covering(self) -> list[int]:
        """Along each dim, how many windows an element can be in."""
        return [-(-(d * (k - 1) + 1) // s) for d, k, s in zip(self.dilation, self.kernel, self.stride)]

    def positions(self, offsets: Sequence[Any]) -> jax.Array:
        """Index in the flattened trailing dims of the elements at `offsets` (one number or array a dim)."""
        total: Any = 0
        for i, (s, p, d, n) in enumerate(zip(self.stride, self.padding, self.dilation, self.size)):
            rows = lax.broadcasted_iota(jnp.int32, self.out, i) * s - p
            total = total * n + rows + offsets[i] * d
        return total


def _windows(x: Any, out: Sequence[int], kernel: Any, stride: Any, padding: Any, dilation: Any, count: int) -> Windows:
    kernel, padding, dilation = (_per_dim(v, count) for v in (kernel, padding, dilation))
    stride = _per_dim(stride, count) if stride else kernel
    return Windows(tuple(x.shape[-count:]), tuple(out[-count:]), kernel, stride, padding, dilation)


def _per_dim(values: Any, count: int) -> tuple[int, ...]:
    values = (values,) if isinstance(values, int) else tuple(values)
    return values * count if len(values) == 1 else values


def _lowest(dtype: Any) -> Any:
    return -np.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min


def _isnan(x: jax.Array) -> jax.Array:
    return x != x


# ---------------------------------------------------------------------------------------------------------------------
# Maximum


def _max_pool(x: jax.Array, windows: Windows) -> tuple[jax.Array, jax.Array]:
    """Maximum of every window and its index. See Note [Maximum of a window]."""
    if 0 in x.shape or 0 in windows.out:
        shape = (*x.shape[: x.ndim - len(windows.out)], *windows.out)
        return jnp.zeros(shape, x.dtype), jnp.zeros(shape, jnp.int64)
    if windows.tiled and windows.elements > _TILE:
        return _max_of_tiles(x, windows)
    return (_max_unrolled if windows.elements <= _UNROLLED else _max_reduced)(x, windows)


def _max_of_tiles(x: jax.Array, windows: Windows) -> tuple[jax.Array, jax.Array]:
    lead, count = x.ndim - len(windows.out), len(windows.out)
    limits = [o * k for o, k in zip(windows.out, windows.kernel)]
    split = [n for pair in zip(windows.out, windows.kernel) for n in pair]
    inner = tuple(range(1, 2 * count, 2))
    index = _indices(windows.size)[tuple(slice(n) for n in limits)].reshape(split)
    values = lax.slice(x, [0] * x.ndim, [*x.shape[:lead], *limits]).reshape(*x.shape[:lead], *split)
    return _max_and_index(values, index, tuple(lead + i for i in inner))


def _indices(sizes: Sequence[int]) -> jax.Array:
    """The index of each element in the flattened dims of these sizes."""
    return lax.iota(jnp.int32, math.prod(sizes)).reshape(tuple(sizes))


def _max_and_index(values: jax.Array, index: jax.Array, axes: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Maximum over `axes`, and the `index` (which may lack leading dims) of it. See Note [Maximum of a window]."""
    best = jnp.max(values, axes)
    # Broadcast in one step: through a reshape XLA on CPU would fuse, and compute the maximum again for each element.
    kept = [d for d in range(values.ndim) if d not in axes]
    everywhere = lax.broadcast_in_dim(best, values.shape, kept)
    # A NaN counts from below, so that the last of them is the least; where one is, nothing equals the maximum.
    key = jnp.where(values == everywhere, index, jnp.where(_isnan(values), -1 - index, np.iinfo(np.int32).max))
    chosen = jnp.min(key, axes)
    return best, jnp.where(chosen < 0, -1 - chosen, chosen)


def _max_unrolled(x: jax.Array, windows: Windows) -> tuple[jax.Array, jax.Array]:
    padded = windows.padded(x, _lowest(x.dtype))
    shape = (*x.shape[: x.ndim - len(windows.out)], *windows.out)
    best = jnp.full(shape, _lowest(x.dtype), x.dtype)
    firsts = [_first_rows(windows, i) for i in range(len(windows.out))]
    chosen: list[Any] = [jnp.broadcast_to(first, shape) for first in firsts]
    for offset in windows.offsets():
        value = windows.slice(padded, offset)
        better = (value > best) | _isnan(value)
        best = jnp.where(better, value, best)
        chosen = [jnp.where(better, jnp.int32(o), c) for o, c in zip(offset, chosen)]
    return best, windows.positions(chosen)


def _first_rows(windows: Windows, i: int) -> jax.Array:
    """Along dim `i`, the first offset in each window that is not padding."""
    rows = np.arange(windows.out[i]) * windows.stride[i] - windows.padding[i]
    first = np.maximum(0, -(rows // windows.dilation[i])).astype(np.int32)
    return jnp.asarray(first.reshape([-1 if j == i else 1 for j in range(len(windows.out))]))


def _max_reduced(x: jax.Array, windows: Windows) -> tuple[jax.Array, jax.Array]:
    lead = x.ndim - len(windows.size)
    index = jnp.broadcast_to(_indices(windows.size), x.shape)
    return lax.reduce_window(
        (x, index),
        (jnp.asarray(_lowest(x.dtype), x.dtype), jnp.int32(np.iinfo(np.int32).max)),
        _larger,
        (1,) * lead + windows.kernel,
        (1,) * lead + windows.stride,
        [(0, 0)] * lead + list(zip(windows.padding, windows.ends)),
        window_dilation=(1,) * lead + windows.dilation,
    )


def _larger(a: tuple[Any, Any], b: tuple[Any, Any]) -> tuple[Any, Any]:
    """The (value, index) that wins; commutative and associative, in whatever order XLA reduces."""
    (x, i), (y, j) = a, b
    x_nan, y_nan = _isnan(x), _isnan(y)
    tie = jnp.where(x_nan, j > i, j < i)
    take = jnp.where(x_nan == y_nan, (y > x) | (((x == y) | x_nan) & tie), y_nan)
    return jnp.where(take, y, x), jnp.where(take, j, i)


def _max_pool_gradient(g: jax.Array, x: jax.Array, indices: jax.Array, windows: Windows) -> jax.Array:
    if 0 in g.shape or math.prod(windows.covering) > _COVERING:
        return _scatter_gradient(g, x.shape, indices, len(windows.size))
    g, indices = g.astype(dtypes.opmath(g.dtype)), indices.astype(jnp.int32)
    lead = x.ndim - len(windows.size)
    # With the padding each dim is `steps` times `stride` long, and an element of step i is in windows i, i - 1, ...
    steps = [-(-(n + p) // s) for n, p, s in zip(windows.size, windows.padding, windows.stride)]
    margin = [(0, 0, 0)] * lead
    margin += [(c - 1, max(n - o, 0), 0) for c, n, o in zip(windows.covering, steps, windows.out)]
    g = lax.pad(g, jnp.zeros((), g.dtype), margin)
    indices = lax.pad(indices, jnp.int32(-1), margin)
    split = [n for pair in zip(steps, windows.stride) for n in pair]
    position: Any = 0
    for i, (n, p) in enumerate(zip(windows.size, windows.padding)):
        place = lax.broadcasted_iota(jnp.int32, split, 2 * i) * windows.stride[i]
        position = position * n + place + lax.broadcasted_iota(jnp.int32, split, 2 * i + 1) - p
    total: Any = jnp.zeros((), g.dtype)
    for back in np.ndindex(*windows.covering):
        start = [0] * lead + [c - 1 - b for c, b in zip(windows.covering, back)]
        part = [
            lax.slice(t, start, [*x.shape[:lead], *(a + n for a, n in zip(start[lead:], steps))]) for t in (g, indices)
        ]
        g_of, chosen = (jnp.expand_dims(t, range(lead + 1, lead + 2 * len(steps), 2)) for t in part)
        total = total + jnp.where(chosen == position, g_of, jnp.zeros((), g.dtype))
    total = total.reshape(*x.shape[:lead], *(n * s for n, s in zip(steps, windows.stride)))
    start = [0] * lead + list(windows.padding)
    return lax.slice(total, start, [a + n for a, n in zip(start, x.shape)])


def _scatter_gradient(g: jax.Array, shape: tuple[int, ...], indices: jax.Array, count: int) -> jax.Array:
    """Adds each gradient to the element, of the last `count` dims, that its index names."""
    g = g.astype(dtypes.opmath(g.dtype))
    flat_g, flat_i = (_flatten(t, count) for t in (g, indices))
    zeros = jnp.zeros((flat_g.shape[0], math.prod(shape[-count:])), g.dtype)
    return zeros.at[_rows(flat_i), flat_i].add(flat_g).reshape(shape)


def _flatten(x: jax.Array, count: int) -> jax.Array:
    """[..., trailing dims] to [rows, elements]."""
    return x.reshape(math.prod(x.shape[: x.ndim - count]), math.prod(x.shape[x.ndim - count :]))


def _rows(flat: jax.Array) -> jax.Array:
    return jnp.arange(flat.shape[0])[:, None]


def _register_max_pool(count: int) -> None:
    @lowers(f"aten.max_pool{count}d_with_indices", specs=True)
    def forward(
        specs: Any, self: Any, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> tuple[Any, Any]:  # fmt: skip
        return _max_pool(self, _windows(self, specs[0].shape, kernel_size, stride, padding, dilation, count))

    @lowers(f"aten.max_pool{count}d_with_indices_backward")
    def backward(
        grad_output: Any, self: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool,
        indices: Any,
    ) -> Any:  # fmt: skip
        windows = _windows(self, grad_output.shape, kernel_size, stride, padding, dilation, count)
        return _max_pool_gradient(grad_output, self, indices, windows)


# ---------------------------------------------------------------------------------------------------------------------
# Average


def _window_sum(x: jax.Array, windows: Windows) -> jax.Array:
    lead = x.ndim - len(windows.size)
    return lax.reduce_window(
        x,
        jnp.zeros((), x.dtype),
        lax.add,
        (1,) * lead + windows.kernel,
        (1,) * lead + windows.stride,
        [(0, 0)] * lead + list(zip(windows.padding, windows.ends)),
    )


def _divisor(windows: Windows, include_pad: bool, override: int | None, dtype: Any) -> jax.Array:
    """What the sum of each window is divided by, shaped to broadcast; the padding that ceil_mode adds never counts."""
    if override is not None:
        return jnp.asarray(override, dtype)
    divisor = jnp.ones((), dtype)
    for i, size in enumerate(windows.size):
        padding = windows.padding[i]
        start = np.arange(windows.out[i]) * windows.stride[i] - padding
        stop = np.minimum(start + windows.kernel[i], size + padding)
        if not include_pad:
            start, stop = np.maximum(start, 0), np.minimum(stop, size)
        counts = np.broadcast_to(stop - start, windows.out[i])
        counts = counts[:1] if counts.size and (counts == counts[0]).all() else counts
        divisor = divisor * counts.astype(dtype).reshape([-1 if j == i else 1 for j in range(len(windows.size))])
    return divisor


def _divide(total: jax.Array, divisor: jax.Array) -> jax.Array:
    return (
        total / divisor if jnp.issubdtype(total.dtype, jnp.inexact) else lax.div(*jnp.broadcast_arrays(total, divisor))
    )


def _register_avg_pool(count: int) -> None:
    @lowers(f"aten.avg_pool{count}d", specs=True)
    def forward(
        spec: Any, self: Any, kernel_size: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Any:  # fmt: skip
        x = self.astype(dtypes.opmath(self.dtype))
        windows = _windows(x, spec.shape, kernel_size, stride, padding, 1, count)
        if 0 in spec.shape:
            return jnp.zeros(spec.shape, x.dtype)
        return _divide(_window_sum(x, windows), _divisor(windows, count_include_pad, divisor_override, x.dtype))

    @lowers(f"aten.avg_pool{count}d_backward")
    def backward(
        grad_output: Any, self: Any, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool,
        count_include_pad: bool, divisor_override: int | None,
    ) -> Any:  # fmt: skip
        g = grad_output.astype(dtypes.opmath(grad_output.dtype))
        windows = _windows(self, g.shape, kernel_size, stride, padding, 1, count)
        if 0 in g.shape:
            return jnp.zeros(self.shape, g.dtype)
        shared = _divide(g, _divisor(windows, count_include_pad, divisor_override, g.dtype))
        return _window_sum_gradient(shared, windows)


def _window_sum_gradient(g: jax.Array, windows: Windows) -> jax.Array:
    """Each element of the input takes the gradient of every window it was in: a sum over the spread-out gradient."""
    config = [(0, 0, 0)] * (g.ndim - len(windows.size))
    for k, s, p, n, size in zip(windows.kernel, windows.stride, windows.padding, windows.out, windows.size):
        low = k - 1 - p
        config.append((low, size - low + k - 1 - (s * (n - 1) + 1), s - 1))
    lead = g.ndim - len(windows.size)
    spread = lax.pad(g, jnp.zeros((), g.dtype), config)
    ones = (1,) * g.ndim
    return lax.reduce_window(spread, jnp.zeros((), g.dtype), lax.add, ones[:lead] + windows.kernel, ones, "VALID")


# ---------------------------------------------------------------------------------------------------------------------
# Adaptive: window i of n covers [floor(i * size / n), ceil((i + 1) * size / n))


def _adaptive_bounds(size: int, out: int) -> tuple[np.ndarray, np.ndarray]:
    i = np.arange(out)
    return i * size // out, -(-((i + 1) * size) // out)


def _adaptive_rows(size: int, out: int) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers [out, longest window] and which of them are within the window."""
    start, stop = _adaptive_bounds(size, out)
    rows = start[:, None] + np.arange((stop - start).max(initial=1))
    return np.minimum(rows, size - 1), rows < stop[:, None]


def _adaptive_sum(x: jax.Array, axis: int, out: int) -> jax.Array:
    """Sums of the adaptive windows along one dim."""
    size = x.shape[axis]
    if size % out == 0:
        return jnp.sum(x.reshape(*x.shape[:axis], out, size // out, *x.shape[axis + 1 :]), axis + 1)
    if out % size == 0:
        return jnp.repeat(x, out // size, axis)
    rows, inside = _adaptive_rows(size, out)
    inside = inside.reshape([-1 if i == 0 else inside.shape[1] if i == 1 else 1 for i in range(x.ndim - axis + 1)])
    return jnp.sum(jnp.where(inside, jnp.take(x, rows, axis), jnp.zeros((), x.dtype)), axis + 1)


def _each_dim(x: jax.Array, outs: Sequence[int], step: Callable[[jax.Array, int, int], jax.Array]) -> jax.Array:
    lead = x.ndim - len(outs)
    for i, out in enumerate(outs):
        x = step(x, lead + i, out)
    return x


def _adaptive_counts(sizes: Sequence[int], outs: Sequence[int], dtype: Any) -> jax.Array:
    """Elements of each window, shaped to broadcast."""
    total = jnp.ones((), dtype)
    for i, (size, out) in enumerate(zip(sizes, outs)):
        start, stop = _adaptive_bounds(size, out)
        counts = (stop - start)[:1] if size % out == 0 else stop - start
        total = total * counts.astype(dtype).reshape([-1 if j == i else 1 for j in range(len(outs))])
    return total


def _register_adaptive_avg_pool(count: int) -> None:
    @lowers(f"aten._adaptive_avg_pool{count}d", specs=True)
    def forward(spec: Any, self: Any, output_size: Any) -> Any:
        x, outs = self.astype(dtypes.opmath(self.dtype)), spec.shape[-count:]
        if 0 in spec.shape:
            return jnp.zeros(spec.shape, x.dtype)
        return _divide(_each_dim(x, outs, _adaptive_sum), _adaptive_counts(x.shape[-count:], outs, x.dtype))

    @lowers(f"aten._adaptive_avg_pool{count}d_backward")
    def backward(grad_output: Any, self: Any) -> Any:
        g, sizes = grad_output.astype(dtypes.opmath(grad_output.dtype)), self.shape[-count:]
        if 0 in g.shape:
            return jnp.zeros(self.shape, g.dtype)
        # Windows that contain a given element are themselves the adaptive windows from `out` to `size`.
        return _each_dim(g / _adaptive_counts(sizes, g.shape[-count:], g.dtype), sizes, _adaptive_sum)


def _adaptive_max(x: jax.Array, outs: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    sizes = x.shape[-len(outs) :]
    if 0 in x.shape or 0 in outs:
        shape = (*x.shape[: -len(outs)], *outs)
        return jnp.zeros(shape, x.dtype), jnp.zeros(shape, jnp.int64)
    if all(n % o == 0 for n, o in zip(sizes, outs)):
        return _max_pool(x, _even_windows(sizes, outs))
    if math.prod(outs) <= _SLICED:
        return _max_of_slices(x, outs)
    index = _indices(sizes)
    for axis in range(-1, -1 - len(outs), -1):  # the last dim first: the first of equal maxima is then that in memory
        x, index = _adaptive_max_along(x, index, axis, outs[axis])
    return x, index


def _even_windows(sizes: tuple[int, ...], outs: tuple[int, ...]) -> Windows:
    kernel = tuple(n // o for n, o in zip(sizes, outs))
    return Windows(sizes, outs, kernel, kernel, (0,) * len(outs), (1,) * len(outs))


def _max_of_slices(x: jax.Array, outs: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """A reduction for each window."""
    lead, count = x.ndim - len(outs), len(outs)
    index = _indices(x.shape[lead:])
    bounds = [list(zip(*_adaptive_bounds(n, o))) for n, o in zip(x.shape[lead:], outs)]
    results = []
    for window in itertools.product(*bounds):
        inside = tuple(slice(int(start), int(stop)) for start, stop in window)
        axes = tuple(range(lead, lead + count))
        results.append(_max_and_index(x[(..., *inside)], index[inside], axes))
    best, chosen = (jnp.stack(parts, -1).reshape(*x.shape[:lead], *outs) for parts in zip(*results))
    return best, chosen


def _adaptive_max_along(x: jax.Array, index: jax.Array, axis: int, out: int) -> tuple[jax.Array, jax.Array]:
    """Maxima of the adaptive windows along one dim, and the `index` of each; `index` lacks the leading dims at first."""
    start, stop = _adaptive_bounds(x.shape[axis], out)
    longest = int((stop - start).max())
    # Past the end of a window stands its last row again, which changes nothing.
    rows = [np.minimum(start + offset, stop - 1) for offset in range(longest)]
    if longest > _UNROLLED:
        index = jnp.broadcast_to(index, x.shape)
        gathered = tuple(jnp.take(a, np.stack(rows), axis) for a in (x, index))
        initial = jnp.asarray(_lowest(x.dtype), x.dtype), jnp.int32(np.iinfo(np.int32).max)
        best, chosen = lax.reduce(gathered, initial, _larger, (x.ndim + axis,))
        return best, chosen
    best, chosen = (jnp.take(a, rows[0], axis) for a in (x, index))
    for later in rows[1:]:
        value = jnp.take(x, later, axis)
        better = (value > best) | _isnan(value)
        best, chosen = jnp.where(better, value, best), jnp.where(better, jnp.take(index, later, axis), chosen)
    return best, chosen


def _winner(values: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Maximum along the last dim and its position. See Note [Maximum of a window]."""
    nan, size = _isnan(values), values.shape[-1]
    last_nan = size - 1 - jnp.argmax(nan[..., ::-1], -1)
    where = jnp.where(nan.any(-1), last_nan, jnp.argmax(values, -1))
    return jnp.take_along_axis(values, where[..., None], -1)[..., 0], where


def _register_adaptive_max_pool(count: int) -> None:
    @lowers(f"aten.adaptive_max_pool{count}d", specs=True)
    def forward(specs: Any, self: Any, output_size: Any) -> tuple[Any, Any]:
        return _adaptive_max(self, specs[0].shape[-count:])

    @lowers(f"aten.adaptive_max_pool{count}d_backward")
    def backward(grad_output: Any, self: Any, indices: Any) -> Any:
        sizes, outs = self.shape[-count:], grad_output.shape[-count:]
        if 0 not in grad_output.shape and all(n % o == 0 for n, o in zip(sizes, outs)):
            return _max_pool_gradient(grad_output, self, indices, _even_windows(sizes, outs))
        return _scatter_gradient(grad_output, self.shape, indices, count)


# ---------------------------------------------------------------------------------------------------------------------
# Fractional pooling (windows placed by random samples) and unpooling


def _fractional_starts(samples: jax.Array, size: int, kernel: int, out: int) -> jax.Array:
    """First row of each of `out` windows; `samples` [...] gives one number for each."""
    last = size - kernel
    if out == 1:
        return jnp.full((*samples.shape, 1), last, jnp.int32)
    alpha = jnp.asarray(last / (out - 1), samples.dtype)
    i = jnp.arange(out, dtype=samples.dtype)
    starts = ((i + samples[..., None]) * alpha).astype(jnp.int32) - (samples[..., None] * alpha).astype(jnp.int32)
    return starts.at[..., -1].set(last)


def _fractional_max(x: jax.Array, kernel: Any, outs: Any, samples: jax.Array, count: int) -> tuple[Any, Any]:
    kernel, outs = _per_dim(kernel, count), _per_dim(outs, count)
    flat = _flatten(x, count)
    # In two dims the samples come as (width, height), in three as (time, height, width).
    order = (1, 0) if count == 2 else tuple(range(count))
    samples = samples.reshape(-1, count).astype(dtypes.opmath(samples.dtype))
    index: Any = jnp.int32(0)
    for i, (k, out, size) in enumerate(zip(kernel, outs, x.shape[-count:])):
        starts = _fractional_starts(samples[:, order[i]], size, k, out)
        place, window = [len(samples)] + [1] * (2 * count), [1] * (2 * count + 1)
        place[1 + i], window[1 + count + i] = out, k
        index = index * size + starts.reshape(place) + jnp.arange(k, dtype=jnp.int32).reshape(window)
    index = index.reshape(flat.shape[0], *outs, -1)
    values = jnp.take_along_axis(flat, index.reshape(flat.shape[0], -1), 1).reshape(index.shape)
    best, where = _winner(values)
    chosen = jnp.take_along_axis(index, where[..., None], -1)[..., 0]
    shape = (*x.shape[: x.ndim - count], *outs)
    return best.reshape(shape), chosen.reshape(shape)


def _register_fractional(count: int) -> None:
    @lowers(f"aten.fractional_max_pool{count}d")
    def forward(self: Any, kernel_size: Any, output_size: Any, random_samples: Any) -> tuple[Any, Any]:
        return _fractional_max(self, kernel_size, output_size, random_samples, count)

    @lowers(f"aten.fractional_max_pool{count}d_backward")
    def backward(grad_output: Any, self: Any, kernel_size: Any, output_size: Any, indices: Any) -> Any:
        return _scatter_gradient(grad_output, self.shape, indices, count)


def _register_unpool(count: int) -> None:
    @lowers(f"aten.max_unpool{count}d", specs=True)
    def unpool(spec: Any, self: Any, indices: Any, output_size: Any, stride: Any = (), padding: Any = ()) -> Any:
        values, index = _flatten(self, count), _flatten(indices, count)
        zeros = jnp.zeros((values.shape[0], math.prod(spec.shape[-count:])), self.dtype)
        return zeros.at[_rows(index), index].set(values).reshape(spec.shape)


for _count in (2, 3):
    _register_max_pool(_count)
    _register_avg_pool(_count)
    _register_adaptive_avg_pool(_count)
    _register_adaptive_max_pool(_count)
    _register_fractional(_count)
    _register_unpool(_count)
