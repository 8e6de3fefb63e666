"""torch.inference_mode() with tensors made outside of it, and made in it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import torch_xla
import torch_xla.debug.metrics as met

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "select": lambda x: x[0],
    "slice": lambda x: x[:, 1:],
    "whole": lambda x: x[:],
    "step": lambda x: x[..., ::2],
    "view": lambda x: x.view(6, 4),
    "transpose": lambda x: x.transpose(0, 2),
    "expand": lambda x: x[:1].expand(1, 3, 4),
    "split": lambda x: x.split(2, 2)[1],
    "unbind": lambda x: x.unbind(1)[2],
    "diagonal": lambda x: x[0].diagonal(),
    "as_strided": lambda x: x.as_strided((2, 2), (1, 3), 2),
    "detach": lambda x: x.detach(),
    "reshape": lambda x: x.reshape(4, 6),
    "flatten": lambda x: x.flatten(),
    "tensor_split": lambda x: x.tensor_split(2, 2)[0],
    "copy": lambda x: x[:, [0, 2]],
}


def written(view: Callable[[torch.Tensor], torch.Tensor], device: str) -> list[torch.Tensor]:
    outside = torch.arange(24.0).view(2, 3, 4).to(device)
    with torch.inference_mode():
        inside = outside + 1
        for x in (outside, inside):
            view(x).add_(1)
            x.mul_(2)
            view(x).add_(view(x).sum())
        assert not outside.is_inference()
        assert inside.is_inference()
        result = [outside.clone(), inside.clone(), view(outside).clone()]
    outside.add_(1)
    return [x.cpu() for x in (*result, outside, view(outside))]


@pytest.mark.parametrize("name", VIEWS)
def test_views_and_writes(name: str) -> None:
    torch.testing.assert_close(written(VIEWS[name], "xla"), written(VIEWS[name], "cpu"), rtol=0, atol=0)


def test_reads() -> None:
    x = torch.arange(6.0).view(2, 3).to("xla")
    with torch.inference_mode():
        assert x.sum().item() == 15.0
        assert bool(x[1, 2] > 4)
        assert int(x[1, 0]) == 3
        assert [row.tolist() for row in x] == [[0, 1, 2], [3, 4, 5]]
        assert torch.equal(x, x.clone())
        assert torch.allclose(x, x + 1e-9)
        assert not torch.allclose(x, x + 1)
        assert torch.where(x > 2, x, 0.0).tolist() == [[0, 0, 0], [3, 4, 5]]
        with pytest.raises(RuntimeError, match="ambiguous"):
            bool(x > 2)


def test_a_cache_that_was_made_outside_is_written_to_and_replays() -> None:
    """Greedy decoding with keys and values in buffers of fixed size."""

    def decoded(device: str) -> list[int]:
        torch.manual_seed(0)
        table, keys = torch.randn(7, 4).to(device), torch.zeros(2, 1, 5, 4).to(device)
        position, token = torch.zeros(1, dtype=torch.int64).to(device), torch.tensor([3]).to(device)
        tokens = []
        for _ in range(5):
            with torch.inference_mode():
                x = table[token]
                for layer in range(2):
                    cache = keys[layer]
                    cache.index_copy_(1, position, x[None])
                    mask = torch.arange(5, device=x.device) <= position
                    x = x + F.scaled_dot_product_attention(x[None], cache, cache, attn_mask=mask[None, None])[0]
                token.copy_((x @ table.t()).argmax(-1))
                position.add_(1)
            torch_xla.sync()
            tokens.append(token.item())
            compiled.append(met.counter_value("UncachedCompile"))
        return tokens

    compiled: list[int | None] = []
    expected = decoded("cpu")
    compiled.clear()
    assert decoded("xla") == expected
    assert compiled[2] == compiled[-1]
