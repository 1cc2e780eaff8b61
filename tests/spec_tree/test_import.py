import subprocess
import sys

LIGHT = "from turntree.spec_tree import DialogueState, DraftBatch, ForestConfig, ForestStats, TreeNode; "
PROTOCOL = "import turntree.agents.engines.protocol; "
WITHOUT_NUMBA = "import sys; sys.modules['numba'] = None; "


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_the_data_around_the_store_and_the_engines_protocol_load_without_numba():
    shown = python(
        WITHOUT_NUMBA
        + LIGHT
        + "import turntree.agents.engines.protocol; print(DialogueState.from_tokens([1]).ladder()[0] > 0)"
    )
    assert shown.stdout.strip() == "True", shown.stderr


def test_without_numba_the_store_names_the_extra_to_install():
    shown = python(WITHOUT_NUMBA + "from turntree.spec_tree import SpecForest")
    assert 'ImportError: SpecForest needs numba: pip install "turntree[tree]"' in shown.stderr


def test_a_name_that_is_not_there_is_an_attribute_error():
    import turntree.spec_tree

    assert not hasattr(turntree.spec_tree, "SpecWood")
