from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from turntree.agents.gateway.turns import SampledTurn

_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_LABELLED = ("requests_total", "sessions_ended_total", "wishes_total")  #: shown only with labels
_HELP = {
    "requests_total": "Requests by path and status.",
    "clients_gone_total": "Requests whose client disconnected before the response.",
    "prompt_tokens_total": "Prompt tokens.",
    "cached_tokens_total": "Prompt tokens served from the KV cache.",
    "sampled_tokens_total": "Sampled tokens.",
    "drafted_tokens_total": "Draft tokens verified.",
    "accepted_tokens_total": "Draft tokens accepted.",
    "verify_steps_total": "Forward passes that sampled, summed over turns.",
    "sessions_ended_total": "Ended sessions by reason.",
    "episodes_total": "Dialogues of ended sessions.",
    "sessions_resembling_total": "New sessions that resemble a live session whose history the client may have changed.",
    "wishes_total": "Requests with a field that was accepted and not obeyed, by field.",
    "turns_running": "Turns being sampled or queued.",
    "sessions": "Live sessions.",
    "request_seconds": "Time to respond.",
    "first_token_seconds": "Time to the first event of a stream.",
}


class Histogram:
    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS) + 1)  #: durations per bucket; the last bucket is +Inf
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(_BOUNDS, seconds)] += 1
        self.sum += seconds


class Metrics:
    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()  #: by name and labels
        self.request_seconds, self.first_token_seconds = Histogram(), Histogram()

    def add(self, name: str, amount: int = 1, **labels: object) -> None:
        self.counts[name, ",".join(f'{label}="{value}"' for label, value in labels.items())] += amount

    def add_gone(self) -> None:
        self.add("clients_gone_total")

    def add_turn(self, turn: SampledTurn) -> None:
        done = turn.completion
        self.add("prompt_tokens_total", len(turn.prompt_ids))
        self.add("cached_tokens_total", done.cached_tokens)
        self.add("sampled_tokens_total", len(done.token_ids))
        self.add("drafted_tokens_total", done.draft.drafted)
        self.add("accepted_tokens_total", done.draft.accepted)
        self.add("verify_steps_total", done.draft.verify_steps)

    def text(self, **gauges: int) -> str:
        lines: list[str] = []
        for name in _HELP:
            kind = "gauge" if name in gauges else "histogram" if hasattr(self, name) else "counter"
            lines += [f"# HELP turntree_{name} {_HELP[name]}", f"# TYPE turntree_{name} {kind}"]
            if kind == "gauge":
                lines.append(f"turntree_{name} {gauges[name]}")
            elif kind == "histogram":
                lines += _histogram(f"turntree_{name}", getattr(self, name))
            else:
                by_labels = {
                    labels: count for (counter, labels), count in sorted(self.counts.items()) if counter == name
                }
                samples = by_labels or ({"": 0} if name not in _LABELLED else {})
                lines += [
                    f"turntree_{name}{{{labels}}} {n}" if labels else f"turntree_{name} {n}"
                    for labels, n in samples.items()
                ]
        return "\n".join(lines) + "\n"


def _histogram(name: str, histogram: Histogram) -> list[str]:
    lines, below = [], 0
    for bound, count in zip((*map(str, _BOUNDS), "+Inf"), histogram.counts, strict=True):
        below += count
        lines.append(f'{name}_bucket{{le="{bound}"}} {below}')
    return [*lines, f"{name}_sum {histogram.sum:.6f}", f"{name}_count {below}"]
