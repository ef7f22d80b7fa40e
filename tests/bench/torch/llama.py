"""LLaMA of the transformers library, for the comparisons with it: the sizes of recipes/llama3.lua."""
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = {  # layers, heads, key heads, width, hidden, block, batch
    "llama-small": (6, 6, 2, 192, 512, 128, 12),
}


class Llama(nn.Module):
    def __init__(self, preset, vocab):
        super().__init__()
        layers, heads, kv_heads, width, hidden, block, _ = SIZES[preset]
        self.model = LlamaForCausalLM(LlamaConfig(
            vocab_size=vocab, hidden_size=width, intermediate_size=hidden, num_hidden_layers=layers,
            num_attention_heads=heads, num_key_value_heads=kv_heads, max_position_embeddings=block,
            rms_norm_eps=1e-5, rope_theta=500000.0, tie_word_embeddings=False, use_cache=False,
            attn_implementation="sdpa"))

    def forward(self, x):
        return self.model(x).logits
