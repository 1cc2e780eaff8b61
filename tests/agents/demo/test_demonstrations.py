from collections import Counter

import pytest

from turntree.agents.demo.demonstrations import SHARES, Kind, demonstrations, operations
from turntree.agents.demo.tokenizer import END
from turntree.agents.episodes.episode import StopReason
from turntree.agents.episodes.token_view import TokenView


@pytest.fixture(scope="module")
def played(tokenizer):
    return demonstrations(tokenizer, count=400, seed=0)


def test_the_right_ones_score_one_and_all_others_nothing(played):
    assert {(d.kind is Kind.RIGHT, d.episode.reward) for d in played} == {(True, 1.0), (False, 0.0)}
    for _, episode in played:
        assert episode.stop_reason is StopReason.DONE
        assert all(message.content.lstrip("-").isdigit() for t in episode.turns[:-1] for message in t.observation)


def test_the_kinds_have_their_shares(played):
    shares = {kind: number / len(played) for kind, number in Counter(d.kind for d in played).items()}
    assert shares == pytest.approx(SHARES, abs=0.08)


def test_early_ones_call_less_often_than_there_are_operations(played):
    for kind, episode in played:
        missing = len(operations(episode.task.prompt)) - (len(episode.turns) - 1)
        assert missing > 0 if kind is Kind.EARLY else missing == 0
    lengths = Counter(len(operations(episode.task.prompt)) for _, episode in played)
    assert set(lengths) == {1, 2, 3, 9}
    assert 20 <= lengths[9] <= 80, (
        "one task in sixteen, more often taken: from left to right it nearly always goes wrong"
    )


def test_tokens_are_those_of_the_whole_dialogue_rendered_at_once(played, tokenizer):
    for _, episode in played[:50]:
        view = TokenView.of(episode)
        dialogue = [message.to_openai() for message in episode.messages]
        whole = tokenizer.apply_chat_template(dialogue, tokenize=False)
        assert list(view.prompt_ids + view.response_ids) == tokenizer(whole, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(view.response_ids[-1]) == END
        assert view.mask[-1] == 1


def test_a_seed_fixes_the_dialogues_and_another_one_changes_them(tokenizer):
    first, same, other = (
        [d.episode.messages for d in demonstrations(tokenizer, count=10, seed=seed)] for seed in (5, 5, 6)
    )
    assert first == same
    assert first != other
    assert [call.expression for call in operations("1+2*3*4")] == ["2*3", "6*4", "1+24"]
    assert operations("9-2*3", precedence=False)[-1].result == 21
