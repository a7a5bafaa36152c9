"""Small models of transformers, as its own code steps through the tokens one by one."""

from __future__ import annotations

import math
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DynamicCache

WIDTH, VOCABULARY, LAYERS = 32, 32, 2
RATE, BATCH, LENGTH = 3e-3, 16, 40
NOISE, LAGS = 0.2, (2, 9)
SIZES = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": LAYERS}
QWEN = {
    "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16,
    "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "layer_types": ["linear_attention"] * LAYERS,
    "mlp_only_layers": [*range(LAYERS)], "num_experts": 0, "initializer_range": 0.18,
}  # fmt: skip
GRIFFIN = {
    "intermediate_size": 32, "num_attention_heads": 2, "block_types": ["recurrent"],
    "w_init_variance_scale": 1.0,
}  # fmt: skip
SSD = {"state_size": 16, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": LENGTH}
MODELS: dict[str, tuple[str, dict[str, Any], int]] = {  # and how many sequences are run
    "Mamba": ("MambaConfig", {"state_size": 16}, 64),
    "Mamba-2": ("Mamba2Config", SSD, 64),
    "Gated DeltaNet": ("Qwen3NextConfig", QWEN, 24),
    "RG-LRU": ("RecurrentGemmaConfig", GRIFFIN, 256),
}


def build(family: str, seed: int = 0) -> Any:
    """A causal language model of random weights, whose step sizes are Mamba's in every family."""
    torch.manual_seed(seed)
    kind, sizes, _ = MODELS[family]
    model = AutoModelForCausalLM.from_config(getattr(transformers, kind)(**SIZES, **sizes))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("dt_bias"):
                step = torch.empty_like(parameter).uniform_(math.log(1e-3), math.log(0.1)).exp()
                parameter.copy_(step + torch.log(-torch.expm1(-step)))
            elif "in_proj" in name or "x_proj" in name:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
    return model.eval()


def draw_tokens(count: int, length: int, random: torch.Generator) -> Tensor:
    """Sequences that repeat what stood some steps ago, each at a lag of its own, but for noise."""
    drawn = torch.randint(1, VOCABULARY, (count, length), generator=random)
    lags = torch.randint(*LAGS, (count,), generator=random)
    noisy = torch.rand(count, length, generator=random) < NOISE
    for t in range(LAGS[1], length):
        drawn[:, t] = torch.where(noisy[:, t], drawn[:, t], drawn[torch.arange(count), t - lags])
    return drawn


def train(model: Any, steps: int) -> None:
    """Adam on the next token of such sequences."""
    random = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    model.train()
    for _ in range(steps):
        tokens = draw_tokens(BATCH, LENGTH, random)
        logits = model(tokens, use_cache=False).logits[:, LAGS[1] : -1]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, LAGS[1] + 1 :].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()


class Stepped:
    """A model that is fed a vector at every step: white ones, or embedded tokens of the task."""

    parts = 1

    def __init__(self, model: Any, horizon: int, sequences: int, *, task: bool) -> None:
        self.model, self.sequences = model, sequences
        random = torch.Generator().manual_seed(2)
        self.inputs = torch.randn(sequences, horizon, WIDTH, generator=random)
        if task:
            tokens = draw_tokens(sequences, horizon, random)
            self.inputs = model.get_input_embeddings()(tokens).detach()
        self.blocks: list[Any] = []  # of an RG-LRU, which keeps its states itself
        if model.config.model_type == "recurrent_gemma":
            self.blocks = [layer.temporal_block for layer in model.model.layers]

    def start(self, copies: int, sequences: int) -> None:
        """Forget all, and take so many copies of the first sequences."""
        self.fed = self.inputs[:sequences].repeat(copies, 1, 1)
        self.cache: Any = DynamicCache(config=self.model.config)
        for block in self.blocks:
            block.conv1d_state = block.rg_lru.recurrent_states = None

    def step(self, t: int) -> list[Tensor]:
        """The states of every layer after one more input."""
        extra: dict[str, Any] = {"cache_params": self.cache}
        if "mamba" not in self.model.config.model_type:
            kinds = ("linear_attention", "full_attention", "sliding_attention")
            extra = {
                "past_key_values": self.cache,
                "position_ids": torch.full((len(self.fed), 1), t),
                "attention_mask": dict.fromkeys(kinds),
            }
        self.model.base_model(inputs_embeds=self.fed[:, t, None], use_cache=True, **extra)
        if self.blocks:
            return [block.rg_lru.recurrent_states for block in self.blocks]
        return [self.cache.get_recurrent_state(layer, state_idx=0) for layer in range(LAYERS)]
