"""Hugging Face's models on device xla; run where the package transformers is installed, without a network."""

from __future__ import annotations

import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla.debug import memory

transformers = pytest.importorskip("transformers", reason="the package transformers is not installed")


def made(kind: str) -> torch.nn.Module:
    torch.manual_seed(0)
    if kind == "gpt2":  # with its dropout of 0.1
        return transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                n_layer=6, n_embd=32, n_head=2, vocab_size=64, n_positions=128, bos_token_id=0, eos_token_id=0
            )
        )
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=6, num_attention_heads=2, vocab_size=64, use_cache=False
    )
    return transformers.LlamaForCausalLM(config)


def trained(kind: str, reentrant: bool | None) -> tuple[int, list[torch.Tensor]]:
    """Bytes of temporaries and the gradients of a third step, which compiles nothing."""
    model = made(kind).to("xla").train()
    if reentrant is not None:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    tokens = (torch.arange(512).view(4, 128) % 61).to("xla")
    torch_xla.manual_seed(7)
    compiled = []
    for _ in range(3):
        model.zero_grad()
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        torch_xla.sync()
        compiled.append(met.counter_value("UncachedCompile"))
    assert compiled[1] == compiled[2]
    return memory.last().temporaries, [p.grad.cpu() for p in model.parameters()]


@pytest.mark.filterwarnings(
    "ignore:.gradient_checkpointing_enable. is deprecated:FutureWarning"
)  # another name from version 6
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_gradient_checkpointing_enable_saves_and_gives_the_same_gradients(kind: str) -> None:
    without, expected = trained(kind, None)
    for reentrant in (True, False):
        temporaries, gradients = trained(kind, reentrant)
        assert temporaries < without / 2
        torch.testing.assert_close(gradients, expected, rtol=1e-3, atol=1e-5)
