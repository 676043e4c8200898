"""PLAIN for requests whose sampling the operator does not want verified."""

from __future__ import annotations

from dataclasses import dataclass

from specswitch.policy.base import Policy, Wish, boundaries_of
from specswitch.signals import LoadSample, Mode


@dataclass(frozen=True, slots=True)
class PlainFor:
    """PLAIN while a running request uses one of ``features``; otherwise what ``inner`` wishes.

    It stands outside a dwell: such a request is moved to PLAIN at once.
    """

    features: frozenset[str]
    inner: Policy

    @property
    def boundaries(self) -> frozenset[int] | None:
        return boundaries_of(self.inner)

    def __call__(self, sample: LoadSample) -> Wish | None:
        present = sample.sampling_features & self.features
        if present:
            return Wish(Mode.PLAIN, f"running requests use {', '.join(sorted(present))}")
        return self.inner(sample)
