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
times >"$work/times"

# A test that fails is run once more, for what only a busy machine breaks; pytest's summary names those (RERUN).

stage() {
  local name=$1 began=$SECONDS code=0 before spent
  shift
  echo "== $name"
  before=$(processor_time)
  "$@" </dev/null || code=$?
  times >"$work/times"
  spent=$(($(processor_time) - before))
  if [[ $code -eq 0 && $name == unit && $spent -gt $most_processor ]]; then
    echo "$name took $spent s of processor time; at most $most_processor are meant" >&2
    code=124
  fi
  summary+=("$(printf '%-14s %5d s  %5d s of processor time  %s' "$name" $((SECONDS - began)) "$spent" \
    "$([[ $code -eq 0 ]] && echo ok || echo "FAILED ($code)")")")
  [[ $status -ne 0 ]] || status=$code
}

processor_time() {
  # Of all stages so far, and of what they started, in seconds; what else the machine has to do counts for nothing.
  awk -F '[ms ]+' 'NR == 2 { print int($1 * 60 + $2 + $3 * 60 + $4) }' "$work/times"
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
  examples=envbuild most_processor=1500  # seconds: twice what a quiet machine needs
  [[ ${1:-all} != long ]] || examples=explore most_processor=9000
  stage unit limited 1500 "$bin/pytest" -q -n 3 --dist worksteal --reruns 1 --hypothesis-profile "$examples" --basetemp "$work/unit" tests/unit
  if [[ $parts == test ]]; then
    selected="real and not slow" most=1400
    [[ ${1:-all} != long ]] || selected="slow" most=10800
    stage e2e limited "$most" "$bin/pytest" -q -n 2 --reruns 1 --dist loadfile --no-loadscope-reorder -m "$selected" \
      --durations=15 --basetemp "$work/e2e" tests/e2e
  fi
  if [[ ${1:-all} == long ]] && command -v go >/dev/null; then
    stage clients limited 7200 "$bin/python" -m tests.clients
  fi
fi

echo "== summary"
printf '%s\n' "${summary[@]}"
exit "$status"
