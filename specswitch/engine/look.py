"""A return that catches up a sample of the running requests and leaves the others out, to see how they accept.

Those left out speculate meanwhile without what their draft has missed.  None of that is forgotten: their gaps stay
open (``draft_gap``), and once PLAIN has been entered again they are caught up as if there had been no look.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from specswitch.signals import SampleLook

_LEFT_OUT_OF = "specswitch_left_out_of"


class Look:
    """From the wish for such a return until PLAIN is entered again, or the return is given up."""

    def __init__(self, sample: Iterable[Any], left_out: Iterable[Any]) -> None:
        """
        Args:
            sample: SGLang's ``Req`` of each request to be caught up.
            left_out: the others.
        """
        self.running = True
        self._sample = list(sample)
        self._left_out = list(left_out)
        for req in self._left_out:
            setattr(req, _LEFT_OUT_OF, self)
        self._known: dict[str, int] = {}
        """Tokens that a request of the batch has put out, by its id, after the last verify step."""
        self._at_first: dict[str, int] | None = None
        """The same of the sample, after the first one, for those that have been in all since."""
        self._steps = 0
        """Verify steps since that one."""

    def end(self) -> None:
        """Nobody is left out any more."""
        self.running = False

    def verified(self, reqs: Sequence[Any]) -> tuple[int, int]:
        """A verify step of these requests has been processed.

        Returns:
            How many of them show how well the draft guesses, and tokens that the step put out for these: for none that
            was left out, that ended or whose first step this was.
        """
        requests = tokens = 0
        known, self._known = self._known, {}
        for req in reqs:
            if req.finished() or is_left_out(req):
                continue
            self._known[req.rid] = put_out = len(req.output_ids)
            if req.rid in known:
                requests += 1
                tokens += put_out - known[req.rid]
        if self._at_first is None:
            self._at_first = {req.rid: self._known[req.rid] for req in self._sample if req.rid in self._known}
        else:
            self._steps += 1
            self._at_first = {rid: tokens for rid, tokens in self._at_first.items() if rid in self._known}
        return requests, tokens

    @property
    def shown(self) -> SampleLook | None:
        """What the sample has shown so far; None where nobody that was left out still runs."""
        left_out, sampled = (sum(not req.finished() for req in reqs) for reqs in (self._left_out, self._sample))
        if not left_out:
            return None
        steps = self._steps
        since = self._at_first.items() if steps and self._at_first is not None else ()
        return SampleLook(left_out, sampled, steps, tuple((self._known[rid] - tokens) / steps for rid, tokens in since))


def is_left_out(req: Any) -> bool:
    """Whether a look that runs has left the request out, or is about to."""
    look: Look | None = getattr(req, _LEFT_OUT_OF, None)
    return look is not None and look.running
