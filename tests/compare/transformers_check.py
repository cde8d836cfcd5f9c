#!/usr/bin/env python3
"""Models go to and fro between Hugging Face's transformers and Lockstep, with the same losses on both sides.

    tests/compare/transformers_check.py

For GPT-2, Llama and Qwen2: transformers makes a model and saves it (float32, bfloat16 or float16; in one file or many);
a job trains it for some steps; transformers loads what came out. The first step's loss must be that of transformers for
the saved model, and the held-out loss at the end that of transformers for the trained one.

Needs PyTorch and transformers, which no build or test of ours needs:

    /usr/bin/python3 -m venv --system-site-packages /tmp/venv      # python3-torch from Debian
    /tmp/venv/bin/pip install 'transformers==4.40.2'
    /tmp/venv/bin/python tests/compare/transformers_check.py
"""
import csv
import json
import os
import random
import subprocess
import sys
import tempfile

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LENGTH = 48
BATCH = 4
VOCABULARY = 199
TOKENS = 6_000
HELD_OUT = 0.2
# A mean of float32 losses, from two implementations that round elsewhere.
TOLERANCE = 2e-5


def configs():
    from transformers import GPT2Config, LlamaConfig, Qwen2Config
    llama = dict(vocab_size=VOCABULARY, hidden_size=48, intermediate_size=80, num_hidden_layers=3,
                 num_attention_heads=4, max_position_embeddings=128, bos_token_id=0, eos_token_id=0)
    return {
        "gpt2": (GPT2Config(vocab_size=VOCABULARY, n_embd=48, n_layer=3, n_head=3, n_positions=64, resid_pdrop=0,
                            embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0), "float32", "10GB"),
        "gpt2 in bfloat16, sharded": (GPT2Config(vocab_size=VOCABULARY, n_embd=48, n_layer=3, n_head=3, n_positions=64,
                                                 resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=0,
                                                 eos_token_id=0), "bfloat16", "60KB"),
        "llama, grouped heads": (LlamaConfig(num_key_value_heads=2, **llama), "float32", "10GB"),
        "llama, tied, biases, in float16": (LlamaConfig(num_key_value_heads=4, tie_word_embeddings=True,
                                                        attention_bias=True, rope_theta=500.0, **llama), "float16",
                                            "10GB"),
        "qwen2, sharded": (Qwen2Config(num_key_value_heads=1, **llama), "float32", "60KB"),
    }


def loss_of(folder, samples):
    """Mean loss in nats of the samples' predictions."""
    import torch
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32)
    model.eval()
    total = 0.0
    with torch.no_grad():
        for sample in samples:
            tokens = torch.tensor(sample)
            logits = model(tokens[None, :-1]).logits[0].double()
            total += float(torch.nn.functional.cross_entropy(logits, tokens[1:]))
    return total / len(samples)


def check(name, config, dtype, shard, folder, tokens):
    import torch
    from transformers import AutoModelForCausalLM
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():  # Norms of 1 and biases of 0 would hide mistakes.
            parameter += 0.05 * torch.randn_like(parameter)
    source = os.path.join(folder, "source")
    model.to(getattr(torch, dtype)).save_pretrained(source, max_shard_size=shard, safe_serialization=True)
    job = {
        "model": {"hugging_face_folder": source},
        "data": {"files": [os.path.join(os.path.dirname(folder), "tokens")], "format": "TOKENS_U16", "sequence_length": LENGTH,
                 "order": "SEQUENTIAL", "stride": LENGTH, "held_out_fraction": HELD_OUT},
        "batch": {"global_batch_size": BATCH, "micro_batch_size": 2},
        "schedule": {"max_steps": 5, "peak_learning_rate": 1e-3, "evaluate_every_steps": 5},
        "output_directory": os.path.join(folder, "out"),
    }
    path = os.path.join(folder, "job.json")
    with open(path, "w") as f:
        json.dump(job, f)
    metrics = os.path.join(folder, "metrics.csv")
    subprocess.run([os.path.join(TOP, "bazel-bin/cli/lockstep"), "run", path, "--workers", "2", "--metrics", metrics],
                   check=True, stdout=subprocess.DEVNULL)
    with open(metrics) as f:
        rows = [r for r in csv.DictReader(f) if r["rank"] == "0"]
    first = [tokens[i * LENGTH:i * LENGTH + LENGTH + 1] for i in range(BATCH)]
    held = tokens[TOKENS - round(TOKENS * HELD_OUT):]
    held = [held[i:i + LENGTH + 1] for i in range(0, len(held) - LENGTH, LENGTH)]
    ok = True
    trained = loss_of(os.path.join(folder, "out/model"), held)
    for what, ours, theirs in (("first step", float(rows[0]["loss_nats"]), loss_of(source, first)),
                               ("held out, trained", float(rows[-1]["held_out_loss_nats"]), trained)):
        good = abs(ours - theirs) <= TOLERANCE
        ok = ok and good
        print(f"{'ok  ' if good else 'FAIL'} {name}: {what}: lockstep {ours:.7f}, transformers {theirs:.7f}")
    return ok


def main():
    try:
        import torch  # noqa: F401
        import transformers
    except ImportError as e:
        sys.exit(f"error: {e}; see the head of this file")
    transformers.logging.set_verbosity_error()
    subprocess.run(["bazel", "build", "--noshow_progress", "--ui_event_filters=-info", "//cli:lockstep",
                    "//coordinator:lockstep-coordinator", "//worker:lockstep-worker"], check=True, cwd=TOP)
    rng = random.Random(3)
    tokens = [rng.randrange(VOCABULARY) for _ in range(TOKENS)]
    ok = True
    with tempfile.TemporaryDirectory(prefix="lockstep-compare-") as folder:
        with open(os.path.join(folder, "tokens"), "wb") as f:
            f.write(b"".join(t.to_bytes(2, "little") for t in tokens))
        for i, (name, (config, dtype, shard)) in enumerate(configs().items()):
            one = os.path.join(folder, str(i))
            os.mkdir(one)
            ok = check(name, config, dtype, shard, one, tokens) and ok
    sys.exit(not ok)


if __name__ == "__main__":
    main()
