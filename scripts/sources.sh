#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
#
# Prints every C++ and CUDA source of the project, one a line.
set -euo pipefail
cd "$(dirname "$0")/.."

find include src tools python tests bench examples -type f \
  \( -name '*.hpp' -o -name '*.cpp' -o -name '*.cuh' -o -name '*.cu' \) | sort
