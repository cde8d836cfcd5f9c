#!/usr/bin/env bash
# Runs every test and check.  Installs the Debian packages that are missing.
#
#   tests/run.sh          everything, as CI does
#   tests/run.sh quick    without the clang pass
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

case ${1:-} in
  "" | quick) ;;
  -h | --help)
    sed -n '2,5s/^# \{0,1\}//p' tests/run.sh
    exit 0
    ;;
  *)
    echo "error: expected nothing or quick, got: $1" >&2
    exit 2
    ;;
esac

deploy/install_packages.sh || exit 1

passed=0
failed=0
report() {  # report NAME STATUS
  if [[ $2 -eq 0 ]]; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: $1"
  fi
}
check() {  # check NAME COMMAND...
  local name=$1
  shift
  echo "--- $name"
  "$@"
  report "$name" $?
}

format() {
  git ls-files -z '*.cc' '*.h' '*.cu' '*.cuh' | xargs -0 clang-format --dry-run --Werror
}
scripts() {
  git ls-files -z '*.sh' .ci/run | xargs -0 shellcheck
}

# What can see a lock; of tests, what has one.
thread_safety() {
  local targets
  targets=$(mktemp)
  bazel query --noshow_progress --ui_event_filters=-info \
    'kind("cc_(library|binary) rule", rdeps(//..., //common:mutex))
     + kind("cc_test rule", rdeps(//..., //common:mutex, 1))' >"$targets" &&
    bazel build --noshow_progress --config=thread-safety \
      --target_pattern_file="$targets"
  local status=$?
  rm -f "$targets"
  return $status
}

check "clang-format" format
check "shellcheck" scripts
check "who depends on whom" tests/checks/dependencies.sh

echo "--- bazel test //..."
log=$(mktemp)
trap 'rm -f "$log"' EXIT
bazel test --noshow_progress --keep_going //... 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
# A line a test: "//common:layout_test    PASSED in 0.1s".
ok=$(grep -cE '^//.* (\(cached\) )?PASSED' "$log")
bad=$(grep -cE '^//.* (FAILED|TIMEOUT|NO STATUS|FLAKY)' "$log")
passed=$((passed + ok))
failed=$((failed + bad))
# A build that fails, or that has no test, is a failure too.
if [[ $status -ne 0 && $bad -eq 0 ]] || [[ $ok -eq 0 ]]; then
  report "bazel test //... (exit code $status)" 1
fi

if [[ ${1:-} != quick ]]; then
  check "clang -Werror=thread-safety" thread_safety
fi

echo "$passed passed, $failed failed"
[[ $failed -eq 0 ]]
