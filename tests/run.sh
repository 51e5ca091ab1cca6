#!/usr/bin/env bash
# The one command for the tests: sets everything up, then lint, types, import rules, unit tests, end-to-end tests.
# `tests/run.sh unit` leaves out the end-to-end tests. All stages run; the exit code is that of the first that failed.
set -uo pipefail
cd "$(dirname "$0")/.."
bash tests/setup.sh "$([ "${1:-}" = unit ] && echo run || echo test)" || exit $?
export PATH="$PWD/.venv/bin:$PATH" PYTHONDONTWRITEBYTECODE=1
failed=0

stage() {
  local name=$1 began=$SECONDS status=0
  shift
  printf '\n== %s\n' "$name"
  "$@" </dev/null || status=$?
  printf '== %s: %s in %s s\n' "$name" "$([ $status = 0 ] && echo passed || echo "failed ($status)")" $((SECONDS - began))
  if [ $failed = 0 ]; then failed=$status; fi
}

stage lint ruff check .
stage format ruff format --check .
stage types mypy
stage imports lint-imports
stage unit pytest -q -n 2 tests/unit
if [ "${1:-}" != unit ]; then stage e2e pytest -q tests/e2e; fi
exit $failed
