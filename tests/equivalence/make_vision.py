"""Writes tests/lua/vision/: small models of images as timm and torchvision build them, one file a
model with weights, running statistics, images x and logits, for specs without Python.

Run by hand when a case is added, with torch, timm and torchvision:
    python tests/equivalence/make_vision.py tests/lua/vision [CASE…]
Weights are random with a fixed seed, larger than a fresh model's so that every part counts.
"""
import pathlib
import sys

import timm.models.swin_transformer
import timm.models.vision_transformer
import torch
import torchvision.models.resnet as torchvision_resnet
from safetensors.torch import save_file
from torch import nn


class Narrow(torchvision_resnet.ResNet):
    """A ResNet of 2 channels in the first stage in place of 64."""

    def _make_layer(self, block, planes, blocks, stride=1, dilate=False):
        if planes == 64:
            self.inplanes = 2
        return super()._make_layer(block, planes // 32, blocks, stride, dilate)


def resnet(block, layers):
    model = Narrow(block, layers, num_classes=5)
    model.conv1 = nn.Conv2d(3, 2, 7, stride=2, padding=3, bias=False)
    model.bn1 = nn.BatchNorm2d(2)
    model.fc = nn.Linear(16 * block.expansion, 5)
    return model


CASES = {
    'resnet50': (lambda: resnet(torchvision_resnet.Bottleneck, [1, 2, 1, 1]), 64),
    'resnet18': (lambda: resnet(torchvision_resnet.BasicBlock, [2, 2, 2, 2]), 64),
    'vit': (lambda: timm.models.vision_transformer.VisionTransformer(
        img_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=4, num_classes=5), 16),
    'swin': (lambda: timm.models.swin_transformer.SwinTransformer(
        img_size=32, patch_size=4, window_size=4, embed_dim=8, depths=(2, 2), num_heads=(2, 4),
        num_classes=5, drop_path_rate=0), 32),
}

out = pathlib.Path(sys.argv[1])
out.mkdir(exist_ok=True)
for name in sys.argv[2:] or CASES:
    make, side = CASES[name]
    torch.manual_seed(7)
    model = make().eval()
    with torch.no_grad():
        for key, p in list(model.named_parameters()) + list(model.named_buffers()):
            if key.endswith('running_var'):
                p.copy_(0.5 + torch.rand(p.shape))
            elif p.is_floating_point() and 'attn_mask' not in key:
                scale = p.numel() / p.shape[0] if p.dim() > 2 and p.shape[0] > 1 else 16
                centre = 1.0 if p.dim() == 1 and key.endswith('weight') else 0.0
                p.copy_(centre + 1.2 / scale**0.5 * torch.randn(p.shape))
        x = torch.rand(2, 3, side, side)
        values = {'x': x, 'logits': model(x)}
    values |= {'w/' + key: p.contiguous() for key, p in model.state_dict().items()}
    save_file(values, out / (name + '.bin'))
    print(name, (out / (name + '.bin')).stat().st_size, 'bytes', values['logits'].abs().max().item())
