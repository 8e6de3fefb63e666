"""What a random program is, and how one runs: instructions over a pool of tensors that share storages in any way.

An instruction is a name and some small numbers. The numbers choose among what the pool offers when the instruction
runs (which tensor, which dimension), so that any sequence of instructions is a program, and hypothesis can shrink one.
"""

from __future__ import annotations

import copy
import io
import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

import torch_xla

Instruction = tuple[str, tuple[int, ...]]
NUMBERS = 6  # of each instruction
_POOL = 7  # tensors at most; a new one takes the place of the oldest

RUN: dict[str, Callable[..., Any]] = {}


def instruction(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Adds an instruction: a function of the machine and numbers. It returns tensors that join the pool, or None."""
    RUN[fn.__name__.rstrip("_")] = fn
    return fn


# What device xla (or the CPU) refuses by design, by a part of the message: a program that does it proves nothing.
REFUSED = {
    "Trying to resize storage that is not resizable": "the memory of a tensor that the CPU has loaded from a file",
    "cannot make a storage larger that another tensor shares": "the storage of a functional tensor has a fixed size",
}


class Refused(Exception):
    """The program does what device xla refuses."""


class Machine:
    """A pool of tensors on one device. `log` holds what was observed."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.log: list[Any] = []
        self.moved: list[torch.Tensor] = []  # to another storage or shape
        self.leaf = self.tensor(torch.arange(12.0, dtype=torch.float64).view(3, 4)).requires_grad_()
        self.pool: list[torch.Tensor] = [self.tensor(torch.arange(1.0, 7.0, dtype=torch.float64).view(2, 3))]

    def tensor(self, host: torch.Tensor) -> torch.Tensor:
        return host.clone().to(self.device)

    def __getitem__(self, number: int) -> torch.Tensor:
        return self.pool[number % len(self.pool)]

    def push(self, result: Any) -> None:
        if isinstance(result, torch.Tensor) and not any(result is t for t in self.pool):
            self.pool = [*self.pool, result][-_POOL:]

    def has_views(self, t: torch.Tensor) -> bool:
        return any(u._base is t for u in self.pool)

    def may_move(self, t: torch.Tensor) -> bool:
        """Whether a tensor may take another storage or shape: autograd replays views, on every device but CPU."""
        if t.requires_grad and (t._is_view() or self.has_views(t)):
            return False
        self.moved.append(t)
        return True

    def run(self, name: str, numbers: Sequence[int]) -> None:
        """Runs one instruction; an exception is part of the log."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.push(RUN[name](self, *numbers[: RUN[name].__code__.co_argcount - 1]))
        except Exception as error:
            if any(text in str(error) for text in REFUSED):
                raise Refused from error
            self.log.append((name, type(error).__name__))

    def observe(self) -> None:
        """Adds all that can be seen of the pool to the log."""
        self.log.append(("leaf", *_seen(self.leaf), _seen(self.leaf.grad)))
        for t in self.pool:
            # Nothing can be written through a tensor without elements: whether it shares a storage means nothing.
            sharing = [j for j, u in enumerate(self.pool) if t is u or (t.numel() and u.numel() and _shares(t, u))]
            self.log.append((sharing, *_seen(t)))


def _seen(t: torch.Tensor | None) -> tuple[Any, ...]:
    """What can be seen of a tensor; for what cannot, the exception that says so."""
    if t is None:
        return ()
    return tuple(_attempt(look, t) for look in _LOOKS)


def _attempt(look: Callable[[torch.Tensor], Any], t: torch.Tensor) -> Any:
    try:
        with torch.no_grad():  # a view of several that was written to is read, but has no history to look at
            return look(t)
    except Exception as error:
        return type(error).__name__


_LOOKS: tuple[Callable[[torch.Tensor], Any], ...] = (
    lambda t: (tuple(t.shape), t.storage_offset(), t.is_contiguous(), str(t.dtype)),
    lambda t: [s for s, n in zip(t.stride(), t.shape) if n > 1 and t.numel()],  # other strides mean nothing
    lambda t: (t._version, t.requires_grad),
    lambda t: (t.is_leaf, t._is_view()),
    lambda t: t.tolist(),
)


def run(device: str, program: Sequence[Instruction]) -> list[Any]:
    """The log of a program on a device."""
    machine = Machine(device)
    for name, numbers in program:
        machine.run(name, numbers)
    machine.observe()
    return machine.log


def _shares(t: torch.Tensor, u: torch.Tensor) -> bool:
    return t.untyped_storage()._cdata == u.untyped_storage()._cdata


def _positions(shape: Sequence[int], strides: Sequence[int], offset: int) -> list[int]:
    """Where in their storage the elements of a tensor lie, in the order of the tensor."""
    steps = itertools.product(*[range(0, n * s, s) if s else [0] * n for n, s in zip(shape, strides)])
    return [offset + sum(step) for step in steps]


def _of(t: torch.Tensor) -> list[int]:
    return _positions(t.shape, t.stride(), t.storage_offset())


def _repeats_unseen(t: torch.Tensor) -> bool:
    """Whether elements of a tensor lie at the same place and PyTorch does not see it, because no stride is 0.

    An op that reads what it writes, or writes different numbers, then depends on how often and in which order it does.
    """
    return all(s or n == 1 for s, n in zip(t.stride(), t.shape)) and len({*_of(t)}) < t.numel()


def _overlap_unseen(target: torch.Tensor, t: torch.Tensor) -> bool:
    """Whether two tensors overlap and PyTorch does not see it, because one has gaps or repeats elements."""
    seen = all(map(torch._prims_common.is_non_overlapping_and_dense, (target, t)))
    return not seen and _shares(target, t) and not {*_of(target)}.isdisjoint(_of(t))


def _is_unordered(target: torch.Tensor, source: torch.Tensor, shape: Sequence[int] | None = None) -> bool:
    """Whether an element-wise op reads elements after it has written to them, and PyTorch does not see that.

    What the CPU computes then depends on the order in which its kernel visits elements: it means nothing.
    shape: what `target` is resized to.
    """
    if shape is None or shape == target.shape:
        if not _overlap_unseen(target, source):
            return False
        shape, strides = target.shape, target.stride()
    elif not _shares(target, source):
        return False
    else:
        strides = torch.empty(shape, device="meta").stride()
    written = {p: i for i, p in enumerate(_positions(shape, strides, target.storage_offset()))}
    try:
        return any(written.get(p, i) != i for i, p in enumerate(_of(source.detach().expand(shape))))
    except RuntimeError:  # it does not fit, unless it is to lose dimensions of size 1
        return True


def _dim(t: torch.Tensor, number: int) -> int:
    return number % t.ndim if t.ndim else 0


# ---- views ----------------------------------------------------------------------------------------------------------


@instruction
def leaf_(m: Machine, a: int) -> Any:
    return m.leaf * 1 if a % 2 else m.leaf[a % 3]


@instruction
def transpose(m: Machine, a: int, d: int, e: int) -> Any:
    return m[a].transpose(_dim(m[a], d), _dim(m[a], e))


@instruction
def permute(m: Machine, a: int, d: int) -> Any:
    dims = list(range(m[a].ndim))
    return m[a].permute(dims[d % max(len(dims), 1) :] + dims[: d % max(len(dims), 1)])


@instruction
def slice_(m: Machine, a: int, d: int, start: int, end: int, step: int) -> Any:
    dim = _dim(m[a], d)
    return m[a][(slice(None),) * dim + (slice(start % 5 - 1, end % 6 or None, step % 3 + 1),)]


@instruction
def select(m: Machine, a: int, d: int, i: int) -> Any:
    return m[a].select(_dim(m[a], d), i % 4 - 1)


@instruction
def narrow(m: Machine, a: int, d: int, start: int, length: int) -> Any:
    return m[a].narrow(_dim(m[a], d), start % 3, length % 3)


@instruction
def unsqueeze(m: Machine, a: int, d: int) -> Any:
    return m[a].unsqueeze(d % (m[a].ndim + 1))


@instruction
def squeeze(m: Machine, a: int) -> Any:
    return m[a].squeeze()


@instruction
def expand(m: Machine, a: int, n: int) -> Any:
    return m[a].expand(n % 3 + 1, *m[a].shape)


@instruction
def expand_size_one(m: Machine, a: int, d: int, n: int) -> Any:
    one = m[a].narrow(_dim(m[a], d), 0, 1)
    return one.expand(*[n % 3 + 1 if i == _dim(m[a], d) else s for i, s in enumerate(one.shape)])


@instruction
def diagonal(m: Machine, a: int, offset: int) -> Any:
    return m[a].diagonal(offset % 3 - 1)


@instruction
def as_strided(m: Machine, a: int, n: int, k: int, s: int, r: int, offset: int) -> Any:
    where = [None, 0, 1, 2][offset % 4]
    return torch.as_strided(m[a], (n % 3 + 1, k % 3), (s % 4, r % 3 + 1), where)


@instruction
def unfold(m: Machine, a: int, d: int, size: int, step: int) -> Any:
    return m[a].unfold(_dim(m[a], d), size % 3 + 1, step % 3 + 1)


@instruction
def view(m: Machine, a: int, n: int) -> Any:
    return m[a].view(_shape(n))


def _shape(n: int) -> list[int]:
    return [[-1], [1, -1], [-1, 2], [2, -1], [3, -1], [2, 1, -1]][n % 6]


@instruction
def reshape(m: Machine, a: int, n: int) -> Any:
    return m[a].reshape(_shape(n))


@instruction
def flatten(m: Machine, a: int) -> Any:
    return m[a].flatten()


@instruction
def chunk(m: Machine, a: int, n: int, d: int, i: int) -> Any:
    parts = m[a].chunk(n % 3 + 1, _dim(m[a], d))
    return parts[i % len(parts)]


@instruction
def split(m: Machine, a: int, n: int, d: int, i: int) -> Any:
    parts = m[a].split(n % 2 + 1, _dim(m[a], d))
    return parts[i % len(parts)]


@instruction
def unbind(m: Machine, a: int, d: int, i: int) -> Any:
    parts = m[a].unbind(_dim(m[a], d))
    return parts[i % len(parts)]


@instruction
def detach(m: Machine, a: int) -> Any:
    return m[a].detach()


@instruction
def data(m: Machine, a: int) -> Any:
    return m[a].data


@instruction
def view_as(m: Machine, a: int) -> Any:
    return m[a].view_as(m[a])


@instruction
def movedim(m: Machine, a: int, d: int) -> Any:
    return m[a].movedim(0, _dim(m[a], d))


# ---- new tensors ----------------------------------------------------------------------------------------------------


@instruction
def new(m: Machine, a: int, rows: int, cols: int) -> Any:
    size = (rows % 3 + 1) * (cols % 4)
    return m.tensor(torch.arange(a, a + size, dtype=torch.float64).view(rows % 3 + 1, cols % 4))


@instruction
def add(m: Machine, a: int, b: int) -> Any:
    return m[a] + m[b]


@instruction
def scaled(m: Machine, a: int, n: int) -> Any:
    return m[a] * (n % 3 - 1)


@instruction
def clone(m: Machine, a: int) -> Any:
    return m[a].clone()


@instruction
def contiguous(m: Machine, a: int) -> Any:
    return m[a].contiguous()


@instruction
def cat(m: Machine, a: int, b: int, d: int) -> Any:
    return torch.cat([m[a], m[b]], _dim(m[a], d))


@instruction
def index(m: Machine, a: int, i: int) -> Any:
    return m[a][m.tensor(torch.tensor([i % 2, 0]))]


# ---- writes ---------------------------------------------------------------------------------------------------------


@instruction
def add_number(m: Machine, a: int, n: int) -> None:
    if not _repeats_unseen(m[a]):
        m[a].add_(n % 5 - 2)


@instruction
def fill(m: Machine, a: int, n: int) -> None:
    m[a].fill_(n % 7)


@instruction
def zero(m: Machine, a: int) -> None:
    m[a].zero_()


@instruction
def add_tensor(m: Machine, a: int, b: int) -> None:
    if not (_repeats_unseen(m[a]) or _is_unordered(m[a], m[b])):
        m[a].add_(m[b])


@instruction
def multiply(m: Machine, a: int, b: int) -> None:
    if not _repeats_unseen(m[a]):
        m[a].mul_(m[b] % 5)


@instruction
def copy_(m: Machine, a: int, b: int) -> None:
    if not (_repeats_unseen(m[a]) or _is_unordered(m[a], m[b])):
        m[a].copy_(m[b])


@instruction
def copy_from_host(m: Machine, a: int, n: int) -> None:
    m[a].copy_(torch.full(m[a].shape, n % 5, dtype=torch.float64))


@instruction
def clamp(m: Machine, a: int, n: int) -> None:
    m[a].clamp_(min=n % 4)


@instruction
def set_row(m: Machine, a: int, i: int, n: int) -> None:
    m[a][i % 3] = n % 9


@instruction
def set_slice(m: Machine, a: int, start: int, step: int, b: int) -> None:
    source = m[b][:1]
    if not (_repeats_unseen(m[a]) or _is_unordered(m[a][start % 3 :: step % 2 + 1], source)):
        m[a][start % 3 :: step % 2 + 1] = source


@instruction
def set_last(m: Machine, a: int, n: int) -> None:
    m[a][..., -1] = n % 9


@instruction
def set_mask(m: Machine, a: int, n: int) -> None:
    m[a][m[a] > n % 6] = n % 4


@instruction
def masked_fill(m: Machine, a: int, b: int, n: int) -> None:
    m[a].masked_fill_(m[b] > n % 6, n % 4)


@instruction
def index_put(m: Machine, a: int, i: int, n: int, accumulate: int) -> None:
    where = (m.tensor(torch.tensor([i % 2, 0])),)
    if not (accumulate % 2 and _repeats_unseen(m[a])):
        m[a].index_put_(where, m.tensor(torch.tensor(float(n), dtype=torch.float64)), accumulate=bool(accumulate % 2))


@instruction
def index_add(m: Machine, a: int, b: int, d: int, i: int) -> None:
    source = m[b].narrow(_dim(m[a], d), 0, 1)
    if not (_repeats_unseen(m[a]) or _overlap_unseen(m[a], source)):
        m[a].index_add_(_dim(m[a], d), m.tensor(torch.tensor([i % 2])), source)


@instruction
def index_fill(m: Machine, a: int, d: int, i: int, n: int) -> None:
    m[a].index_fill_(_dim(m[a], d), m.tensor(torch.tensor([i % 2])), n % 9)


@instruction
def scatter(m: Machine, a: int, b: int, i: int) -> None:
    if not (_repeats_unseen(m[a]) or _overlap_unseen(m[a], m[b])):
        m[a].scatter_(0, m.tensor(torch.full((1,) * m[a].ndim, i % 2)), m[b])


@instruction
def add_out(m: Machine, a: int, b: int, c: int) -> None:
    try:
        shape = torch.broadcast_shapes(m[a].shape, m[b].shape)
    except RuntimeError:
        shape = m[c].shape
    if shape == m[c].shape and _repeats_unseen(m[c]):
        return
    if not (_is_unordered(m[c], m[a], shape) or _is_unordered(m[c], m[b], shape)):
        if shape != m[c].shape:
            m.moved.append(m[c])
        torch.add(m[a], m[b], out=m[c])


@instruction
def sum_out(m: Machine, a: int, c: int) -> None:
    if m[a].shape[1:] == m[c].shape and _repeats_unseen(m[c]):
        return
    m.moved.append(m[c])
    torch.sum(m[a].clone(), 0, out=m[c])


@instruction
def foreach_add(m: Machine, a: int, b: int, n: int) -> None:
    if not (_repeats_unseen(m[a]) or _repeats_unseen(m[b])):
        torch._foreach_add_([m[a]] if _shares(m[a], m[b]) else [m[a], m[b]], n % 3)


@instruction
def add_to_data(m: Machine, a: int, n: int) -> None:
    if not _repeats_unseen(m[a]):
        m[a].data.add_(n % 4)


@instruction
def add_without_grad(m: Machine, a: int, n: int) -> None:
    with torch.no_grad():
        if not _repeats_unseen(m[a]):
            m[a].sub_(n % 4)


@instruction
def write_to_leaf(m: Machine, i: int, n: int) -> None:
    with torch.no_grad():
        m.leaf[i % 3].mul_(n % 3)


# ---- metadata -------------------------------------------------------------------------------------------------------


@instruction
def set_data(m: Machine, a: int, b: int) -> None:
    if m.may_move(m[a]):
        m[a].data = m[b]


@instruction
def set_tensor(m: Machine, a: int, b: int) -> None:
    if m.may_move(m[a]):
        m[a].set_(m[b])


@instruction
def set_strided(m: Machine, a: int, b: int, n: int, offset: int) -> None:
    fits = offset % 3 + n % 3 < m[b].numel()  # else the CPU makes the storage larger, and does not say what is in it
    if fits and m.may_move(m[a]):
        m[a].set_(m[b], offset % 3, (n % 3 + 1,), (1,))


@instruction
def resize(m: Machine, a: int, rows: int, cols: int, n: int) -> None:
    m.moved.append(m[a])
    m[a].resize_(rows % 3 + 1, cols % 4).fill_(n % 9)  # what was not there before is not specified: all is filled


@instruction
def transpose_in_place(m: Machine, a: int, d: int) -> None:
    if m.may_move(m[a]):
        m[a].transpose_(0, _dim(m[a], d))


@instruction
def unsqueeze_in_place(m: Machine, a: int, d: int) -> None:
    if m.may_move(m[a]):
        m[a].unsqueeze_(d % (m[a].ndim + 1))


@instruction
def squeeze_in_place(m: Machine, a: int) -> None:
    if m.may_move(m[a]):
        m[a].squeeze_()


@instruction
def detach_in_place(m: Machine, a: int) -> None:
    m[a].detach_()


@instruction
def require_grad(m: Machine, a: int) -> None:
    # A view of several may become one that cannot be looked at, on either device; so may one made of a moved tensor.
    if not (m[a]._is_view() or (m.has_views(m[a]) and any(m[a] is t or m[a] is t._base for t in m.moved))):
        m[a].requires_grad_()


# ---- autograd, copies, cuts, reads ----------------------------------------------------------------------------------


@instruction
def backward(m: Machine, a: int) -> None:
    (m[a] * m[a]).sum().backward(retain_graph=True)


@instruction
def gradient(m: Machine, a: int) -> Any:
    result = torch.autograd.grad(m[a].sum(), [m.leaf], allow_unused=True, retain_graph=True)[0]
    # The CPU makes the gradient of some views as a view of its own, where other devices replay what made them.
    return None if result is None else _without_history(result)


def _without_history(t: torch.Tensor) -> torch.Tensor:
    """The tensor as if it had been made in one piece: by how many writes it was says nothing."""
    t = t.detach()
    torch._C._autograd._unsafe_set_version_counter((t,), (0,))
    return t


@instruction
def deepcopy(m: Machine, a: int) -> None:
    m.pool = copy.deepcopy(m.pool)


@instruction
def save_and_load(m: Machine, a: int) -> None:
    file = io.BytesIO()
    torch.save([t.detach() for t in m.pool], file)
    file.seek(0)
    m.pool = [_without_history(t) for t in torch.load(file, map_location=m.device)]


@instruction
def cut(m: Machine, a: int) -> None:
    if m.device == "xla":
        torch_xla.sync()


@instruction
def read(m: Machine, a: int) -> None:
    m.log.append(m[a].tolist())


@instruction
def forget(m: Machine, a: int) -> None:
    if len(m.pool) > 1:
        del m.pool[a % len(m.pool)]
