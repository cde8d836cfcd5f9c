#!/usr/bin/env bash
# Who may depend on whom (see docs/architecture.md); prints what breaks the
# rules and exits 1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

failed=0
# forbid WHAT QUERY: QUERY must give nothing.
forbid() {
  local found
  found=$(bazel query --noshow_progress --ui_event_filters=-info "$2" 2>/dev/null) || {
    echo "error: the query failed: $2" >&2
    exit 2
  }
  if [[ -n $found ]]; then
    echo "forbidden: $1: ${found//$'\n'/ }"
    failed=1
  fi
}

# Libraries, so that tests may use more.
core='attr(testonly, 0, kind(cc_library, //coordinator/core/...))'
common='attr(testonly, 0, kind(cc_library, //common/...))'
deps_of_core="deps($core) intersect (//... union //bazel/deps/...)"
forbid "coordinator/core sees more than abseil and common" \
  "$deps_of_core except (//coordinator/core/... union //common/... union //bazel/deps:absl)"
forbid "the worker agent's core sees more than abseil and common" \
  "(deps(//worker/agent:agent_core) intersect (//... union //bazel/deps/...)) except (//worker/agent/... union //common/... union //bazel/deps:absl)"
forbid "coordinator/core sees a proto" "deps($core) intersect //proto/..."
forbid "common depends on what is above it" \
  "deps($common) intersect (//coordinator/... union //worker/... union //cli/... union //kernels/...)"
forbid "kernels depends on what is above it" \
  "deps(kind(cc_library, //kernels/...)) intersect (//coordinator/... union //worker/... union //cli/... union //proto/...)"
forbid "the coordinator depends on the worker" "deps(//coordinator/...) intersect //worker/..."
forbid "the worker depends on the coordinator" "deps(//worker/...) intersect //coordinator/..."
exit $failed
