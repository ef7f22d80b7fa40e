"""Speed of sampling in PyTorch: prints one JSON object with tokens_per_s and cpu_s of a token.

    tests/bench/torch/generate.py --preset baby --tokens 200 [--whole]

Keys and values of the tokens before are kept; with --whole each token is sampled from the whole text
again, as nanoGPT does. One sequence that begins with one token; temperature 0.8.
"""
import argparse
import json
import time

import torch

import gpt


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--preset", choices=gpt.SIZES, default="baby")
    p.add_argument("--vocab", type=int, default=65)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--tokens", type=int, default=200)
    p.add_argument("--whole", action="store_true")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(1337)
    _, heads, width, block, _ = gpt.SIZES[a.preset]
    model = gpt.GPT(a.preset, a.vocab).eval()

    def sample():
        text = torch.zeros(1, 1, dtype=torch.long)
        caches = None if a.whole else [gpt.Cache(heads, block, width // heads) for _ in model.blocks]
        for _ in range(a.tokens):
            logits = model(text[:, -block:]) if a.whole else model(text[:, -1:], caches)
            weights = torch.softmax(logits[:, -1] / 0.8, -1)
            text = torch.cat((text, torch.multinomial(weights, 1)), 1)

    with torch.inference_mode():
        sample()
        wall, cpu = time.perf_counter(), time.process_time()
        sample()
    print(json.dumps({"tokens_per_s": a.tokens / (time.perf_counter() - wall),
                      "cpu_s": (time.process_time() - cpu) / a.tokens}))


if __name__ == "__main__":
    main()
