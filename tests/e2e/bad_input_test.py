"""Bad input: one clear error each, the right exit code, and nothing left behind."""
import json
import os
import shutil
import socket
import struct
import subprocess
import unittest

import harness
from harness import FAILURE, JOB_FAILED, NOT_FOUND, UNREACHABLE, USAGE

REFERENCE = os.path.join(harness.TOP, "tests/reference/gpt2_pretrain")


class BadInputTest(harness.JobTest):
    def setUp(self):
        super().setUp()
        self.start_cluster(1)

    def assert_says(self, done, *parts):
        """One error on standard error that says all of `parts`."""
        errors = [line for line in done.stderr.splitlines() if line.startswith("lockstep: error:")]
        self.assertTrue(errors, done.stderr)
        for part in parts:
            self.assertIn(part, done.stderr)

    def refuse(self, spec_or_text, *parts, name="bad.yaml", expect=USAGE):
        """Refused at submission: no job comes into being."""
        text = spec_or_text if isinstance(spec_or_text, str) else json.dumps(spec_or_text)
        before = self.lockstep("list", "--json").stdout
        done = self.lockstep("submit", self.write(name, text), expect=expect)
        self.assert_says(done, *parts)
        self.assertEqual(self.lockstep("list", "--json").stdout, before)
        return done

    def fail_in_forming(self, spec, *parts):
        """Accepted, and failed before it ran; the worker is free again, and nothing is left."""
        there = os.path.exists(spec["output_directory"])
        done = self.lockstep("submit", self.job_file(spec), "--watch", expect=JOB_FAILED)
        self.assert_says(done, *parts)
        job = json.loads(self.lockstep("get", done.stdout.split()[0], "--json").stdout)
        self.assertNotIn("start_time", job)
        if not there:
            self.assertFalse(os.path.exists(spec["output_directory"]))
        self.await_workers(1)

    # ---- The job file.

    def test_unknown_and_misplaced_fields(self):
        spec = self.spec("bad")
        spec["batch"]["global_batch"] = spec["batch"].pop("global_batch_size")
        self.refuse(json.dumps(spec, indent=1), "bad.yaml:", "batch.global_batch", "global_batch_size")
        spec = self.spec("bad", micro_batch_size=1)
        self.refuse(json.dumps(spec, indent=1), "micro_batch_size", "batch")

    def test_wrong_types_and_files(self):
        spec = self.spec("bad", batch={"global_batch_size": "many"})
        self.refuse(json.dumps(spec, indent=1), "bad.yaml:", "batch.global_batch_size", "many")
        self.refuse("", "empty")
        self.refuse("a: [1, 2", "bad.yaml:")
        done = self.lockstep("submit", self.path("nowhere.yaml"), expect=USAGE)
        self.assert_says(done, "nowhere.yaml")

    def test_a_batch_that_is_no_multiple_and_all_faults_at_once(self):
        spec = self.spec("bad", batch={"global_batch_size": 8, "micro_batch_size": 3},
                         schedule={"peak_learning_rate": -1})
        self.refuse(spec, "batch.global_batch_size", "multiple", "micro_batch_size=3", "schedule.peak_learning_rate")

    def test_what_is_not_there_yet_is_refused_by_name(self):
        self.refuse(self.spec("bad", numerics={"reduction": "REDUCTION_FLOAT32"}), "numerics.reduction")

    # ---- The data.

    def test_data_that_is_missing_unreadable_empty_or_too_short(self):
        missing = self.path("missing.txt")
        self.fail_in_forming(self.spec("missing", data={"files": [missing]}), "w0", missing, "No such file")
        self.fail_in_forming(self.spec("folder", data={"files": [self.folder]}), "w0", self.folder, "directory")
        empty = self.write("empty.txt", "")
        self.fail_in_forming(self.spec("empty", data={"files": [empty]}), empty, "empty")
        short = self.write("short.txt", "abc")
        self.fail_in_forming(self.spec("short", data={"files": [short], "held_out_fraction": 0}), "3", "33")
        odd = self.write("odd.bin", b"\1\0\2")
        self.fail_in_forming(self.spec("odd", data={"files": [odd], "format": "TOKENS_U16"}), odd, "multiple")

    @unittest.skipIf(os.geteuid() == 0, "root reads everything")
    def test_data_without_permission(self):
        secret = self.write("secret.txt", harness.sample_text(5000))
        os.chmod(secret, 0)
        self.fail_in_forming(self.spec("secret", data={"files": [secret]}), secret, "Permission denied")

    def test_a_token_outside_the_vocabulary_names_its_place(self):
        tokens = list(range(200)) * 40
        tokens[5000] = 60000
        path = self.write("tokens.bin", struct.pack(f"<{len(tokens)}H", *tokens))
        spec = self.spec("token", data={"files": [path], "format": "TOKENS_U16", "held_out_fraction": 0},
                         schedule={"max_steps": 100})
        self.fail_in_forming(spec, path, "60000", "10000", "256")  # Byte 10,000 of the file; vocabulary 256.

    # ---- The model.

    def model_job(self, name, folder):
        spec = self.spec(name)
        spec["model"] = {"hugging_face_folder": folder}
        return spec

    def copy_model(self, name):
        folder = self.path(name)
        os.mkdir(folder)
        for file in ("config.json", "model.safetensors"):
            shutil.copy(os.path.join(REFERENCE, file), folder)
        os.chmod(folder, 0o755)
        for file in os.listdir(folder):
            os.chmod(os.path.join(folder, file), 0o644)
        return folder

    def test_a_truncated_model(self):
        folder = self.copy_model("truncated")
        weights = os.path.join(folder, "model.safetensors")
        os.truncate(weights, os.path.getsize(weights) - 100)
        self.fail_in_forming(self.model_job("truncated-job", folder), weights)

    def test_a_model_that_overflows(self):
        folder = self.copy_model("overflows")
        weights = os.path.join(folder, "model.safetensors")
        with open(weights, "rb") as f:
            data = bytearray(f.read())
        length, = struct.unpack("<Q", data[:8])
        begin, end = json.loads(data[8:8 + length])["transformer.ln_f.weight"]["data_offsets"]
        data[8 + length + begin:8 + length + end] = struct.pack("<f", 3e38) * ((end - begin) // 4)
        with open(weights, "wb") as f:
            f.write(data)

        def fail(name, numerics, *parts):
            spec = self.model_job(name, folder)
            spec["schedule"]["max_steps"] = 100
            spec["numerics"] = numerics
            done = self.lockstep("submit", self.job_file(spec), "--watch", expect=JOB_FAILED)
            self.assert_says(done, *parts)
            return self.metrics(done.stdout.split()[0])

        fail("stops", {"non_finite": "STOP"}, "step 0", "transformer.", "is not finite", "numerics.non_finite")
        rows = fail("skips", {"skipped_steps_max": 3}, "step 2", "the 2 steps before it were skipped too")
        self.assertEqual([row["skipped"] for row in rows], [True, True])
        self.assertIn("is not finite", rows[0]["skip_reason"])

    def test_a_run_that_fails_leaves_nothing_unfinished(self):
        for i in range(3):
            spec = self.spec(f"stopped{i}", numerics={"non_finite": "STOP"}, optimizer={"clip_norm": 0},
                             schedule={"peak_learning_rate": 10, "warmup_steps": 0, "max_steps": 1000},
                             parallel={"min_workers": 2})
            self.run_job(spec, workers=2, expect=harness.JOB_FAILED)
            self.assertFalse(os.path.exists(spec["output_directory"]) and os.listdir(spec["output_directory"]))

    def test_a_tensor_of_the_wrong_shape(self):
        folder = self.copy_model("shape")
        weights = os.path.join(folder, "model.safetensors")
        with open(weights, "rb") as f:
            data = f.read()
        # As many elements, transposed.
        self.assertIn(b'"shape":[64,192]', data)
        with open(weights, "wb") as f:
            f.write(data.replace(b'"shape":[64,192]', b'"shape":[192,64]', 1))
        self.fail_in_forming(self.model_job("shape-job", folder), "c_attn.weight", "[64, 192]", "[192, 64]")

    def test_a_model_that_cannot_be_trained_exactly(self):
        folder = self.copy_model("config")
        path = os.path.join(folder, "config.json")
        with open(path) as f:
            config = json.load(f)
        with open(path, "w") as f:
            json.dump({**config, "activation_function": "relu"}, f)
        self.fail_in_forming(self.model_job("config-job", folder), "activation_function", "relu")
        self.fail_in_forming(self.model_job("nowhere-job", self.path("nowhere")), self.path("nowhere"))

    # ---- The output.

    def test_an_output_that_cannot_be_written(self):
        file = self.write("file", "")
        self.fail_in_forming(self.spec("file", output_directory=os.path.join(file, "out")), "output_directory", file)
        taken = self.path("taken")
        os.makedirs(os.path.join(taken, "model"))
        self.fail_in_forming(self.spec("taken-job", output_directory=taken), "output_directory", os.path.join(taken, "model"))
        self.assertEqual(os.listdir(taken), ["model"])
        self.fail_in_forming(self.spec("proc", output_directory="/proc/lockstep/out"), "output_directory", "/proc/lockstep")

    def test_a_full_output_disk_is_noticed_before_the_first_step(self):
        small = self.small_disk("small", "64k")
        spec = self.spec("full", output_directory=os.path.join(small, "out"), schedule={"max_steps": 10 ** 6})
        self.fail_in_forming(spec, "output_directory", "the disk has", "free")
        self.assertEqual(os.listdir(small), [])

    def test_two_unfinished_jobs_with_one_output(self):
        spec = self.spec("first", parallel={"min_workers": 2})
        self.submit(spec)
        self.refuse({**spec, "display_name": "second"}, "output_directory", expect=None)

    # ---- The service.

    def test_unknown_jobs(self):
        for command in (["get"], ["watch"], ["cancel"], ["metrics"], ["stragglers"]):
            self.assert_says(self.lockstep(*command, "jobs/j-nothing", expect=NOT_FOUND), "j-nothing")

    def test_models_that_are_not_there(self):
        for command in (["hash"], ["sample"]):
            done = self.lockstep(*command, self.path("nowhere"), coordinator=False, expect=USAGE)
            self.assert_says(done, self.path("nowhere"))

    def test_a_coordinator_that_is_not_there(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        done = self.lockstep("list", "--coordinator", f"127.0.0.1:{port}", "--timeout", "1s", coordinator=False,
                             expect=UNREACHABLE)
        self.assert_says(done, str(port))

    def run_daemon(self, *command):
        return subprocess.run(command, capture_output=True, text=True, timeout=harness.PATIENCE_S)

    def test_a_port_that_is_taken(self):
        done = self.run_daemon(harness.COORDINATOR, "--listen", f"127.0.0.1:{self.port}", "--store", self.path("other"))
        self.assertEqual(done.returncode, FAILURE)
        self.assertIn(str(self.port), done.stderr)

    def test_a_store_that_is_taken(self):
        done = self.run_daemon(harness.COORDINATOR, "--listen", "127.0.0.1:0", "--store", self.path("store"))
        self.assertEqual(done.returncode, FAILURE)
        self.assertIn(self.path("store"), done.stderr)
        self.assertIn(str(self.daemons[0].pid), done.stderr)

    def test_a_worker_name_that_is_taken(self):
        done = self.run_daemon(harness.WORKER, "--coordinator", f"127.0.0.1:{self.port}", "--name", "w0",
                               "--name-taken-patience", "1s")
        self.assertEqual(done.returncode, FAILURE)
        self.assertIn("w0", done.stderr)
        self.assertIn(str(self.daemons[1].pid), done.stderr)
        # The first one is not disturbed.
        self.await_workers(1)

    def test_binding_off_loopback_needs_insecure(self):
        done = self.run_daemon(harness.COORDINATOR, "--listen", "0.0.0.0:0", "--store", self.path("other"))
        self.assertEqual(done.returncode, USAGE)
        self.assertIn("--insecure", done.stderr)
        done = self.run_daemon(harness.WORKER, "--coordinator", "10.255.255.1:7600", "--name", "w9")
        self.assertEqual(done.returncode, USAGE)
        self.assertIn("--insecure", done.stderr)

    def test_a_worker_that_nobody_could_reach(self):
        for host in ("192.0.2.7", "nohost.invalid"):
            done = self.run_daemon(harness.WORKER, "--coordinator", f"127.0.0.1:{self.port}", "--name", "w9",
                                   "--listen-host", host, "--insecure")
            self.assertEqual(done.returncode, USAGE)
            self.assertIn("--listen-host: " + host, done.stderr)

    def test_wrong_command_lines(self):
        for command in (["submt"], ["submit"], ["list", "--limit", "x"], ["run", self.data, "--workers", "0"]):
            self.assert_says(self.lockstep(*command, coordinator=False, expect=USAGE))


if __name__ == "__main__":
    unittest.main(verbosity=2)
