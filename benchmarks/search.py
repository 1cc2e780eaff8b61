"""The search tool over a large corpus: what the index costs once, and what a query costs.

Documents are made up, their words drawn by Zipf's law from VOCABULARY words, so that queries of frequent
words touch most of them. Queries have one to six words, frequent, rare and mixed ones. Beside the ranking of ``Corpus``
stands a full sort of the same scores, query by query in one run.

    python benchmarks/search.py [--documents 100000] [--queries 500] [--json results/search.json]
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common.provenance import provenance

from turntree.envs.lookup.corpus import words
from turntree.envs.lookup.documents import read_corpus
from turntree.envs.lookup.stored_corpus import StoredCorpus

VOCABULARY = 200_000
LENGTH = 80
"""Mean words of a document."""
HITS = 3
QUANTILES = {"median": 0.5, "p99": 0.99, "most": 1.0}


def documents(count: int, rng: np.random.Generator) -> Iterator[dict[str, str]]:
    for number in range(count):
        yield {"id": f"d{number}", "title": f"Title {number}", "text": zipf(rng, rng.poisson(LENGTH) + 1)}


def queries(count: int, rng: np.random.Generator) -> Iterator[str]:
    for _ in range(count):
        yield zipf(rng, int(rng.integers(1, 7)))


def zipf(rng: np.random.Generator, count: int) -> str:
    """Words whose ranks follow Zipf's law with exponent 1, cut at ``VOCABULARY``."""
    return " ".join(f"w{int(rank)}" for rank in np.exp(rng.random(count) * np.log(VOCABULARY)))


def full_sort(corpus: StoredCorpus, query: str) -> list[int]:
    scores = corpus._index.get_scores(words(query))
    best = sorted((-score, number) for number, score in enumerate(scores.tolist()) if score > 0)
    return [number for _, number in best[:HITS]]


def held() -> int:
    """Bytes of this process in memory that are no file's pages."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.perf_counter()
    found = work()
    return time.perf_counter() - begun, found


def measure(folder: Path, count: int, asked: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    path = folder / "corpus.jsonl"
    with path.open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in documents(count, rng))
    build, built = timed(lambda: read_corpus(path))
    size = sum(part.stat().st_size for part in built.folder.iterdir())
    before = held()
    opened, corpus = timed(lambda: StoredCorpus(built.folder))
    more = held() - before
    ours, sorting, same = [], [], True
    for query in queries(asked, rng):
        seconds, found = timed(functools.partial(corpus.search, query, HITS))
        ours.append(seconds)
        seconds, numbers = timed(functools.partial(full_sort, corpus, query))
        sorting.append(seconds)
        same &= [document.id for document in found] == [f"d{number}" for number in numbers]
    return {
        "documents": count,
        "source_mb": round(path.stat().st_size / 1e6, 1),
        "build_s": round(build, 1),
        "index_mb": round(size / 1e6, 1),
        "open_s": round(opened, 3),
        "held_mb": round(more / 1e6, 1),
        "queries": asked,
        "query_ms": {name: round(1e3 * float(np.quantile(ours, q)), 2) for name, q in QUANTILES.items()},
        "full_sort_ms": {name: round(1e3 * float(np.quantile(sorting, q)), 2) for name, q in QUANTILES.items()},
        "same_results": same,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TURNTREE_CACHE"] = f"{folder}/cache"
        result = {**provenance(["bm25s", "numpy"]), **measure(Path(folder), options.documents, options.queries)}
    print(json.dumps(result, indent=2))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
