"""List the mathematics data sets: where each is found and how its answers are compared.

Rows are read as published: question and answer may be in any of the columns named here. Nothing is downloaded before an
environment is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from turntree.envs.data.rows import FileRows, HubRows, default_folder, find_rows
from turntree.envs.errors import DataError, nearest_hint

QUESTION_COLUMNS = ("question", "problem", "prompt", "Question")
ANSWER_COLUMNS = ("answer", "final_answer", "Answer")


class Hub(NamedTuple):
    name: str  #: data set id
    split: str
    subset: str | None = None  #: configuration name


@dataclass(frozen=True, slots=True, kw_only=True)
class MathSet:
    name: str
    env_id: str
    title: str
    answer_format: str  #: a name that turntree.rewards.answer_format_for knows
    hub: Mapping[str, Hub]  #: turntree's split name -> data set and split on the hub; the first is the default
    folder: str = ""  #: folder below $TURNTREE_DATA/data; if empty, ``name`` is the folder
    answers: tuple[str, ...] = ANSWER_COLUMNS  #: columns that may hold the answer; the first one present counts
    choices: bool = False  #: whether the questions are multiple choice, with a letter or number as the answer
    extra: tuple[str, ...] = field(default=("subject", "level", "year", "difficulty"))  #: columns kept as metadata

    @property
    def tools_id(self) -> str:
        return self.env_id.replace("-v0", "-Tools-v0")

    @property
    def default_split(self) -> str:
        return next(iter(self.hub))

    def rows(self, data: str | Path | None, split: str, subset: str | None = None) -> FileRows | HubRows:
        """Find the rows of a split.

        Args:
            data: File, folder or data set id, see ``find_rows``; ``None`` looks below ``$TURNTREE_DATA/data``
                if that is set, and on the hub otherwise.
            split: Name of the split; a key of ``hub``, unless ``data`` is given.
            subset: Configuration name of a data set id in ``data``.

        Raises:
            DataError: If the file or the split does not exist.
        """
        if data is not None:
            return find_rows(data, split=split, subset=subset)
        folder = default_folder(self.folder or self.name)
        if folder is not None and folder.is_dir():
            return find_rows(folder, split=split)
        if split not in self.hub:
            raise DataError(f"{self.title} has the splits {', '.join(self.hub)}, not {split!r}")
        hub = self.hub[split]
        return HubRows(name=hub.name, subset=hub.subset, split=hub.split)


def _one(name: str, split: str, subset: str | None = None, *, called: str = "") -> dict[str, Hub]:
    return {called or split: Hub(name, split, subset)}


_MATH = "DigitalLearningGmbH/MATH-lighteval"  # has the published split; other copies mix test problems into train
MATH_SETS: tuple[MathSet, ...] = (
    MathSet(
        name="gsm8k",
        env_id="turntree/GSM8K-Boxed-v0",
        title="Grade-school word problems (GSM8K), answers in a box",
        answer_format="gsm8k",
        hub={split: Hub("openai/gsm8k", split, "main") for split in ("test", "train")},
    ),
    MathSet(
        name="math",
        env_id="turntree/MATH-v0",
        title="Competition problems (MATH)",
        answer_format="math",
        hub={split: Hub(_MATH, split) for split in ("train", "test")},
        answers=("answer", "solution"),
    ),
    MathSet(
        name="math500",
        env_id="turntree/MATH500-v0",
        title="500 test problems of MATH",
        answer_format="math500",
        hub=_one("HuggingFaceH4/MATH-500", "test"),
    ),
    MathSet(
        name="olympiadbench",
        env_id="turntree/OlympiadBench-v0",
        title="Olympiad problems with open answers, English",
        answer_format="olympiadbench",
        hub=_one("Hothan/OlympiadBench", "train", "OE_TO_maths_en_COMP", called="OE_TO_maths_en_COMP"),
        extra=("subfield", "answer_type"),
    ),
    MathSet(
        name="aime",
        env_id="turntree/AIME-v0",
        title="American Invitational Mathematics Examination",
        answer_format="aime",
        hub={
            "aime24": Hub("HuggingFaceH4/aime_2024", "train"),
            "aime25": Hub("math-ai/aime25", "test"),
            "aime_1983_2023": Hub("di-zhang-fdu/AIME_1983_2024", "train"),
        },
    ),
    MathSet(
        name="amc",
        env_id="turntree/AMC-v0",
        title="American Mathematics Competitions 2022 and 2023",
        answer_format="amc",
        hub={"amc23": Hub("math-ai/amc23", "test"), "amc22_23_83": Hub("AI-MO/aimo-validation-amc", "train")},
    ),
    MathSet(
        name="minerva",
        env_id="turntree/Minerva-v0",
        title="Undergraduate physics and mathematics (Minerva)",
        answer_format="minerva",
        hub=_one("math-ai/minervamath", "test"),
        folder="minerva_math",
        extra=("course",),
    ),
    MathSet(
        name="mmlu-stem",
        env_id="turntree/MMLU-STEM-v0",
        title="Multiple choice from the sciences (MMLU)",
        answer_format="mmlu-stem",
        hub=_one("TIGER-Lab/MMLU-STEM", "test"),
        folder="mmlu_stem",
        choices=True,
    ),
    MathSet(
        name="dapo",
        env_id="turntree/DAPO17k-v0",
        title="Training problems with integer answers (DAPO)",
        answer_format="dapo",
        hub=_one("open-r1/DAPO-Math-17k-Processed", "train", "en"),
        folder="dapo_17k",
        answers=("answer", "solution"),
    ),
)


def find_set(name: str) -> MathSet:
    by_name = {entry.name: entry for entry in MATH_SETS}
    if name in by_name:
        return by_name[name]
    raise DataError(f"there is no data set {name!r}; {nearest_hint(name, by_name, 'known are')}")
