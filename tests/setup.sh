#!/usr/bin/env bash
# Installs what the project needs: `tests/setup.sh run` for the main job, `tests/setup.sh test` for the tests as well.
# Running it again is safe, and quick. Package indexes, mirrors and certificates are the machine's own settings.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PATH:/usr/sbin:/sbin" DEBIAN_FRONTEND=noninteractive

# A command, or a file that is there once it is installed, and the Debian package that brings it.
RUN_PARTS="git=git mmdebstrap=mmdebstrap
  /usr/share/keyrings/debian-archive-keyring.gpg=debian-archive-keyring
  /etc/ssl/certs/ca-certificates.crt=ca-certificates"
TEST_PARTS="dockerd=docker.io iptables=iptables ip=iproute2 setpriv=util-linux docker-registry=docker-registry
  faketime=faketime openssl=openssl gcc=gcc /usr/include/features.h=libc6-dev skopeo=skopeo umoci=umoci podman=podman buildah=buildah /etc/containers/policy.json=golang-github-containers-common
  qemu-aarch64-static=qemu-user-static arch-test=arch-test
  bwrap=bubblewrap chromium=chromium chromedriver=chromium-driver wrk=wrk"

fail() {
  echo "tests/setup.sh: $*" >&2
  exit 1
}

missing_packages() {
  local part
  for part in "$@"; do
    command -v "${part%%=*}" >/dev/null || [[ -e ${part%%=*} ]] || echo "${part#*=}"
  done
}

can_make_venv() {
  "$1" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
  local candidate
  for candidate in python3 /usr/bin/python3 python3.13 python3.12 python3.11; do
    if can_make_venv "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

install_packages() {
  [[ $# -gt 0 ]] || return 0
  echo "installing: $*" >&2
  command -v apt-get >/dev/null || fail "there is no apt-get here; install what Debian calls: $*"
  local root=()
  if [[ $(id -u) -ne 0 ]]; then
    sudo -n true 2>/dev/null || fail "not root, and sudo wants a password; as root: apt-get install $*"
    root=(sudo DEBIAN_FRONTEND=noninteractive)
  fi
  # Third-party sources may be down; where one of Debian's is, the installation itself fails and says so.
  "${root[@]}" apt-get -qq update >&2 || echo "tests/setup.sh: some apt sources could not be read" >&2
  keep_services_stopped "${root[@]}"
  "${root[@]}" apt-get -qq -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 install -y --no-install-recommends "$@" >&2
}

keep_services_stopped() {
  # The tests start engine and registry of their own: what Debian would start now would only be in the way.
  local policy=/usr/sbin/policy-rc.d
  [[ ! -e $policy ]] || return 0
  printf '#!/bin/sh\nexit 101\n' | "$@" tee "$policy" >/dev/null
  "$@" chmod +x "$policy"
  # shellcheck disable=SC2064 # the words of now
  trap "${*@Q} rm -f $policy" EXIT
}

requirement_of_uv() {
  "$1" - <<'PYTHON'
import tomllib
with open("uv.lock", "rb") as file:
    uv = next(package for package in tomllib.load(file)["package"] if package["name"] == "uv")
print(f"uv=={uv['version']}", *(f"--hash={file['hash']}" for file in [*uv["wheels"], uv["sdist"]]))
PYTHON
}

install_environment() {
  local python=$1 stamp=.venv/.installed key
  if ! can_make_venv .venv/bin/python; then
    "$python" -m venv --clear --prompt envbuild .venv
  fi
  key=$({ .venv/bin/python -V; cat uv.lock pyproject.toml tests/setup.sh; } | sha256sum)
  [[ ! -e $stamp || $(<"$stamp") != "$key" ]] || return 0
  echo "installing the Python packages of uv.lock into .venv" >&2
  .venv/bin/python -m pip --version >/dev/null 2>&1 || .venv/bin/python -m ensurepip >/dev/null
  requirement_of_uv .venv/bin/python >.venv/uv.txt
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r .venv/uv.txt >&2
  .venv/bin/uv export --quiet --frozen --all-extras --no-emit-project --no-header --no-annotate >.venv/locked.txt
  local here=$PWD
  # From elsewhere, as the delay for new releases in pyproject.toml is for locking: not every mirror tells upload times.
  (
    cd /
    "$here/.venv/bin/uv" pip install --quiet --compile-bytecode --python "$here/.venv/bin/python" --require-hashes \
      -r "$here/.venv/locked.txt"
    "$here/.venv/bin/uv" pip install --quiet --python "$here/.venv/bin/python" --no-deps -e "$here"
  ) >&2
  # Where PYTHONDONTWRITEBYTECODE is set, each command would compile everything anew.
  .venv/bin/python -m compileall -q envbuild
  echo "$key" >"$stamp"
}

main() {
  local parts python packages
  case ${1:-} in
    run) parts=$RUN_PARTS ;;
    test) parts="$RUN_PARTS $TEST_PARTS" ;;
    *) fail "say what for: run, test" ;;
  esac
  # shellcheck disable=SC2086 # a list of words
  mapfile -t packages < <(missing_packages $parts)
  find_python >/dev/null || packages+=(python3-venv)
  install_packages "${packages[@]}"
  python=$(find_python) || fail "no Python 3.11 or later with its venv module was found"
  install_environment "$python"
}

main "$@"
