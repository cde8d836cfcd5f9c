#!/bin/sh
# Makes the pages that come from the protos anew.
set -e
cd "$(dirname "$0")/.."
bazel build //docs:job-file.made //docs:api.made
for page in job-file api; do
  cat "bazel-bin/docs/$page.made.md" > "docs/$page.md"
done
