"""A custom reward next to built-in rewards, selected by name and weighted.

A reward sees only the policy's own turns, so a tool's output earns nothing.

    python examples/custom_reward.py
"""

from turntree.rewards import Part, Rubric, Sample, reward


@reward("shows_work")
def shows_work(sample: Sample) -> float | None:
    """Share of the lines, up to three, before the answer; no verdict without a turn."""
    if not sample.turns:
        return None  # masked, never 0
    lines = [line for line in sample.turns[-1].splitlines() if line.strip()]
    return min(len(lines) - 1, 3) / 3


def main() -> list[float]:
    rubric = Rubric([Part(reward="answer"), Part(reward="shows_work", weight=0.2)])
    samples = [
        Sample(turns=("3 boxes of 4 are 12.\nTwo are eaten.\n#### 10",), gold="10"),
        Sample(turns=("#### 10.0",), gold="10"),
        Sample(turns=("Some work.\n#### 11",), gold="10"),
    ]
    results = rubric.score(samples)
    for sample, result in zip(samples, results, strict=True):
        print(f"{result.reward:.2f}  {result.parts}  {sample.turns[-1]!r}")
    return [result.reward for result in results]


if __name__ == "__main__":
    main()
