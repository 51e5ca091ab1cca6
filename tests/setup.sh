#!/usr/bin/env bash
# Installs what envbuild needs on Debian: `tests/setup.sh run` for the main job, `tests/setup.sh test` for the tests too.
# Quick when everything is there. Indexes and mirrors are those that pip, uv and apt are set up with.
set -euo pipefail
cd "$(dirname "$0")/.."

run_packages=(ca-certificates git mmdebstrap debian-archive-keyring python3-venv)
test_packages=(docker.io iptables iproute2 util-linux docker-registry skopeo umoci podman buildah faketime procps)

say() { printf '%s\n' "setup: $*" >&2; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else say "not root and no sudo; as root, run: $*"; exit 17
  fi
}

apt_install() {
  local missing=() name
  for name in "$@"; do
    dpkg-query -W -f '${Status}' "$name" 2>/dev/null | grep -q '^install ok installed' || missing+=("$name")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if ! command -v apt-get >/dev/null; then
    say "this is no Debian; install by hand: ${missing[*]}"
    exit 17
  fi
  say "installing ${missing[*]}"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq update || say "some package sources cannot be read; going on with the others"
  # Services that packages bring (dockerd, docker-registry) are not to start: the tests start their own.
  local policy=/usr/sbin/policy-rc.d made=no
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
    as_root chmod 755 "$policy"
    made=yes
  fi
  local status=0
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null || status=$?
  [ "$made" = no ] || as_root rm -f "$policy"
  return "$status"
}

python_for_us() {
  local candidate
  for candidate in python3 python3.13 python3.12 python3.11 /usr/bin/python3; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  say "Python 3.11 or later is needed"
  exit 17
}

environment() {
  local lock_sum
  lock_sum=$(cat uv.lock pyproject.toml | sha256sum)
  if [ -x .venv/bin/envbuild ] && [ "$(cat .venv/.lock-sum 2>/dev/null)" = "$lock_sum" ]; then return; fi
  say "making .venv"
  [ -x .venv/bin/python ] || "$(python_for_us)" -m venv .venv
  local version
  version=$(sed -n '/^name = "uv"$/{n;s/version = "\(.*\)"/\1/p}' uv.lock)
  [ "$(.venv/bin/uv --version 2>/dev/null | cut -d' ' -f2)" = "$version" ] || .venv/bin/python -m pip install -q --disable-pip-version-check "uv==$version"
  # uv.lock names no index, so that it serves every mirror: names, versions and hashes come from it, addresses do not.
  .venv/bin/uv export -q --frozen --all-extras --no-emit-project --no-header --no-annotate -o .venv/requirements.txt
  VIRTUAL_ENV="$PWD/.venv" .venv/bin/uv pip install -q --require-hashes -r .venv/requirements.txt
  VIRTUAL_ENV="$PWD/.venv" .venv/bin/uv pip install -q --no-deps --editable .
  printf '%s\n' "$lock_sum" >.venv/.lock-sum
}

case "${1:-}" in
  run) apt_install "${run_packages[@]}" ;;
  test) apt_install "${run_packages[@]}" "${test_packages[@]}" ;;
  *) say "usage: tests/setup.sh run|test"; exit 2 ;;
esac
environment
