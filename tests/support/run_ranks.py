#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""run_ranks.py N PROGRAM ARGS...: N processes with torchrun's environment, a GPU each.

Exits 77, with the reason, where fewer than N GPUs are visible; else with the first code that is not 0. A rank that fails
ends the others after a while, as their transport should have done.
"""

import os
import socket
import subprocess
import sys
import time

PATIENCE_S = 30.0


def num_gpus():
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return 0
    found = sum(line.startswith("GPU ") for line in listing.stdout.splitlines())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return found if visible is None else min(found, sum(bool(name.strip()) for name in visible.split(",")))


def free_port():
    with socket.socket() as listener:
        listener.bind(("", 0))
        return listener.getsockname()[1]


def main():
    num_ranks, command = int(sys.argv[1]), sys.argv[2:]
    if (found := num_gpus()) < num_ranks:
        print(f"skipped: {num_ranks} GPUs are needed, and {found} are visible")
        return 77
    shared = os.environ | {"WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(command, env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(num_ranks)
    ]
    failed_at = None
    while any(rank.poll() is None for rank in ranks):
        time.sleep(0.05)
        if failed_at is None and any(rank.poll() for rank in ranks):
            failed_at = time.monotonic()
        if failed_at is not None and time.monotonic() - failed_at > PATIENCE_S:
            for rank in ranks:
                rank.kill()
    return next((rank.returncode for rank in ranks if rank.returncode != 0), 0)


if __name__ == "__main__":
    sys.exit(main())
