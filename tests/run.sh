#!/usr/bin/env bash
# Sets up and runs the tests: `tests/run.sh`, `tests/run.sh unit` for those that need no installed parts, `tests/run.sh long`
# for those that take too long to run at every change.
# Every stage runs; the exit code is that of the first one that failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PATH:/usr/sbin:/sbin"

status=0 summary=()
export TMPDIR
TMPDIR=$(mktemp -d /tmp/envbuild-tests.XXXXXX)
work=$TMPDIR

# A test that fails is run once more, for what only a busy machine breaks; pytest's summary names those (RERUN).

stage() {
  local name=$1 began=$SECONDS code=0
  shift
  echo "== $name"
  "$@" </dev/null || code=$?
  summary+=("$(printf '%-14s %5d s  %s' "$name" $((SECONDS - began)) "$([[ $code -eq 0 ]] && echo ok || echo "FAILED ($code)")")")
  [[ $status -ne 0 ]] || status=$code
}

limited() {
  # An interrupt, unlike TERM, lets pytest take its engine and registry down.
  timeout --signal=INT --kill-after=90 "$@"
}

tidy() {
  # What a killed pytest left: its daemons name themselves in pid files, and end by themselves when pytest is gone.
  local pid file
  while IFS= read -r file; do
    pid=$(<"$file")
    timeout 30 tail --pid="$pid" -f /dev/null || kill -KILL "$pid" 2>/dev/null
  done < <(find "$work" -name '*.pid' -not -path '*/data/*' 2>/dev/null)
  awk -v under="$work/" 'index($5, under) == 1 { print $5 }' /proc/self/mountinfo | sort -r | xargs -r umount -l
  rm -rf "$work"
}
trap tidy EXIT

parts=test
[[ ${1:-all} != unit ]] || parts=run
stage setup bash tests/setup.sh "$parts"
if [[ $status -eq 0 ]]; then
  bin=$PWD/.venv/bin
  stage lint "$bin/ruff" check .
  stage format "$bin/ruff" format --check .
  stage types "$bin/mypy"
  stage imports "$bin/lint-imports"
  stage dependencies "$bin/deptry" --no-ansi envbuild profiles
  examples=envbuild
  [[ ${1:-all} != long ]] || examples=explore
  stage unit limited 1140 "$bin/pytest" -q -n 2 --reruns 1 --hypothesis-profile "$examples" --basetemp "$work/unit" tests/unit
  if [[ $parts == test ]]; then
    selected="real and not slow" most=1260
    [[ ${1:-all} != long ]] || selected="slow" most=10800
    stage e2e limited "$most" "$bin/pytest" -q -n 2 --reruns 1 --dist loadfile -m "$selected" --durations=15 --basetemp "$work/e2e" tests/e2e
  fi
fi

echo "== summary"
printf '%s\n' "${summary[@]}"
exit "$status"
