#!/usr/bin/env bash
# Runs a Python test: run_python.sh FILE [ARGUMENTS].  Bazel's own rule wants a
# command `python`, which Debian does not have.
exec python3 -B "$@"
