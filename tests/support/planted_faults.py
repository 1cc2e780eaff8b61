"""Faulty graders: one-line faults planted into environments in this process, and one-line graders."""

import difflib
import fnmatch
import functools
import importlib
import re
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from turntree.envs import Env, Message, Reply, Task
from turntree.envs.verdict import visible
from turntree.rewards.reading.boxes import find_boxes

ROOT = Path(__file__).resolve().parents[2]
_BOX = re.compile(r"\\boxed\{([^{}]*)\}")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_UNSEEN = re.compile(
    r"(?is)\\begin\{comment\}.*?\\end\{comment\}|\\iffalse.*?\\fi|~~.*?~~|<(del|s|span)\b.*?</\1>|\\sout\{.*\}"
)
QUESTIONS: dict[str, list[tuple[str, str]]] = {
    "number": [
        ("Ann has 8 boxes of 9 pens. How many pens are there?", "72"),
        ("What is 135 times 3?", "405"),
        ("A train goes 26 km a day for 50 days. How far does it go, in km?", "1300"),
        ("What is 11 minus 18?", "-7"),
        ("How many seconds are 3 minutes and 3 seconds?", "183"),
        ("A book of 500 pages is half read. How many pages are left?", "250"),
    ],
    "word": [
        ("Where does the president of France live?", "Paris"),
        ("Who found radium?", "Marie Curie"),
        ("Which animal is the largest?", "blue whale"),
        ("On what did Columbus sail?", "Santa Maria"),
    ],
    "option": [
        (f"Which is {what}?\nA. a dog\nB. a rose\nC. a stone\nD. a pike", letter)
        for what, letter in (("a mammal", "A"), ("a flower", "B"), ("no life", "C"), ("a fish", "D"), ("wet", "D"))
    ],
    "tuple": [
        ("Which point lies 1 right of and 2 above the origin?", "(1, 2)"),
        ("Where do y = x - 7 and y = 2 - 2x meet?", "(3, -4)"),
        ("Mirror (8, 6) at the first axis.", "(8, -6)"),
    ],
    "fraction": [
        ("How much is left of a pie if a quarter is eaten?", r"\frac{3}{4}"),
        ("Half of seven?", r"\frac{7}{2}"),
        ("A third of five, as a fraction?", r"\frac{5}{3}"),
    ],
    "unit": [
        ("How wide is a square of 25 square centimetres?", "5 cm"),
        ("How heavy are three litres of water?", "3 kg"),
        ("How long are 72000 s?", "20 hours"),
    ],
    "list": [
        ("Which primes divide 30?", "2, 3, 5"),
        ("Solve (x-4)(x-9)=0.", "4, 9"),
        ("Which primes divide 77?", "7, 11"),
    ],
}


def shown(text: str) -> str:
    # Only what a reader sees.
    return _UNSEEN.sub("", visible(re.sub(r"(?i)<(/?)think(?:ing)?>", r"<\1think>", text)))


def numbers(text: str) -> list[float]:
    return [float(found) for found in _NUMBER.findall(text)]


def number(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None


def nested(text: str) -> str:
    return nested(text[1:-1].strip()) if text[:1] in "([{" and text[-1:] in ")]}" and len(text) > 1 else text


def attempt(compute: Any, otherwise: Any) -> Any:
    try:
        return compute()
    except Exception:
        return otherwise


def last_box(text: str) -> str:
    boxes = find_boxes(text)
    return boxes.contents[-1] if boxes is not None and boxes.contents else ""


_NAMES = {
    **{"shown": shown, "numbers": numbers, "number": number, "nested": nested, "attempt": attempt, "re": re},
    **{"ratio": lambda a, b: difflib.SequenceMatcher(None, a, b).ratio(), "fits": fnmatch.fnmatchcase},
    "boxes": lambda text: _BOX.findall(text),
    "box": last_box,
}
SOUND = "answer == gold"  #: the grader without a fault; the answer may have spaces, and a fraction a slash


class Graded(Env):
    """Pay what a line of Python returns for ``text``, ``answer`` (the last box), ``gold`` and ``question``."""

    step_inline = True

    def __init__(self, kind: str, grader: str) -> None:
        super().__init__()
        self.kind = kind
        self.num_tasks = len(QUESTIONS[kind])
        self.code = compile(grader, grader, "eval")

    def task(self, index: int) -> Task:
        question, gold = QUESTIONS[self.kind][index]
        return Task(id=f"{self.kind}/{index}", prompt=question, answer=gold)

    def reply(self, message: Message) -> Reply:
        text, task = message.content, self.current_task
        answer = re.sub(r"^(-?\d+)/(\d+)$", r"\\frac{\1}{\2}", last_box(shown(text)))
        known = {**_NAMES, "text": text, "answer": answer, "gold": task.answer, "question": task.prompt}
        return Reply(reward=float(eval(self.code, known)), done=True)


@contextmanager
def planted(file: str, old: str, new: str) -> Iterator[None]:
    """Plant a one-line fault in a turntree module, for every importer of it.

    Functions get the faulty code and constants the faulty values; functions wrapped by a decorator stay as they are.

    Args:
        file: Path relative to the repository.
        old: Text that occurs once in the file.
        new: Its replacement.
    """
    source = (ROOT / file).read_text(encoding="utf-8")
    assert source.count(old) == 1, f"{file} has {old!r} {source.count(old)} times, expected once"
    module = importlib.import_module("turntree." + file.removesuffix(".py").replace("/", "."))
    faulty = types.ModuleType(module.__name__)
    exec(compile(source.replace(old, new), file, "exec"), vars(faulty))
    undo = list(_sharing(vars(module), faulty, module.__name__))
    try:
        yield
    finally:
        for put_back in undo:
            put_back()


def _sharing(names: dict[str, Any], faulty: types.ModuleType, module: str) -> Iterator[Callable[[], None]]:
    # Puts the faulty pieces in; yields a function that undoes each.
    for name, new in vars(faulty).items():
        old = names.get(name)
        if isinstance(new, type) and getattr(new, "__module__", "") == module:
            pieces = [(vars(old).get(key), piece) for key, piece in vars(new).items()]
        else:
            pieces = [(old, new)]
        for before, piece in pieces:
            before, piece = (one.fget if isinstance(one, property) else one for one in (before, piece))
            if isinstance(piece, types.FunctionType) and isinstance(before, types.FunctionType):
                if piece.__module__ == module and piece.__code__ != before.__code__:
                    yield functools.partial(setattr, before, "__code__", before.__code__)
                    before.__code__ = piece.__code__
            elif len(pieces) == 1 and isinstance(new, str | int | float | tuple | re.Pattern) and new != old:
                yield functools.partial(names.__setitem__, name, old)
                names[name] = new
