"""Two folders of results of lm-eval, of the same tasks on the same weights: scores and log likelihoods side by side.

python compare_scores.py results/hf results/corekit
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROUNDING = 2e-3
"""Log likelihoods are sums of a few logits in float32; computed in another order they differ in the fifth digit."""


def scores(folder: Path) -> dict[str, float]:
    (file,) = folder.rglob("results_*.json")
    results = json.loads(file.read_text())["results"]
    return {f"{task} {name}": value for task, values in results.items() for name, value in values.items() if isinstance(value, float)}


def answers(folder: Path) -> dict[tuple[str, int], list]:
    """What each request was answered: (log likelihood, whether greedy) or a text."""
    found = {}
    for file in folder.rglob("samples_*.jsonl"):
        task = file.name.removeprefix("samples_").rpartition("_")[0]
        for line in file.read_text().splitlines():
            sample = json.loads(line)
            found[task, sample["doc_id"]] = [given for (given,) in sample["resps"]]
    return found


def main(one: Path, other: Path) -> None:
    first, second = scores(one), scores(other)
    for name, value in first.items():
        print(f"{name:32} {value:.4f} {second[name]:.4f}")
    largest, num_texts, num_likelihoods, num_different = 0.0, 0, 0, 0
    theirs, ours = answers(one), answers(other)
    for key, given in theirs.items():
        for expected, got in zip(given, ours[key], strict=True):
            if isinstance(expected, str):
                num_texts += 1
                num_different += expected != got
            else:
                num_likelihoods += 1
                largest = max(largest, abs(float(expected[0]) - float(got[0])))
                num_different += str(expected[1]) != str(got[1])
    print(f"{num_likelihoods} log likelihoods, the largest difference {largest:.6f}; {num_texts} texts; {num_different} different texts or verdicts")
    assert first == second, "scores differ"
    assert largest < ROUNDING
    assert num_different == 0
    assert min(num_likelihoods, num_texts) > 0


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
