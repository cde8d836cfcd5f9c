"""What tests of whole jobs need: daemons on free ports, jobs, and ways to break them.

Everything lives below one temporary folder and dies with the test, however that ends.
"""
import contextlib
import ctypes
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

TOP = os.getcwd()  # Bazel starts tests at the top of the tree.
LOCKSTEP = os.path.join(TOP, "cli/lockstep")
COORDINATOR = os.path.join(TOP, "coordinator/lockstep-coordinator")
WORKER = os.path.join(TOP, "worker/lockstep-worker")

# Exit codes of `lockstep`, as its --help lists them.
OK, FAILURE, USAGE, JOB_FAILED, JOB_CANCELLED, UNREACHABLE, NOT_FOUND = range(7)

# A bound for what must happen, generous: a machine may be busy with other tests.
PATIENCE_S = 120


def _die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def wait_for(what, condition, patience_s=PATIENCE_S):
    """Returns the first true value of condition(); fails when there is none in time."""
    end = time.monotonic() + patience_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {patience_s} s in vain for {what}")
        time.sleep(0.02)


def sample_text(byte_count, seed=1):
    """Text that a model can learn a little of, the same in every run."""
    words = "in the beginning was a word and light shone over deep waters of old days then men said let us go".split()
    rng = random.Random(seed)
    out = []
    size = 0
    while size < byte_count:
        sentence = " ".join(rng.choice(words) for _ in range(rng.randint(4, 9))).capitalize() + ".\n"
        out.append(sentence)
        size += len(sentence)
    return "".join(out)[:byte_count]


class Daemon:
    """A process with its log in a file."""

    def __init__(self, name, arguments, log_path, env=None):
        self.name = name
        self.log_path = log_path
        self._log = open(log_path, "ab")
        self.process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
                                        preexec_fn=_die_with_parent, start_new_session=True,
                                        env={**os.environ, **(env or {})})

    @property
    def pid(self):
        return self.process.pid

    def log(self):
        with open(self.log_path, errors="replace") as f:
            return f.read()

    def kill(self, sig=signal.SIGKILL):
        if self.process.poll() is None:
            self.process.send_signal(sig)

    def wait(self, patience_s=PATIENCE_S):
        return self.process.wait(patience_s)

    def stop(self):
        self.kill(signal.SIGKILL)
        self.process.wait()
        self._log.close()

    def children(self):
        """Process ids of its children."""
        with contextlib.suppress(FileNotFoundError):
            with open(f"/proc/{self.pid}/task/{self.pid}/children") as f:
                direct = f.read().split()
            found = set(map(int, direct))
            for task in os.listdir(f"/proc/{self.pid}/task"):
                with contextlib.suppress(FileNotFoundError):
                    with open(f"/proc/{self.pid}/task/{task}/children") as f:
                        found.update(map(int, f.read().split()))
            return sorted(found)
        return []


class JobTest(unittest.TestCase):
    """A test with a folder, a small data set and as many daemons as it starts."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="lockstep-e2e-", dir=os.environ.get("TEST_TMPDIR"))
        self.daemons = []
        self.mounts = []
        self.port = None
        self.data = self.write("text.txt", sample_text(40_000))

    def tearDown(self):
        failed = any(error for _, error in getattr(self._outcome, "errors", [])) or (
            self._outcome.result is not None and any(
                test is self for test, _ in self._outcome.result.errors + self._outcome.result.failures))
        for daemon in reversed(self.daemons):
            daemon.stop()
        if failed:
            for daemon in self.daemons:
                print(f"---- log of {daemon.name}\n{daemon.log()[-4000:]}", file=sys.stderr)
        for path in self.mounts:
            subprocess.run(["umount", "--lazy", path], check=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- Files and jobs.

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def small_disk(self, name, size):
        """Mounts one, of at most `size` (as "64k"), until the test ends."""
        path = self.path(name)
        os.mkdir(path)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], capture_output=True)
        if mounted.returncode != 0:
            self.skipTest("mounting a small disk needs root")
        self.mounts.append(path)
        return path

    def write(self, name, content):
        mode = "wb" if isinstance(content, bytes) else "w"
        with open(self.path(name), mode) as f:
            f.write(content)
        return self.path(name)

    def spec(self, name, **changes):
        """A small job as the dictionary of its file; `changes` replace parts: section={field: value}."""
        spec = {
            "display_name": name,
            "model": {"gpt2": {"vocab_size": 256, "n_embd": 32, "n_layer": 2, "n_head": 2}},
            "data": {"files": [self.data], "format": "BYTES", "sequence_length": 32, "held_out_fraction": 0.1,
                     "held_out_samples_max": 20},
            "batch": {"global_batch_size": 8, "micro_batch_size": 1},
            "schedule": {"max_steps": 12, "warmup_steps": 3, "peak_learning_rate": 0.003,
                         "evaluate_every_steps": 5},
            "numerics": {"seed": 7},
            "parallel": {"min_workers": 1},
            "output_directory": self.path("out-" + name),
        }
        for section, fields in changes.items():
            if isinstance(fields, dict) and isinstance(spec.get(section), dict):
                spec[section] = {**spec[section], **fields}
            else:
                spec[section] = fields
        return spec

    def job_file(self, spec):
        return self.write(spec["display_name"] + ".json", json.dumps(spec, indent=1))

    # ---- Daemons.

    def start_coordinator(self, *flags, store="store", port=0):
        port_file = self.path("port")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(port_file)
        daemon = Daemon("coordinator", [COORDINATOR, "--listen", f"127.0.0.1:{port}", "--store", self.path(store),
                                        "--port-file", port_file, *flags], self.path("coordinator.log"))
        self.daemons.append(daemon)

        def served():
            if daemon.process.poll() is not None:
                raise AssertionError(f"the coordinator ended: {daemon.log()}")
            with contextlib.suppress(FileNotFoundError, ValueError):
                with open(port_file) as f:
                    return int(f.read())
        self.port = wait_for("the coordinator to serve", served)
        return daemon

    def start_worker(self, name, *flags, threads=1):
        daemon = Daemon(name, [WORKER, "--coordinator", f"127.0.0.1:{self.port}", "--name", name, "--device", "cpu",
                               "--threads", str(threads), *flags], self.path(name + ".log"))
        self.daemons.append(daemon)
        return daemon

    def start_cluster(self, worker_count, *flags, threads=1):
        coordinator = self.start_coordinator(*flags)
        workers = [self.start_worker(f"w{i}", threads=threads) for i in range(worker_count)]
        self.await_workers(worker_count)
        return coordinator, workers

    def await_workers(self, count):
        wait_for(f"{count} idle workers",
                 lambda: sum(w.get("state") == "IDLE" for w in self.workers()) >= count)

    # ---- The command.

    def lockstep(self, *arguments, expect=OK, coordinator=True, patience_s=PATIENCE_S):
        """Runs `lockstep`, checks its exit code (None: any) and returns the finished process."""
        command = [LOCKSTEP, *arguments]
        if coordinator and self.port is not None:
            command += ["--coordinator", f"127.0.0.1:{self.port}"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=patience_s)
        if expect is not None:
            self.assertEqual(done.returncode, expect,
                             f"{' '.join(command)}\nstdout: {done.stdout}\nstderr: {done.stderr}")
        return done

    def submit(self, spec):
        """Submits and returns the job's name."""
        out = self.lockstep("submit", self.job_file(spec)).stdout
        return re.search(r"jobs/[a-z0-9.-]+", out).group(0)

    def get(self, job):
        return json.loads(self.lockstep("get", job, "--json").stdout)

    def workers(self):
        out = self.lockstep("workers", "--json", expect=None)
        if out.returncode != 0:
            return []
        return json.loads(out.stdout).get("workers", [])

    def metrics(self, job):
        lines = self.lockstep("metrics", job, "--json").stdout.splitlines()
        return [json.loads(line) for line in lines if line]

    def await_state(self, job, *states, patience_s=PATIENCE_S):
        """Waits for one of the states and returns the job."""
        seen = {}

        def reached():
            seen.update(self.get(job))
            if seen["state"] in ("COMPLETED", "FAILED", "CANCELLED") and seen["state"] not in states:
                raise AssertionError(f"{job} is {seen['state']}: {seen.get('state_reason')}")
            return seen["state"] in states
        wait_for(f"{job} to be {' or '.join(states)}", reached, patience_s)
        return seen

    def step_count(self, job):
        return int(self.get(job).get("progress", {}).get("step_count", 0))

    def await_step(self, job, step_count):
        wait_for(f"step {step_count} of {job}", lambda: self.step_count(job) >= step_count)

    def run_job(self, spec, *flags, workers=1, threads=1, expect=OK):
        """`lockstep run`: a coordinator and workers of its own."""
        return self.lockstep("run", self.job_file(spec), "--workers", str(workers), "--threads", str(threads), *flags,
                             expect=expect, coordinator=False)

    def hash_of(self, spec):
        """SHA-256 of a finished job's weights."""
        out = self.lockstep("hash", os.path.join(spec["output_directory"], "model"), coordinator=False).stdout
        return re.search(r"\b[0-9a-f]{64}\b", out).group(0)


def main():
    unittest.main(verbosity=2)
