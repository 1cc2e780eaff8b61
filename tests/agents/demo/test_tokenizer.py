import pytest
import transformers
from tables import table

from turntree.agents.demo.tokenizer import END, UNKNOWN, vocabulary
from turntree.agents.loop.renderer import Renderer

DIALOGUE = table(__file__, "dialogue")


def ids(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("text", ["calculator(13*4)", "#### -7", "12+3*4-1", "1/2 = 0.5, (3)\n"])
def test_text_of_known_words_survives_a_round_trip(tokenizer, text):
    assert UNKNOWN not in tokenizer.convert_ids_to_tokens(ids(tokenizer, text))
    assert tokenizer.decode(ids(tokenizer, text)) == text


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("calculator(13*4)", ["calculator", "(", "1", "3", "*", "4", ")"]), ("12Fehlerß3", ["1", "2", UNKNOWN, "3"])],
)
def test_digits_are_tokens_and_so_are_words_of_the_dialogue_and_runs_of_unknown_text(tokenizer, text, tokens):
    assert tokenizer.convert_ids_to_tokens(ids(tokenizer, text)) == tokens


def test_the_vocabulary_is_small_and_dense_and_a_saved_tokenizer_loads_as_it_was(tokenizer, tmp_path):
    assert sorted(vocabulary().values()) == list(range(len(tokenizer)))
    assert len(tokenizer) < 64
    tokenizer.save_pretrained(tmp_path)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    options = {"add_generation_prompt": True, "tokenize": False}
    assert ids(loaded, "calculator(3*4)") == ids(tokenizer, "calculator(3*4)")
    assert loaded.apply_chat_template(DIALOGUE, **options) == tokenizer.apply_chat_template(DIALOGUE, **options)
    assert (loaded.eos_token, loaded.pad_token) == (tokenizer.eos_token, tokenizer.pad_token)


def test_the_renderer_extends_to_what_the_template_renders_at_once(tokenizer):
    renderer = Renderer(tokenizer)
    prompt = renderer.initial(DIALOGUE[:1])
    for at in (1, 3):
        result = tuple(ids(tokenizer, DIALOGUE[at]["content"] + END))
        prompt = renderer.extend(prompt, result, DIALOGUE[at + 1 : at + 2])
        assert prompt == renderer.initial(DIALOGUE[: at + 2])
    assert renderer.stop_token_ids == (vocabulary()[END],)
    cut = tuple(ids(tokenizer, "calculator(3"))
    extended = renderer.extend((1,), cut, DIALOGUE[2:3])
    assert extended[: 1 + len(cut) + 1] == (1, *cut, vocabulary()[END]), "a turn that was cut gets its end"
