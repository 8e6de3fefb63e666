"""Names of PyTorch/XLA's `torch_xla.experimental.pytreeify`: autograd functions whose arguments are nested."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from torch_xla._src import surface


def pytreeify(cls: type[Any]) -> type[Any]:
    """An autograd Function like `cls` whose arguments, results and gradients may be nested (lists, tuples, dicts).

    `forward(ctx, *args)` and `backward(ctx, *grads)` of `cls` see them nested; `backward` returns gradients nested like
    the arguments.
    """

    class Flat(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, tree: Any, results: list[Any], *flat: Any) -> Any:
            ctx.tree = tree
            outputs, ctx.out_tree = tree_flatten(cls.forward(ctx, *tree_unflatten(list(flat), tree)))
            results.append(ctx.out_tree)
            return tuple(outputs)

        @staticmethod
        def backward(ctx: Any, *flat: Any) -> Any:
            grads = cls.backward(ctx, *_as_arguments(tree_unflatten(list(flat), ctx.out_tree)))
            return None, None, *_aligned(grads if isinstance(grads, tuple) else (grads,), ctx.tree)

    @functools.wraps(cls, updated=())
    class Nested(cls):
        @staticmethod
        def apply(*args: Any) -> Any:
            flat, tree = tree_flatten(args)
            results: list[Any] = []
            outputs = Flat.apply(tree, results, *flat)
            return tree_unflatten(list(outputs), results[0])

    return Nested


def _as_arguments(grads: Any) -> tuple[Any, ...]:
    return grads if isinstance(grads, tuple) else (grads,)


def _children(tree: Any) -> Any:
    return tree.children() if hasattr(tree, "children") else tree.children_specs  # as torch 2.9 calls them


def _aligned(grads: tuple[Any, ...], tree: Any) -> list[Any]:
    """Gradients nested like the arguments as a flat list; None stands for a whole argument without gradient."""
    flat: list[Any] = []
    for grad, child in zip(grads, _children(tree), strict=True):
        if grad is None:
            flat += [None] * child.num_leaves
        elif child.is_leaf():
            flat.append(grad)
        else:
            leaves, _ = tree_flatten(grad, is_leaf=lambda x: x is None)
            flat += leaves
    return flat


__getattr__ = surface.missing(__name__)
