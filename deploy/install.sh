#!/usr/bin/env bash
# Builds the three programs and copies them to a folder.
#
#   deploy/install.sh [FOLDER]       by default /usr/local/bin
set -euo pipefail

case ${1:-} in
  -*)
    sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    [[ $1 == --help || $1 == -h ]] && exit 0
    echo "error: unknown option: $1" >&2
    exit 2
    ;;
esac
folder=$(realpath -m "${1:-/usr/local/bin}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

deploy/install_packages.sh
bazel build --noshow_progress --ui_event_filters=-info \
  //cli:lockstep //coordinator:lockstep-coordinator //worker:lockstep-worker
mkdir -p "$folder"
# install(1) replaces a file that runs, where cp would fail.
install -m 755 bazel-bin/cli/lockstep bazel-bin/coordinator/lockstep-coordinator \
  bazel-bin/worker/lockstep-worker "$folder"
echo "Installed lockstep, lockstep-coordinator and lockstep-worker in $folder"
