"""Writes tests/lua/hugging_face/: tiny models as the transformers library saves them, and their
logits, for specs without Python.

Run by hand when a case is added, with torch and transformers 5:
    python tests/equivalence/make_hugging_face.py tests/lua/hugging_face [CASE…]
Weights are random with a fixed seed, larger than a fresh model's so that every part counts.
"""
import pathlib
import shutil
import sys

import torch
from safetensors.torch import save_file
from transformers import (BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, LlamaConfig,
                          LlamaForCausalLM, MixtralConfig, MixtralForCausalLM, Qwen2Config,
                          Qwen2ForCausalLM)

out = pathlib.Path(sys.argv[1])
llama = dict(vocab_size=41, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
             rms_norm_eps=1e-5, tie_word_embeddings=False, bos_token_id=0, eos_token_id=1)
slow = dict(rope_type='llama3', rope_theta=10000.0, factor=4.0, low_freq_factor=1.0,
            high_freq_factor=4.0, original_max_position_embeddings=16)
long = dict(rope_type='longrope', rope_theta=10000.0, original_max_position_embeddings=16,
            short_factor=[1.0, 1.3], long_factor=[1.5, 4.0])
gpt2 = dict(vocab_size=41, n_embd=16, n_layer=2, n_head=4, n_positions=32, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=1)
bert = dict(vocab_size=41, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
            num_attention_heads=4, max_position_embeddings=32)

# name: model, dtype, largest shard
cases = {
    'llama': (LlamaForCausalLM, LlamaConfig(**llama), torch.float32, '8KB'),
    'llama31': (LlamaForCausalLM, LlamaConfig(**{**llama, 'rope_parameters': slow,
                                                 'tie_word_embeddings': True}), torch.bfloat16, '1GB'),
    'longrope': (LlamaForCausalLM, LlamaConfig(**{**llama, 'rope_parameters': long}), torch.float32,
                 '1GB'),
    'qwen2': (Qwen2ForCausalLM, Qwen2Config(**{**llama, 'rms_norm_eps': 1e-6}), torch.float32, '1GB'),
    'mixtral': (MixtralForCausalLM, MixtralConfig(**llama, num_local_experts=4), torch.float32, '1GB'),
    'gpt2': (GPT2LMHeadModel, GPT2Config(**gpt2), torch.float32, '1GB'),
    'bert': (BertForMaskedLM, BertConfig(**bert), torch.float32, '1GB'),
}

for name in sys.argv[2:] or cases:
    cls, config, dtype, shard = cases[name]
    torch.manual_seed(7)
    model = cls(config).eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            centre = 1.0 if 'norm' in key or 'Norm.weight' in key or 'ln_' in key and key.endswith('weight') else 0.0
            p.copy_(centre + 0.3 * torch.randn(p.shape))
    model.tie_weights()
    model.to(dtype)
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, max_shard_size=shard)
    (folder / 'generation_config.json').unlink(missing_ok=True)
    ids = torch.arange(48).reshape(2, 24) * 7 % 41
    stored = cls.from_pretrained(folder, dtype=torch.float32).eval()  # computed in float32
    with torch.no_grad():
        expected = {'ids': ids, 'logits': stored(ids).logits}
        if name == 'longrope':  # within the original length the other factors count
            expected['short_logits'] = stored(ids[:, :12]).logits
        if name == 'bert':  # two kinds of tokens, the end of the second text is padding
            expected['types'] = (torch.arange(24) >= 10).long().expand(2, 24).contiguous()
            expected['mask'] = torch.ones(2, 24, dtype=torch.long)
            expected['mask'][1, 18:] = 0
            expected['padded_logits'] = stored(ids, token_type_ids=expected['types'],
                                               attention_mask=expected['mask']).logits
    save_file(expected, folder / 'expected_logits.bin')
    print(name, sum(f.stat().st_size for f in folder.iterdir()), 'bytes')
