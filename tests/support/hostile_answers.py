import tomllib
from pathlib import Path

_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
#: against ``NEVER_ENDS_GOLD`` this keeps the last comparison stage busy for minutes
NEVER_ENDS = r"\sum_{n=1}^{\infty}\frac{\cos(n^3)}{n^{1.3}}"
NEVER_ENDS_GOLD = r"\sum_{n=1}^{\infty}\frac{\cos(n^3)}{n^{1.4}}"
BOXED = [
    row if isinstance(row, str) else "".join(text * times for text, times in zip(row[::2], row[1::2], strict=True))
    for row in _TABLE["boxed"]
]
#: answers; the gold answer is 5 unless a test overrides it
BOXED += [r"\{" + ",".join(map(str, range(900))) + r"\}", ",".join(f"({i},{i})" for i in range(350)), "\ud800"]
CODE: list[str] = _TABLE["code"]  #: answers that would create a file named ``{canary}`` if any of them ran
