#!/usr/bin/env python3
"""Writes compile_commands.json at the top of the tree, for clangd and clang-tidy.

Usage: bazel/compile_commands.py [TARGETS], by default //...  Asks Bazel for the compile commands; builds nothing but
the generated headers, without which an editor would not find them.
"""
import json
import os
import subprocess
import sys

top = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
targets = sys.argv[1] if len(sys.argv) > 1 else "//..."


def bazel(*arguments):
    return subprocess.run(["bazel", *arguments], cwd=top, check=True, stdout=subprocess.PIPE, text=True).stdout


bazel("build", "--noshow_progress", "--ui_event_filters=-info", "//proto:lockstep_v1")
execution_root = bazel("info", "--noshow_progress", "--ui_event_filters=-info", "execution_root").strip()
actions = json.loads(
    bazel("aquery", "--noshow_progress", "--ui_event_filters=-info", "--output=jsonproto",
          f'mnemonic("CppCompile", {targets})'))["actions"]
commands = []
for action in actions:
    arguments = action["arguments"]
    source = arguments[arguments.index("-c") + 1]
    # Sources stand in the tree; only what is generated is below the execution root.
    file = source if source.startswith("bazel-out/") else os.path.join(top, source)
    commands.append({"directory": execution_root, "file": file, "arguments": arguments})
with open(os.path.join(top, "compile_commands.json"), "w") as out:
    json.dump(commands, out, indent=1)
print(f"compile_commands.json: {len(commands)} files")
