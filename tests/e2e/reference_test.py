"""Eight steps of tiny models against PyTorch in float64, as ordinary jobs."""
import array
import json
import math
import os
import struct
import unittest

import harness

CASES = os.path.join(harness.TOP, "tests/reference")

# What float32 may differ by (PyTorch itself: about 1e-6).
TOLERANCE = 2e-5


def read_safetensors(path):
    with open(path, "rb") as f:
        data = f.read()
    length, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        assert entry["dtype"] == "F32", name
        values = array.array("f")
        values.frombytes(data[8 + length + begin:8 + length + end])
        tensors[name] = (entry["shape"], values)
    return tensors


def relative_error(got, want):
    difference = math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(got, want)))
    return difference / max(math.sqrt(math.fsum(b * b for b in want)), 1e-6)


class ReferenceTest(harness.JobTest):
    def check(self, name, workers, micro_batch_size, masked=False, zero_stage=0):
        case = os.path.join(CASES, name)
        with open(os.path.join(case, "expected.json")) as f:
            expected = json.load(f)
        optimizer = expected["optimizer"]
        steps = expected["steps"]
        spec = self.spec(f"{name}-{workers}-{micro_batch_size}")
        spec["model"] = {"hugging_face_folder": case}
        # One row of tokens.i32 is a sample; step s trains on the s-th group of rows.
        spec["data"] = {"files": [os.path.join(case, "tokens.i32")], "format": "TOKENS_U32",
                        "sequence_length": expected["row_tokens"] - 1, "stride": expected["row_tokens"],
                        "order": "SEQUENTIAL"}
        if masked:
            spec["data"]["mask_files"] = [os.path.join(case, "mask.u8")]
        spec["batch"] = {"global_batch_size": expected["rows"], "micro_batch_size": micro_batch_size}
        spec["schedule"] = {"max_steps": steps, "warmup_steps": optimizer["warmup_steps"], "decay": "COSINE",
                            "peak_learning_rate": optimizer["peak_lr"],
                            "min_learning_rate": optimizer["peak_lr"] * optimizer["min_ratio"]}
        spec["optimizer"] = {"beta1": optimizer["beta1"], "beta2": optimizer["beta2"], "epsilon": optimizer["eps"],
                             "weight_decay": optimizer["weight_decay"], "clip_norm": optimizer["clip"]}
        spec["parallel"] = {"min_workers": workers, "zero_stage": zero_stage}
        self.start_cluster(workers)

        job = self.submit(spec)
        self.await_state(job, "COMPLETED")

        rows = [r for r in self.metrics(job) if int(r.get("rank", 0)) == 0]
        self.assertEqual(len(rows), steps)
        for row, want in zip(rows, expected["log"]):
            step = int(row.get("step", 0))
            self.assertEqual(step, want["step"])
            self.assertAlmostEqual(row["loss"], want["loss"], delta=TOLERANCE, msg=f"loss of step {step}")
            self.assertAlmostEqual(row["gradient_norm"], want["grad_norm"], delta=TOLERANCE, msg=f"norm of step {step}")
            self.assertAlmostEqual(row["learning_rate"], want["lr"], delta=1e-12, msg=f"rate of step {step}")
            self.assertEqual(int(row["token_count"]), want["loss_tokens"])

        got = read_safetensors(os.path.join(spec["output_directory"], "model", "model.safetensors"))
        want = read_safetensors(os.path.join(case, "expected_final.safetensors"))
        self.assertEqual(got.keys(), want.keys())
        for tensor, (shape, values) in want.items():
            self.assertEqual(got[tensor][0], shape, tensor)
            self.assertLess(relative_error(got[tensor][1], values), TOLERANCE, tensor)

    def test_a_gpt2_on_one_worker(self):
        self.check("gpt2_pretrain", workers=1, micro_batch_size=8)

    def test_a_gpt2_on_three_workers_at_stage_3(self):
        self.check("gpt2_pretrain", workers=3, micro_batch_size=1, zero_stage=3)

    def test_a_gpt2_with_a_mask_on_one_worker(self):
        self.check("gpt2_sft", workers=1, micro_batch_size=8, masked=True)

    def test_a_gpt2_with_a_mask_on_three_workers_at_stage_3(self):
        self.check("gpt2_sft", workers=3, micro_batch_size=1, zero_stage=3, masked=True)

    def test_a_llama_on_one_worker(self):
        self.check("llama_pretrain", workers=1, micro_batch_size=8)

    def test_a_llama_on_three_workers_at_stage_3(self):
        self.check("llama_pretrain", workers=3, micro_batch_size=1, zero_stage=3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
