"""Which sampling features requests use (names of ``specswitch.signals.SAMPLING_FEATURES``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_FEATURES = "specswitch_features"


def used_by(reqs: Iterable[Any], watched: frozenset[str]) -> frozenset[str]:
    """The ``watched`` features that any of SGLang's ``Req`` objects uses."""
    if not watched:
        return frozenset()
    used: frozenset[str] = frozenset()
    for req in reqs:
        mine = getattr(req, _FEATURES, None)
        if mine is None:
            mine = frozenset(_features_of(req))
            setattr(req, _FEATURES, mine)
        used |= mine
    return used & watched


def _features_of(req: Any) -> Iterable[str]:
    params = req.sampling_params
    if req.grammar is not None:
        yield "grammar"
    if req.return_logprob:
        yield "logprobs"
    if (
        params.frequency_penalty
        or params.presence_penalty
        or params.repetition_penalty != 1.0
        or params.min_new_tokens > 0
    ):
        yield "penalties"
    if params.logit_bias:
        yield "logit_bias"
    if params.min_p > 0:
        yield "min_p"
    if req.return_hidden_states:
        yield "hidden_states"
