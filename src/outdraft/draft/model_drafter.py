"""What drafters that guess with a language model have in common."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from outdraft.draft.links import Link
from outdraft.draft.model_runner import DraftJob, ModelRunner
from outdraft.interfaces import Drafter, TargetModel
from outdraft.sequence import Sequence
from outdraft.types import Budget, Commit, DraftTree


class ModelDrafter(Drafter):
    """Asks a language model how each text goes on.

    Args:
        link: carries texts to the model and guesses back.
    """

    score_names = ("draft probability", "depth")

    def __init__(self, name: str, model: TargetModel, link: Link) -> None:
        self.name = name
        self._runner = ModelRunner(model)
        self._link = link

    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        jobs: dict[int, DraftJob] = {}
        for i, (sequence, max_depth) in enumerate(zip(batch, budget.max_depths, strict=True)):
            job = self._job(sequence, budget.max_nodes, max_depth)
            if job is not None:
                jobs[i] = job
        trees = [DraftTree(drafter=self.name)] * len(batch)
        guessed = self._runner.draft(list(jobs.values()), budget.min_level_tokens)
        self.levels = self._runner.num_levels
        for (i, job), tree in zip(jobs.items(), guessed, strict=True):
            trees[i] = self._link.to_draft(batch[i], tree, job.max_nodes, job.max_depth)
        return trees

    def observe(self, sequence: Sequence, commit: Commit) -> None:
        if commit.finish_reason is None and self._runner.is_drafting(sequence.request_id):
            self._runner.settle(sequence.request_id, self._link.read_ids(sequence))

    def finish(self, sequence: Sequence) -> None:
        self._runner.forget(sequence.request_id)
        self._link.forget(sequence.request_id)

    @property
    def memory_bytes(self) -> int:
        return self._runner.cache_bytes

    def _job(self, sequence: Sequence, max_nodes: int, max_depth: int) -> DraftJob | None:
        """What to draft; nothing once the text has outgrown the draft model's context."""
        if max_nodes < 1 or max_depth < 1:
            return None
        token_ids = self._link.read_ids(sequence)
        if len(token_ids) > self._runner.model.max_context:
            self._runner.forget(sequence.request_id)
            return None
        if not token_ids:
            return None
        guess = self._link.guesser(sequence)
        return DraftJob(sequence.request_id, token_ids, max_nodes, max_depth, guess)
