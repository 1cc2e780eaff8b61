import json
from typing import Any, NamedTuple

import pytest

from turntree.agents.cli import main


class Said(NamedTuple):
    status: Any
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.status == 0, self.err
        return json.loads(self.out)

    @property
    def row(self) -> dict[str, str]:
        cells = [line.split("│") for line in self.out.splitlines() if line.count("│") == 3]
        return {name.strip(): value.strip() for _, name, value, _ in cells}


def run_command(capsys: pytest.CaptureFixture[str], *words: Any) -> Said:
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in words])
    captured = capsys.readouterr()
    return Said(stopped.value.code, captured.out, captured.err)
