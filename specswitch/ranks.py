"""One rank decides, all follow, in the same turn; a rank that disagrees is noticed at once.

Under tensor parallelism every rank runs its own scheduler and its own Switch.  Rank 0's policy decides; what it
wishes for travels to every rank, rank 0 included, with the requests that SGLang broadcasts each turn
(``specswitch.engine.rank_channel``), and is acted upon in the turn that receives it.  With it travels what rank 0
looked like when it decided; another rank that looked different in that turn has diverged, and the next forward of the
two would never end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specswitch.policy.base import Policy, Wish
from specswitch.signals import LoadSample, Mode

HEARTBEAT_STEPS = 64
"""Decode steps after which rank 0 sends its wish again though it has not changed."""


class RankDisagreement(RuntimeError):  # noqa: N818 - it says what happened
    """Two ranks are in different states; going on would hang both."""


@dataclass(frozen=True, slots=True)
class View:
    """What a rank's Switch looked like in one turn; equal on all ranks as long as they agree."""

    mode: Mode
    decode_step: int
    decode_batch_size: int
    queue_length: int

    @classmethod
    def of(cls, sample: LoadSample) -> View:
        return cls(sample.mode, sample.decode_step, sample.decode_batch_size, sample.queue_length)


@dataclass(frozen=True, slots=True)
class Decision:
    """What rank 0 sends; small and picklable."""

    epoch: int
    """Counts the decisions from 1."""
    wish: Wish
    seen: View
    """Rank 0 in the turn in which it decided."""
    waits: tuple[tuple[float, float, int], ...] = ()
    """What rank 0 has measured while catching up, for all ranks to write the same tokens."""


class Follower:
    """A policy that wishes for what was decided last."""

    def __init__(self) -> None:
        self._wish: Wish | None = None
        self._epoch = 0
        self._seen: LoadSample | None = None

    def __call__(self, sample: LoadSample) -> Wish | None:
        self._seen = sample
        return self._wish

    def deliver(self, decision: Decision) -> None:
        """A decision arrived; called on every rank before the same turn's batch is chosen.

        Raises:
            RankDisagreement: a decision is missing, or this rank was in another state than rank 0.
        """
        self._epoch += 1
        if decision.epoch != self._epoch:
            raise RankDisagreement(
                f"specswitch decision {decision.epoch} arrived where {self._epoch} was expected:"
                " the ranks no longer take the same turns, restart the server."
            )
        seen = decision.seen if self._seen is None else View.of(self._seen)
        if seen != decision.seen:
            raise RankDisagreement(
                f"at specswitch decision {decision.epoch} rank 0 was at {decision.seen} and this rank at {seen}:"
                " the ranks have diverged and would hang, restart the server."
            )
        self._wish = decision.wish


class Leader(Follower):
    """Rank 0's policy: decides, sends, and follows like every other rank."""

    def __init__(
        self,
        policy: Policy,
        send: Callable[[Decision], None],
        waits: Callable[[], tuple[tuple[float, float, int], ...]] = tuple,
    ) -> None:
        super().__init__()
        self._waits = waits
        self._policy = policy
        self._send = send
        self._sent: Wish | None = None
        self._sent_epoch = 0
        self._sent_step = 0

    def __call__(self, sample: LoadSample) -> Wish | None:
        wish = self._policy(sample) or self._sent
        if wish is not None and self._is_news(wish, sample):
            self._sent, self._sent_step = wish, sample.decode_step
            self._sent_epoch += 1
            self._send(Decision(self._sent_epoch, wish, View.of(sample), self._waits()))
        return super().__call__(sample)

    def _is_news(self, wish: Wish, sample: LoadSample) -> bool:
        if self._sent is None or (wish.mode, wish.sampled) != (self._sent.mode, self._sent.sampled):
            return True
        return sample.decode_step - self._sent_step >= HEARTBEAT_STEPS
