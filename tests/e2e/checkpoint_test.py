"""Checkpoints: a job goes on from the newest one, wherever and with whomever, with the same bits."""
import csv
import os
import random
import re
import shutil
import signal
import subprocess
import time
import unittest

import harness


class CheckpointTest(harness.JobTest):
    def slow_spec(self, name, steps=60, **changes):
        """A job whose steps take long enough to be killed between."""
        return self.spec(name, schedule={"max_steps": steps, "evaluate_every_steps": 1000},
                         batch={"global_batch_size": 16, "micro_batch_size": 2},
                         model={"gpt2": {"vocab_size": 256, "n_embd": 96, "n_layer": 4, "n_head": 4}},
                         **{"checkpoint": {"every_steps": 5, "keep": 3}, **changes})

    def checkpoints(self, spec):
        """Steps of the checkpoints that are there, oldest first."""
        folder = os.path.join(spec["output_directory"], "checkpoints")
        if not os.path.isdir(folder):
            return []
        return sorted(int(name[5:]) for name in os.listdir(folder) if name.startswith("step-"))

    def checkpoint_path(self, spec, step):
        return os.path.join(spec["output_directory"], "checkpoints", f"step-{step:012d}")

    def checkpoint_hash(self, spec, step):
        out = self.lockstep("hash", self.checkpoint_path(spec, step), coordinator=False).stdout
        return re.search(r"\b[0-9a-f]{64}\b", out).group(0)

    def kill_everything(self):
        for daemon in self.daemons:
            daemon.stop()
        self.daemons = []

    def first_steps(self, job):
        """Of each generation: the first step that it reported."""
        first = {}
        for row in self.metrics(job):
            generation = int(row["generation"])
            first[generation] = min(first.get(generation, 1 << 60), int(row["step"]))
        return first

    def test_everything_is_killed_at_random_moments(self):
        """LOCKSTEP_KILLS=50, as --test_env, for longer."""
        kills = int(os.environ.get("LOCKSTEP_KILLS", 6))
        steps = 10 * kills
        whole = self.slow_spec("whole", steps=steps)
        self.run_job(whole, workers=1)
        expected = self.hash_of(whole)
        state = self.checkpoint_hash(whole, steps)
        self.assertEqual(len(self.checkpoints(whole)), 3)

        rng = random.Random(5)
        spec = self.slow_spec("killed", steps=steps, parallel={"min_workers": 2, "max_workers": 3, "zero_stage": 2})
        job = None
        for i in range(kills):
            self.start_cluster(2 + i % 2)
            job = job or self.submit(spec)
            step = self.step_count(job)
            self.await_step(job, min(step + rng.randint(4, 14), steps - 2))
            time.sleep(rng.uniform(0, 0.2))
            self.kill_everything()
        self.start_cluster(3)
        done = self.await_state(job, "COMPLETED")
        self.assertEqual(self.hash_of(spec), expected)
        self.assertEqual(self.checkpoint_hash(spec, steps), state)
        self.assertEqual(int(done["progress"]["checkpoint_step_count"]), steps)
        self.assertGreater(max(self.first_steps(job).values()), 4)
        ledger = self.lockstep("ledger", job).stdout
        self.assertIn(f"{steps} steps of 16 sequences, each once", ledger)
        rows = done["ledger"]
        self.assertGreater(len(rows), 1)
        self.assertEqual([int(r["first_step"]) for r in rows], [0] + [int(r["end_step"]) for r in rows[:-1]])
        table = self.lockstep("checkpoints", job).stdout
        self.assertIn("whole", table)
        self.assertIn(self.checkpoint_path(spec, steps), table)

    def test_a_lost_worker_costs_the_steps_since_the_last_checkpoint(self):
        _, workers = self.start_cluster(3)
        spec = self.slow_spec("lost", parallel={"min_workers": 2, "max_workers": 3, "zero_stage": 3})
        job = self.submit(spec)
        harness.wait_for("a checkpoint", lambda: self.checkpoints(spec))
        workers[1].kill()
        self.await_state(job, "COMPLETED")
        first = self.first_steps(job)
        self.assertGreaterEqual(first[2], 5)
        whole = self.slow_spec("undisturbed")
        self.run_job(whole, workers=1)
        self.assertEqual(self.hash_of(spec), self.hash_of(whole))

    def test_what_is_torn_or_tampered_with_is_passed_over_by_name(self):
        self.start_cluster(2)
        other = self.slow_spec("other", steps=10, parallel={"min_workers": 2}, numerics={"seed": 8})
        self.await_state(self.submit(other), "COMPLETED")
        foreign = os.path.join(self.checkpoint_path(other, 10), "manifest.json")
        spec = self.slow_spec("torn", steps=1000, parallel={"min_workers": 2}, checkpoint={"every_steps": 5, "keep": 6})
        job = self.submit(spec)
        harness.wait_for("checkpoints", lambda: len(self.checkpoints(spec)) >= 6)
        self.kill_everything()
        steps = self.checkpoints(spec)

        def flip_a_bit(path):
            with open(path, "r+b") as f:
                f.seek(-1000, os.SEEK_END)
                byte = f.read(1)
                f.seek(-1000, os.SEEK_END)
                f.write(bytes([byte[0] ^ 4]))

        faults = [("part-00000-of-00002.safetensors", flip_a_bit),
                  ("part-00001-of-00002.safetensors", os.unlink),
                  ("part-00001-of-00002.safetensors", lambda path: os.truncate(path, os.path.getsize(path) - 1)),
                  ("manifest.json", lambda path: os.truncate(path, os.path.getsize(path) // 2)),
                  # Its parts are this job's.
                  ("manifest.json", lambda path: shutil.copy(foreign, path))]
        for step, (name, fault) in zip(reversed(steps), faults):
            fault(os.path.join(self.checkpoint_path(spec, step), name))
            done = self.lockstep("verify", self.checkpoint_path(spec, step), coordinator=False, expect=None)
            self.assertIn(done.returncode, (harness.FAILURE, harness.USAGE), done.stdout)
            self.assertIn(self.checkpoint_path(spec, step), done.stderr)
        whole = steps[-1 - len(faults)]
        self.start_coordinator()
        table = self.lockstep("checkpoints", job).stdout
        self.assertEqual(table.count("not whole"), 3, table)  # By their sizes: contents are for verify.
        self.assertIn(os.path.join(self.checkpoint_path(spec, steps[-3]), faults[2][0]), table)
        self.kill_everything()
        self.assertIn("whole", self.lockstep("verify", self.checkpoint_path(spec, whole), coordinator=False).stdout)

        _, workers = self.start_cluster(2)
        harness.wait_for("the second generation", lambda: len(self.first_steps(job)) == 2)
        self.assertEqual(self.first_steps(job)[2], whole)
        warnings = [line for worker in workers for line in worker.log().splitlines()
                    if "a checkpoint is passed over" in line]
        for step, (name, _) in zip(reversed(steps), faults):
            self.assertTrue(any(self.checkpoint_path(spec, step) in w for w in warnings), (step, name, warnings))
        # Who looks at the job alone is told too, of the newest.
        harness.wait_for("the warning", lambda: any(
            "a checkpoint is passed over" in s.get("checkpoint_failure", "") and
            self.checkpoint_path(spec, steps[-1]) in s["checkpoint_failure"] for s in self.metrics(job)))
        # Their names are taken when their turn comes again.
        harness.wait_for("them to be replaced", lambda: self.checkpoints(spec)[-1] > steps[-1])
        self.lockstep("cancel", job)
        reached = self.step_count(job)
        self.assertIn(f"{reached} steps of 16 sequences, each once", self.lockstep("ledger", job).stdout)

    def failure_of(self, job):
        return self.get(job).get("progress", {}).get("checkpoint_failure", "")

    def test_a_full_disk_costs_the_job_nothing(self):
        disk = self.small_disk("disk", "64m")

        def fill():
            with open(os.path.join(disk, "filler"), "wb", buffering=0) as f:
                with self.assertRaises(OSError):
                    while True:
                        f.write(bytes(1 << 20))
        self.check_that_training_goes_on(os.path.join(disk, "out"), fill, lambda: os.unlink(os.path.join(disk, "filler")),
                                         "the disk has 0 free|No space left on device")

    def test_a_read_only_folder_costs_the_job_nothing(self):
        folder = self.path("out-read-only", "checkpoints")

        def protect():  # Also from root.
            if subprocess.run(["chattr", "+i", folder], capture_output=True).returncode != 0:
                self.skipTest("making a folder immutable needs root and a file system that can")
            self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
            self.addCleanup(subprocess.run, ["chattr", "-i", folder], capture_output=True)
        self.check_that_training_goes_on(self.path("out-read-only"), protect,
                                         lambda: subprocess.run(["chattr", "-i", folder], check=True),
                                         "Operation not permitted")

    def check_that_training_goes_on(self, output, break_it, mend_it, expected):
        """While checkpoints cannot be written, and that the next one can."""
        self.start_cluster(2)
        spec = self.slow_spec("broken", steps=400, parallel={"min_workers": 2, "zero_stage": 2}, output_directory=output)
        job = self.submit(spec)
        harness.wait_for("a checkpoint", lambda: self.checkpoints(spec))
        break_it()
        harness.wait_for("the job to say so", lambda: self.failure_of(job))
        self.assertRegex(self.failure_of(job), f"^workers/w[01]: checkpoint of .* steps: .*({expected})")
        saved = self.checkpoints(spec)
        self.await_step(job, self.step_count(job) + 20)
        self.assertLessEqual(set(self.checkpoints(spec)), set(saved))
        self.assertIn("checkpoint of", self.lockstep("get", job).stdout)
        mend_it()
        harness.wait_for("the next checkpoint", lambda: not self.failure_of(job))
        self.assertGreater(self.checkpoints(spec)[-1], saved[-1])

        done = self.await_state(job, "COMPLETED")
        self.assertEqual(int(done["progress"]["checkpoint_step_count"]), 400)
        self.assertFalse(done["progress"].get("checkpoint_failure"))
        self.assertEqual(int(done["generation"]), 1)
        self.lockstep("verify", self.checkpoint_path(spec, 400), coordinator=False)
        self.assertEqual(sorted(os.listdir(output)), ["checkpoints", "model"])

    def test_data_that_were_replaced_are_refused_by_name(self):
        self.start_cluster(1)
        spec = self.slow_spec("replaced", steps=1000)
        job = self.submit(spec)
        harness.wait_for("a checkpoint", lambda: self.checkpoints(spec))
        self.kill_everything()
        with open(self.data, "rb") as f:
            content = f.read()
        self.write("text.txt", content[:20_000] + b"#" + content[20_001:])

        self.start_cluster(1)
        failed = self.await_state(job, "FAILED")
        self.assertIn("data", failed["state_reason"])
        self.assertIn(self.checkpoint_path(spec, self.checkpoints(spec)[-1]), failed["state_reason"])
        self.assertTrue(self.checkpoints(spec))

    def test_checkpoints_of_another_job_are_refused_by_name(self):
        spec = self.slow_spec("first", steps=10)
        self.run_job(spec, workers=1)
        os.rename(os.path.join(spec["output_directory"], "model"), self.path("moved"))
        done = self.run_job(dict(spec, numerics={"seed": 8}), workers=1, expect=harness.JOB_FAILED)
        self.assertIn("and not of this job", done.stdout + done.stderr)

    def test_a_run_that_is_run_again_goes_on(self):
        whole = self.slow_spec("whole", steps=150)
        self.run_job(whole, workers=1)
        spec = dict(whole, output_directory=self.path("out-again"))
        run = harness.Daemon("run", [harness.LOCKSTEP, "run", self.job_file(spec), "--workers", "2", "--threads", "1"],
                             self.path("run.log"))
        self.daemons.append(run)
        harness.wait_for("a checkpoint", lambda: self.checkpoints(spec))
        run.kill(signal.SIGINT)
        run.wait()
        self.assertNotIn(150, self.checkpoints(spec))
        self.run_job(spec, "--metrics", self.path("again.csv"), workers=2)
        with open(self.path("again.csv")) as f:
            first = min(int(row["step"]) for row in csv.DictReader(f))
        self.assertGreaterEqual(first, 5)
        self.assertEqual(self.hash_of(spec), self.hash_of(whole))

    def test_an_exported_checkpoint_is_the_model(self):
        spec = self.slow_spec("exported", steps=10, parallel={"min_workers": 3, "zero_stage": 3})
        spec["model"] = {"llama": {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 48,
                                   "num_hidden_layers": 2, "num_attention_heads": 4}}
        self.run_job(spec, workers=3)
        out = self.path("exported-model")
        self.lockstep("export", self.checkpoint_path(spec, 10), out, coordinator=False)
        exported = self.lockstep("hash", out, coordinator=False).stdout
        self.assertEqual(exported.split()[0], self.hash_of(spec))
        again = self.lockstep("export", self.checkpoint_path(spec, 10), out, coordinator=False, expect=harness.USAGE)
        self.assertIn("is there already; give a folder that is not", again.stderr)

    def test_there_are_none_where_none_are_asked_for(self):
        spec = self.slow_spec("none", steps=10, checkpoint={"every_minutes": 0})
        self.run_job(spec, workers=1)
        self.assertEqual(self.checkpoints(spec), [])


if __name__ == "__main__":
    harness.main()
