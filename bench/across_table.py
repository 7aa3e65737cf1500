# SPDX-FileCopyrightText: 2026 The MARBLE authors
# SPDX-License-Identifier: Apache-2.0
"""Tables of docs/across-gpus.md and README.md from the rows of bench/across_gpus.sh, for bench/gpu_table.py."""

import json
import pathlib

RESULTS = pathlib.Path(__file__).resolve().parent / "results"
MARBLE = "marble"
NONE = "-"


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def numbers_of_gpus():
    return sorted({int(path.stem.split("_")[2]) for path in RESULTS.glob("across_gpus_*.jsonl")})


def table(head, rows, if_none="Not measured yet."):
    if not rows:
        return [if_none]
    return [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(row)} |" for row in rows)]


class Figures:
    """Rows of one section of bench/across_gpus.sh; of rows that say the same, the last."""

    def __init__(self, gpus, section):
        self.rows = read(RESULTS / f"across_gpus_{gpus}_{section}.jsonl")
        self.timed = {(r["case"], r["system"]): r for r in self.of("timed")}
        self.swept = {(r["case"], r["system"], r["mode"]): r for r in self.of("swept")}

    def of(self, status):
        return [row for row in self.rows if row["status"] == status]

    def pairs(self):
        """MARBLE's timed row of each case and PyTorch's, or None."""
        for (case, system), row in self.timed.items():
            if system == MARBLE:
                peers = [r for (c, s), r in self.timed.items() if c == case and s != MARBLE]
                yield row, min(peers, key=lambda r: r["layer_ms"], default=None)


def ms(row, key="layer_ms"):
    return f"{row[key]:,.1f} ms" if row else NONE


def ratio(own, peer, key="layer_ms"):
    return f"{peer[key] / own[key]:.2f}" if peer else NONE


def label(row):
    heads = f"{row['heads']}/{row['kv_heads']}"
    dim = "" if row["head_dim"] == 128 else f" of {row['head_dim']}"
    return row["case"] + ("" if heads in row["case"] else f", {heads} heads{dim}")


def speed_table(figures):
    rows = []
    for own, peer in figures.pairs():
        best = f"{peer['mode']}: {ms(peer)}" if peer else NONE
        ratios = [ratio(own, peer), ratio(own, peer, "forward_ms")]
        rows.append([label(own), f"{ms(own)}, {own['layer_tflops']:.0f}", best, *ratios, own["commit"]])
    return table(["case", "MARBLE, TFLOP/s of a GPU", "PyTorch at its best", "layer", "forward", "commit"], rows)


def choice_table(figures):
    """The planner's choice against the best that was measured."""
    rows = []
    for case in dict.fromkeys(case for case, system, _ in figures.swept if system == MARBLE):
        modes = {mode: r for (c, s, mode), r in figures.swept.items() if (c, s) == (case, MARBLE)}
        if "auto" not in modes or len(modes) == 1:
            continue
        auto, best = modes["auto"], min(modes.values(), key=lambda r: r["layer_ms"])
        chosen = auto["detail"].split(",")[0]
        found = best["detail"].split(",")[0]
        rows.append([case, f"{chosen}: {ms(auto)}", ms(auto, "predicted_ms"), f"{found}: {ms(best)}",
                     f"{auto['layer_ms'] / best['layer_ms']:.3f}"])  # fmt: skip
    return table(["case", "the planner's choice", "predicted", "measured best", "over it"], rows)


def refused_table(*sections):
    rows = []
    for figures in sections:
        for row in figures.of("failed") + figures.of("wrong"):
            why = row.get("reason") or f"errors over one GPU's {row['errors_over_one_gpu']}"
            rows.append([row["case"], row["system"], row["mode"], why])
    return table(["case", "system", "mode", "why"], rows, if_none="None.")


def alone_table(figures, cases):
    """What is measured of MARBLE alone; `cases` hold the layers over copy engines, compared where they are as old."""
    rows = []
    for r in figures.of("scaling"):
        times = f"one GPU {ms(r, 'one_gpu_ms')}, {r['gpus']} GPUs {ms(r)}"
        rows.append([f"{r['case']}, over one GPU", times, f"{r['speedup']:.2f}"])
    for r in figures.of("busy link"):
        link = f"link {r['link_gb_s']:.0f} GB/s, its slowest exchange {r['slowest_exchange_gb_s']:.0f}"
        times = f"{ms(r, 'busy_ms')}, alone {ms(r, 'alone_ms')}; {link}, alone {r['link_alone_gb_s']:.0f}"
        what = f"speed of {r['work']} beside a link kept busy by {r['rung']}, over its speed alone"
        rows.append([what, times, f"{r['speed']:.3f}"])
    for r in figures.of("profile"):
        kernels = [f"{count} {name.split('(')[0]}" for name, count in r["transport_kernels"].items()]
        copies = [f"{count} {name.split(' (')[0]}" for name, count in r["copies"].items()]
        ran = f"{', '.join(kernels) or 'none'}; copies: {', '.join(copies) or 'none'}"
        rows.append([f"transport's kernels in {r['exchanges']} exchanges by {r['rung']}, profiled", ran, ""])
    for r in figures.of("timed"):
        copied = cases.timed.get((r["case"], MARBLE))
        if copied and copied["commit"] == r["commit"]:
            times = f"{ms(r)}, by copy engines {ms(copied)}"
            rows.append([f"{r['case']} by {r['rung']}", times, f"{r['layer_ms'] / copied['layer_ms']:.2f}"])
    for r in figures.of("soak"):
        held = ", ".join(f"{bytes_ / 2**20:,.0f}" for bytes_ in r["memory_bytes"])
        by = "" if r["rung"] == "automatic" else f" by {r['rung']}"
        what = f"{r['layers']:,} layers of changing layouts{by}, MiB held after each fifth"
        rows.append([what, held, f"{r['seconds']} s"])
    for r in figures.of("no rung"):
        rows.append([f"layers of changing layouts by {r['rung']}", f"not possible: {r['reason']}", ""])
    return table(["what", "measured", "ratio, or time"], rows)


def parts_table(gpus):
    rows = []
    for run in read(RESULTS / f"across_gpus_{gpus}_parts.jsonl"):
        case = f"{run['case']}, {run['heads']}/{run['kv_heads']}, {run['mesh']['ring']}x{run['mesh']['ulysses']}"
        for layer in run["layers"]:
            window = f", window {layer['window']}" if layer["window"] else ""
            for direction in ("forward", "backward"):
                part = layer[direction]
                times = [f"{part[key]:.2f}" for key in ("layer_ms", "compute_ms", "communication_ms")]
                rows.append([case + window, direction, *times, f"{part['layer_over_longer']:.3f}"])
    return table(["case", "pass", "layer, ms", "compute alone", "communication alone", "layer / longer"], rows)


def errors_table(gpus):
    """Errors against dense fp64 over one rank's, the largest of output and gradients in all layers of the model."""
    ratios = {}
    for run in read(RESULTS / f"across_gpus_{gpus}_errors.jsonl"):
        words = run["command"].split()
        mesh = " ".join(words[words.index("--tokens") + 2 :]).replace("--", "")
        worst = max(tensor["ratio"] for layer in run["layers"] for tensor in layer["errors"].values())
        ratios.setdefault(run["case"], {})[mesh] = f"{worst:.4f}" if run["pass"] else "; ".join(run["failures"])
    meshes = list(dict.fromkeys(mesh for row in ratios.values() for mesh in row))
    rows = [[case, *(row.get(mesh, NONE) for mesh in meshes)] for case, row in sorted(ratios.items())]
    return table(["case", *meshes], rows)


def blocks():
    """By file, by name of the block in it."""
    docs, readme = {}, {}
    for gpus in numbers_of_gpus():
        cases, generators, alone = (Figures(gpus, section) for section in ("cases", "generators", "alone"))
        docs |= {
            f"{gpus} GPUs, speed": speed_table(cases),
            f"{gpus} GPUs, generators": speed_table(generators),
            f"{gpus} GPUs, not timed": refused_table(cases, generators),
            f"{gpus} GPUs, choice": choice_table(cases),
            f"{gpus} GPUs, generators' choice": choice_table(generators),
            f"{gpus} GPUs, alone": alone_table(alone, cases),
            f"{gpus} GPUs, parts": parts_table(gpus),
            f"{gpus} GPUs, errors": errors_table(gpus),
        }
        readme[f"{gpus} GPUs"] = speed_table(cases)
    return {"README.md": readme, "docs/across-gpus.md": docs}
