#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
#
# Installs what is missing on a Debian machine: `setup.sh build` for the library, tool and tests, `setup.sh test` also for
# the source checks. Does nothing, and needs no rights, when everything is there.
set -euo pipefail

packages=(make g++ cmake ninja-build ccache libeigen3-dev nlohmann-json3-dev libcli11-dev libfmt-dev libgtest-dev
          libgmock-dev libbenchmark-dev libopenmpi-dev openmpi-bin openssh-client)
if [ "${1:-test}" = test ]; then
  packages+=(clang-format-14 clang-tidy-14 python3-dev python3-venv)
fi

if ! command -v dpkg-query >/dev/null; then
  echo "setup: not a Debian machine; install the equivalents of: ${packages[*]}" >&2
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

echo "setup: installing ${missing[*]}"
as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo)
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}"
