#!/usr/bin/env python3
"""Breaks the cores in many ways, one at a time; every time a test must fail.

For developers; not part of `bazel test`.  Works on a copy of the tree:

    tests/mutants/mutants.py              all of them
    tests/mutants/mutants.py lease log    those whose name has one of the words
    tests/mutants/mutants.py --list

A mutant is killed when the tests of the cores or a short simulation fail,
crash or hang.  Exit status 0 when every one is killed; 1 when one survives: a
test is missing, or the line says nothing; 2 when a mutant no longer applies or
does not compile: mend the list.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from mutations import MUTATIONS

ROOT = pathlib.Path(__file__).resolve().parents[2]

# What is compiled: the cores, and tests that see nothing else; quick ones
# first, since the order of linking is that of running.
SOURCES = [
    "coordinator/core/jobs_test.cc",
    "coordinator/core/workers_test.cc",
    "coordinator/core/generations_test.cc",
    "coordinator/core/placement_test.cc",
    "coordinator/core/restart_test.cc",
    "worker/agent/agent_core_test.cc",
    "worker/agent/agent_core_trainer_test.cc",
    "worker/agent/agent_core_property_test.cc",
    "coordinator/core/coordinator_property_test.cc",
    "tests/simulation/simulation_test.cc",
    "tests/simulation/simulation.cc",
    "coordinator/core/coordinator_fixture.cc",
    "coordinator/core/fake_shell.cc",
    "coordinator/core/coordinator.cc",
    "coordinator/core/placement.cc",
    "coordinator/core/records.cc",
    "worker/agent/agent_core.cc",
    "common/bytes_text.cc",
    "common/micro_batches.cc",
    "common/session.cc",
]
# Parsed once: most of a compilation is spent on these.
HEADERS = [
    "<algorithm>", "<deque>", "<functional>", "<map>", "<random>", "<set>",
    '"absl/status/statusor.h"', '"absl/strings/match.h"',
    '"absl/strings/str_cat.h"', '"absl/strings/str_join.h"',
    '"absl/time/time.h"', '"coordinator/core/coordinator.h"',
    '"worker/agent/agent_core.h"',
]
FLAGS = ["-std=c++20", "-O0", "-w", "-I."]
SEED_COUNT = 30  # Of simulation and random events each.
TIMEOUT_S = 300


def absl_linkopts():
    """From bazel/deps/absl.bzl, which Python can read."""
    scope = {}
    exec((ROOT / "bazel/deps/absl.bzl").read_text(), scope)
    return scope["ABSL_LINKOPTS"]


class Tree:
    """A copy of the tree with its objects."""

    def __init__(self, root):
        self.root = root
        files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True,
                               capture_output=True).stdout.decode().split("\0")
        for name in filter(None, files):
            if name.endswith((".cc", ".h")) and (ROOT / name).exists():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, root / name)
        self.sources = [s for s in SOURCES if (root / s).exists()]
        (root / "parsed.h").write_text(
            "".join(f"#include {header}\n" for header in HEADERS))
        subprocess.run(["g++", *FLAGS, "-x", "c++-header", "parsed.h"],
                       cwd=root, check=True)

    def object_of(self, source):
        return self.root / (source.replace("/", "_") + ".o")

    def compile(self, source):
        return subprocess.run(
            ["g++", *FLAGS, "-include", "parsed.h", "-c", source, "-o",
             self.object_of(source)],
            cwd=self.root, capture_output=True, text=True)

    def build_and_run(self, changed):
        """None when the tests pass, else how they did not; SystemExit when a
        source does not compile."""
        for source in changed:
            result = self.compile(source)
            if result.returncode != 0:
                print(result.stderr, file=sys.stderr)
                raise ValueError(f"{source} does not compile")
        subprocess.run(
            ["g++", "-o", "run_tests"] + [self.object_of(s) for s in self.sources] +
            ["-lgmock_main", "-lgmock", "-lgtest", "-pthread"] + absl_linkopts(),
            cwd=self.root, check=True)
        try:
            result = subprocess.run(
                ["./run_tests", "--gtest_brief=1", "--gtest_fail_fast"],
                cwd=self.root, capture_output=True, text=True,
                env={**os.environ, "TEST_SEED_COUNT": str(SEED_COUNT)},
                timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return "hangs"
        if result.returncode == 0:
            return None
        if result.returncode < 0:
            return "crashes"
        failed = [line.split()[3] for line in result.stdout.splitlines()
                  if line.startswith("[  FAILED  ]")]
        return failed[0] if failed else "fails"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("words", nargs="*",
                        help="only mutants whose name has one of these")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    chosen = [m for m in MUTATIONS
              if not arguments.words or any(w in m.name
                                            for w in arguments.words)]
    if arguments.list:
        for mutation in chosen:
            print(f"{mutation.file}: {mutation.name}")
        return 0

    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Tree(pathlib.Path(folder))
        failure = tree.build_and_run(tree.sources)
        if failure is not None:
            print(f"the tests fail without any mutant: {failure}")
            return 2
        killed, survived, stale = 0, [], []
        for mutation in chosen:
            path = tree.root / mutation.file
            text = path.read_text()
            if text.count(mutation.old) != 1:
                print(f"STALE     {mutation.name}: found "
                      f"{text.count(mutation.old)} times", flush=True)
                stale.append(mutation)
                continue
            built = tree.object_of(mutation.file)
            good = built.with_suffix(".good")
            shutil.copy(built, good)
            path.write_text(text.replace(mutation.old, mutation.new))
            try:
                failure = tree.build_and_run([mutation.file])
            except ValueError as error:
                print(f"STALE     {mutation.name}: {error}", flush=True)
                stale.append(mutation)
                continue
            finally:
                path.write_text(text)
                shutil.copy(good, built)
            if failure is None:
                survived.append(mutation)
                print(f"SURVIVED  {mutation.name}", flush=True)
            else:
                killed += 1
                print(f"killed    {mutation.name}  ({failure})", flush=True)
        print(f"{killed} of {len(chosen)} killed")
        return 2 if stale else 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
