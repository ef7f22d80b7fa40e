"""Small random models of published architectures with their loss, exported in float64, and what
PyTorch makes of them in three steps (as export.py does): the oracle of tests/long/import_spec.lua.

usage: architectures.py FOLDER [NAME …]      writes NAME.pt2 and NAME.safetensors
       architectures.py --names              prints the names
needs: torch safetensors transformers torchvision timm

Draws cannot be those of PyTorch: all probabilities of dropping are 0. What models compute in
float32 on purpose is in float64 too. Experts are products of batches, since the grouped one is an
operator that transformers registers in Python.
"""
import os
import sys

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

import export
import models

TEXT = dict(vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=128, max_position_embeddings=64)
VISION = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, image_size=64,
              patch_size=16, num_labels=10)
EXPERTS = dict(num_key_value_heads=4, q_lora_rank=32, kv_lora_rank=16, qk_rope_head_dim=8,
               qk_nope_head_dim=8, v_head_dim=16, n_routed_experts=4, num_experts_per_tok=2,
               moe_intermediate_size=32, n_shared_experts=1, first_k_dense_replace=1)
ROWS = 2


class LanguageModel(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        return self.model(input_ids=input_ids, labels=labels, use_cache=False).loss


class Classifier(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images, classes):
        out = self.model(images)
        return F.cross_entropy(getattr(out, "logits", out), classes)


class Whisper(nn.Module):
    """The encoder: features of sound to what the decoder reads."""

    def __init__(self):
        super().__init__()
        import transformers
        config = transformers.WhisperConfig(d_model=64, encoder_layers=2, encoder_attention_heads=4,
                                            encoder_ffn_dim=128, max_source_positions=16,
                                            num_mel_bins=20)
        self.encoder = transformers.models.whisper.modeling_whisper.WhisperEncoder(config)

    def forward(self, sound, wanted):
        return F.mse_loss(self.encoder(sound).last_hidden_state, wanted)

    @staticmethod
    def arguments():
        return torch.randn(ROWS, 20, 32), torch.randn(ROWS, 16, 64)


class Clip(nn.Module):
    """Texts and images that belong together."""

    def __init__(self):
        super().__init__()
        import transformers
        tower = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                     num_attention_heads=4)
        self.model = transformers.CLIPModel(transformers.CLIPConfig(
            text_config=dict(vocab_size=128, max_position_embeddings=16, eos_token_id=127, **tower),
            vision_config=dict(image_size=32, patch_size=16, **tower), projection_dim=32))

    def forward(self, texts, pictures):
        return self.model(input_ids=texts, pixel_values=pictures, return_loss=True).loss

    @staticmethod
    def arguments():
        return torch.randint(2, 128, (ROWS, 16)), torch.randn(ROWS, 3, 32, 32)


def own(model):
    return lambda: (model(), model.arguments)


def ids():
    return torch.randint(2, 128, (ROWS, 16)), torch.randint(2, 128, (ROWS, 16))


def short_ids():
    return torch.randint(2, 128, (ROWS, 5)), torch.randint(2, 128, (ROWS, 5))


def images():
    return torch.randn(ROWS, 3, 64, 64), torch.randint(0, 10, (ROWS,))


def hugging_face(wrapper, config, model, **options):
    import transformers
    cfg = getattr(transformers, config)(**options)
    if hasattr(cfg, "num_attention_heads"):
        cfg._attn_implementation = "sdpa"
    cfg._experts_implementation = "batched_mm"
    return wrapper(getattr(transformers, model)(cfg))


def text(config, model, arguments=ids, **options):
    return lambda: (hugging_face(LanguageModel, config, model, **options), arguments)


def vision(config, model, **options):
    return lambda: (hugging_face(Classifier, config, model, **options), images)


def torchvision(name):
    def build():
        import torchvision.models
        return Classifier(getattr(torchvision.models, name)(num_classes=10)), images
    return build


def timm(name, **options):
    def build():
        import timm
        return Classifier(timm.create_model(name, num_classes=10, **options)), images
    return build


ARCHITECTURES = {
    "gpt2": text("GPT2Config", "GPT2LMHeadModel", vocab_size=128, n_embd=64, n_layer=2, n_head=4,
                 n_positions=64),
    "llama": text("LlamaConfig", "LlamaForCausalLM", num_key_value_heads=2, **TEXT),
    "qwen2": text("Qwen2Config", "Qwen2ForCausalLM", num_key_value_heads=2, **TEXT),
    "qwen3": text("Qwen3Config", "Qwen3ForCausalLM", num_key_value_heads=2, head_dim=16, **TEXT),
    "mistral": text("MistralConfig", "MistralForCausalLM", num_key_value_heads=2, **TEXT),
    "gemma": text("GemmaConfig", "GemmaForCausalLM", num_key_value_heads=2, head_dim=16, **TEXT),
    "phi": text("PhiConfig", "PhiForCausalLM", **TEXT),
    "bert": text("BertConfig", "BertForMaskedLM", **TEXT),
    "roberta": text("RobertaConfig", "RobertaForMaskedLM", pad_token_id=1, **TEXT),
    "t5": text("T5Config", "T5ForConditionalGeneration", vocab_size=128, d_model=64, d_kv=16,
               d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0),
    "mixtral": text("MixtralConfig", "MixtralForCausalLM", num_key_value_heads=2,
                    num_local_experts=4, **TEXT),
    "deepseek_v2": text("DeepseekV2Config", "DeepseekV2ForCausalLM", **EXPERTS, **TEXT),
    "vit": vision("ViTConfig", "ViTForImageClassification", intermediate_size=128, **VISION),
    "dinov2": vision("Dinov2Config", "Dinov2ForImageClassification", **VISION),
    "resnet18": torchvision("resnet18"),
    "swin_t": torchvision("swin_t"),
    "convnext": torchvision("convnext_tiny"),
    "timm_vit": timm("vit_tiny_patch16_224", img_size=64),
    "efficientnet": timm("efficientnet_b0"),
    "whisper": own(Whisper),
    "clip": own(Clip),
    "unet": own(models.UNet),
    "dit": own(models.DiT),
    "detr": own(models.Detr),
    "graph_network": own(models.GraphNetwork),
    "lstm": own(models.Lstm),
    # Its scan has calls of its own for each token.
    "mamba": text("MambaConfig", "MambaForCausalLM", short_ids, vocab_size=128, hidden_size=32,
                  state_size=4, num_hidden_layers=2, time_step_rank=4),
}


def double_throughout():
    def wide(f):
        def call(*args, **options):
            swap = {torch.float32: torch.float64}
            args = [swap.get(a, a) if isinstance(a, torch.dtype) else a for a in args]
            return f(*args, **{k: swap.get(v, v) if isinstance(v, torch.dtype) else v
                               for k, v in options.items()})
        return call

    for owner, name in ((torch.Tensor, "to"), (torch.Tensor, "type"), (F, "softmax"),
                        (torch, "softmax"), (torch, "arange"), (torch, "zeros"), (torch, "ones"),
                        (torch, "full"), (torch, "tensor")):
        setattr(owner, name, wide(getattr(owner, name)))
    torch.Tensor.float = torch.Tensor.double


def drop_nothing(model):
    for module in model.modules():
        for name in ("p", "drop_prob", "attention_dropout", "dropout", "dropout_prob", "attn_drop"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


def main():
    if sys.argv[1] == "--names":
        print(" ".join(ARCHITECTURES))
        return
    folder, wanted = sys.argv[1], sys.argv[2:] or list(ARCHITECTURES)
    torch.set_num_threads(1)
    double_throughout()
    export.RATE = 1e-3  # larger steps of EfficientNet make much of a rounding
    for name in wanted:
        torch.manual_seed(0)
        model, arguments = ARCHITECTURES[name]()
        model = drop_nothing(model).double().train()
        batches = [export.double(arguments()) for _ in range(export.MICRO_BATCHES)]
        export.export(model, batches[0], os.path.join(folder, name + ".pt2"))
        out = {f"in/{k}/{i}": a for k, args in enumerate(batches) for i, a in enumerate(args)}
        export.train(model, batches, out)
        save_file({k: v.contiguous() for k, v in out.items()},
                  os.path.join(folder, name + ".safetensors"))
        print(name, flush=True)


main()
