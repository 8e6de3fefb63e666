"""Compares lowerings with the CPU kernel for every aten call that a piece of PyTorch code makes. Needs no xla device.

Under `CheckLowerings`, code runs on CPU as usual; each aten call is repeated through its lowering (or decomposition) on
JAX arrays and the results are compared.

    python -m tests.ops.harness add nn.functional.conv2d --dtype float32     # op_db entries by name, forward and backward
    python -m tests.ops.harness --all --dtype int64                          # every entry; closing list of failures
"""

from __future__ import annotations

import argparse
import itertools
import sys
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.utils._pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from torch_xla._src.ops import dtypes
from torch_xla._src.ops.lower import NoLowering, how, load_families, lower, specs_of
from torch_xla._src.ops.registry import lookup

aten = torch.ops.aten

# Results are unspecified memory, draws of another generator, or not numbers: only shape and dtype are compared.
UNCOMPARABLE = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "rand", "randn", "randint"}
UNCOMPARABLE |= {
    "bernoulli",
    "native_dropout",
    "multinomial",
    "normal",
    "uniform",
    "randperm",
    "rand_like",
    "randn_like",
}
UNCOMPARABLE |= {"rrelu_with_noise", "rrelu_with_noise_functional", "poisson", "_standard_gamma", "_sample_dirichlet"}
UNCOMPARABLE |= {"cauchy", "exponential", "geometric", "log_normal", "random", "normal_functional", "randint_like"}
UNCOMPARABLE |= {"binomial", "empty_permuted", "resize"}
# No device op: the recorder never sees them.
SKIPPED = {
    "_local_scalar_dense",
    "is_same_size",
    "detach",
    "alias",
    "lift_fresh",
    "set_",
    "resize_",
    "is_pinned",
    "equal",
    "_linalg_check_errors",
}


def materialized(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without lazy bits; autograd's zero tensors have no memory, and reading one is a segmentation fault."""
    if torch._is_zerotensor(tensor):
        return torch.zeros(tensor.shape, dtype=tensor.dtype)
    return tensor.detach().resolve_conj().resolve_neg()


def to_jax(tensor: torch.Tensor) -> jax.Array:
    """A JAX copy of a CPU tensor."""
    tensor = materialized(tensor).contiguous()
    if tensor.dtype in (torch.bfloat16, torch.float16):
        return jnp.array(tensor.to(torch.float32).numpy()).astype(dtypes.numpy_dtype(tensor.dtype))
    return jnp.array(tensor.numpy())


def to_torch(array: jax.Array) -> torch.Tensor:
    """A CPU copy of a JAX array."""
    dtype = dtypes.torch_dtype(array.dtype)
    if dtype in (torch.bfloat16, torch.float16):
        return torch.from_numpy(jax.device_get(array.astype(jnp.float32)).copy()).to(dtype)
    return torch.from_numpy(jax.device_get(array).copy()).reshape(array.shape)


def functional_variant(overload: Any) -> Any | None:
    """The op that functionalization sends for `overload`: `x_copy` of a view, `x` of `x_`, or itself."""
    schema = overload._schema
    name = schema.name.partition("::")[2]
    if overload.is_view:
        copy = getattr(getattr(aten, f"{name}_copy", None), overload._overloadname, None)
        return copy or (aten.view_copy.default if name in ("_unsafe_view", "reshape") else None)
    if not schema.is_mutable:
        return overload
    if name.endswith("_") and not any(a.is_out for a in schema.arguments):
        return getattr(getattr(aten, name[:-1], None), overload._overloadname, None)
    return None


@dataclass
class CheckLowerings(TorchDispatchMode):
    """Dispatch mode that checks each aten call; `failures` holds one text per call that went wrong."""

    failures: list[str] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    rtol: float | None = None
    atol: float | None = None
    wide: torch.dtype | None = None  # the dtype to compute the reference in, if not that of the call
    compiled: bool = False  # one program a call: takes less time where a lowering is long, more where it is short

    def __post_init__(self) -> None:
        super().__init__()

    def __hash__(self) -> int:
        return id(self)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        variant = functional_variant(func)
        name = func._schema.name.partition("::")[2]
        checked = variant is not None and name not in SKIPPED and func.namespace == "aten"
        before = (
            pytree.tree_map(lambda a: a.detach().clone() if isinstance(a, torch.Tensor) else a, (args, kwargs))
            if checked
            else None
        )
        outputs = func(*args, **kwargs)
        if checked:
            self.calls[f"{variant} [{how(variant)}]"] += 1
            self._check(variant, name, before, outputs)
        return outputs

    def _check(self, variant: Any, name: str, before: Any, outputs: Any) -> None:
        try:
            expected = (
                variant(*before[0], **before[1])
                if variant._schema.name.startswith("aten::_foreach") or "_fused" in name or "_amp" in name
                else outputs
            )
            if self.wide is not None:
                expected = self._in_wider_dtype(variant, before, expected)
            with jax.enable_x64(True):
                actual = _lowered(variant, before, specs_of(expected), self.compiled)
                if variant._schema.name.partition("::")[2] in UNCOMPARABLE:
                    return
                wanted = pytree.tree_leaves(expected, is_leaf=lambda x: x is None)
                for got, want in zip(actual, wanted, strict=True):
                    if isinstance(want, torch.Tensor):
                        tolerance = {} if self.rtol is None else {"rtol": self.rtol, "atol": self.atol}
                        want = materialized(want)
                        torch.testing.assert_close(to_torch(got), want, equal_nan=True, check_stride=False, **tolerance)
        except NoLowering:
            self.failures.append(f"{variant}: no lowering")
        except Exception as error:  # collected: one run lists all that is wrong
            shown = pytree.tree_map(lambda a: f"{a.dtype}{list(a.shape)}" if isinstance(a, torch.Tensor) else a, before)
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.failures.append(
                f"{variant}{shown}: {type(error).__name__} {str(error)[:300]} ({where.filename}:{where.lineno})"
            )

    def _in_wider_dtype(self, variant: Any, before: Any, expected: Any) -> Any:
        """What the call gives in the dtype `wide`, rounded to the dtypes of its results."""
        widened = pytree.tree_map(
            lambda a: a.to(self.wide) if isinstance(a, torch.Tensor) and a.is_floating_point() else a, before
        )
        exact = variant(*widened[0], **widened[1])
        return pytree.tree_map(lambda e, w: w.to(e.dtype) if isinstance(e, torch.Tensor) else e, expected, exact)


def _lowered(variant: Any, call: Any, specs: list[Any], compiled: bool) -> list[Any]:
    """The outputs of a call, (args, kwargs) with CPU tensors. compiled: from one program, as in a recording."""
    leaves, tree = pytree.tree_flatten(call)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    lowering = lookup(variant)
    key = jax.random.key(0) if lowering is None or lowering.random else None

    def program(arrays: list[Any]) -> list[Any]:
        filled = list(leaves)
        for i, array in zip(places, arrays, strict=True):
            filled[i] = array
        args, kwargs = pytree.tree_unflatten(filled, tree)
        return lower(variant, args, kwargs, specs, key)

    arrays = [to_jax(leaves[i]) for i in places]
    outputs: list[Any] = jax.jit(program)(arrays) if compiled else program(arrays)
    return outputs


def check_opinfo(
    op: Any,
    dtype: torch.dtype,
    samples: int = 3,
    backward: bool = True,
    tolerance: float | None = None,
    wide: torch.dtype | None = None,
    compiled: bool = False,
) -> list[str]:
    """Failures of an OpInfo's first samples, forward and (for floating dtypes) backward.

    tolerance: relative and absolute; torch.testing's for the dtype if not given.
    """
    load_families()  # here, so that a family that fails to import is not taken for a sample that the CPU refuses
    mode = CheckLowerings(rtol=tolerance, atol=tolerance, wide=wide, compiled=compiled)
    grad = backward and op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    if dtype in (torch.bfloat16, torch.float16):
        mode.rtol, mode.atol = 2e-2, 2e-2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=grad), samples):
            try:
                with mode:
                    out = op(sample.input, *sample.args, **sample.kwargs)
                    if grad:
                        out = sample.output_process_fn_grad(out)
                        roots = [o for o in pytree.tree_leaves(out) if isinstance(o, torch.Tensor) and o.requires_grad]
                        torch.autograd.backward(roots, [torch.ones_like(r) for r in roots])
            except Exception as error:  # the CPU itself refuses this sample
                mode.failures.append(f"(CPU) {type(error).__name__}: {str(error)[:150]}")
    return [f for f in mode.failures if not f.startswith("(CPU)")]


def main() -> int:
    from torch.testing._internal.common_methods_invocations import op_db

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--no-backward", action="store_true")
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    chosen = [o for o in op_db if options.all or o.name in options.names]
    failed = 0
    for op in chosen:
        if dtype not in op.supported_dtypes("cpu"):
            continue
        try:
            failures = check_opinfo(op, dtype, options.samples, not options.no_backward)
        except Exception as error:
            failures = [f"{type(error).__name__}: {error}"]
        if failures:
            failed += 1
            print(f"FAIL {op.full_name}")
            for text in list(dict.fromkeys(failures))[:6]:
                print("    ", text[:500].replace("\n", " "))
        elif not options.all:
            print(f"ok   {op.full_name}")
    print(f"{len(chosen) - failed} of {len(chosen)} entries agree")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
