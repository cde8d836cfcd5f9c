#!/bin/sh
# Fails when a page of docs/ is not what its sources make.
#   page_test.sh COMMITTED MADE
if ! diff -u "$1" "$2"; then
  echo "$1 is stale: run docs/update.sh and commit it" >&2
  exit 1
fi
