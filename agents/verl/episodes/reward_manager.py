"""A reward manager for verl's reward loop, for ``reward.reward_manager.source=importlib``.

::

    reward.reward_manager.source=importlib
    reward.reward_manager.module.path=pkg://turntree.agents.verl.episodes.reward_manager
    reward.reward_manager.name=PolicyTextRewardManager

It takes the rewards from ``turntree.rewards`` and ``turntree.contract``.
For samples that cannot be judged see ``rewards``.
"""

from __future__ import annotations

from typing import Any

from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

from turntree.agents.verl.config.sections import plain
from turntree.agents.verl.config.settings import RunSettings
from turntree.agents.verl.episodes.rewards import result, single_scorer
from turntree.agents.verl.episodes.scored_text import SAMPLE, sample_of_row


class PolicyTextRewardManager(RewardManagerBase):
    """Scores only the policy's own text; verl's own managers score tool output as well.

    Raises:
        ConfigError: If the rewards are unknown, or need all samples of a task.
    """

    def __init__(
        self,
        config: Any,
        tokenizer: Any,
        compute_score: Any = None,
        reward_router_address: str | None = None,
        reward_model_tokenizer: Any = None,
    ) -> None:
        super().__init__(config, tokenizer, compute_score)
        self._tokenizer = tokenizer
        settings = RunSettings.parse(plain(config.actor_rollout_ref.rollout.get("custom")))
        self._scorer = single_scorer(settings.rewards, settings.contract)

    async def run_single(self, data: Any) -> dict[str, Any]:
        """Score one episode.

        Args:
            data: verl's ``DataProto`` of all outputs of one episode; the last one counts.

        Returns:
            ``reward_score`` and ``reward_extra_info``.

        Raises:
            ConfigError, UnknownContract, Undecided: As ``rewards.compute_score``.
        """
        item = data[-1:][0]
        columns = item.non_tensor_batch
        extra = {**(columns.get("extra_info") or {}), **(columns.get("tool_extra_fields") or {})}
        turns = columns.get("__num_turns__")
        sample = sample_of_row(
            str(columns["data_source"]),
            "" if SAMPLE in extra else self._decode(item.batch),
            str(columns["reward_model"]["ground_truth"]),
            extra,
            None if turns is None else int(turns),
        )
        scored = (await self._scorer.ascore([sample]))[0] if sample is not None else None
        info = result(self._scorer, scored, masks=SAMPLE in extra)
        return {"reward_score": info["score"], "reward_extra_info": info}

    def _decode(self, batch: Any) -> str:
        responses = batch["responses"]
        length = int(batch["attention_mask"][-len(responses) :].sum())
        text: str = self._tokenizer.decode(responses[:length], skip_special_tokens=True)
        return text
