"""What a look at a sample counts, step by step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from specswitch.engine.look import Look, is_left_out


def request(rid: str) -> Any:
    made = SimpleNamespace(rid=rid, output_ids=[1], done=False)
    made.finished = lambda: made.done
    return made


def put_out(reqs: list[Any], *tokens: int) -> None:
    for req, more in zip(reqs, tokens, strict=True):
        req.output_ids += [2] * more


def test_only_the_sample_shows_what_the_draft_can_do() -> None:
    sample, others = [request("a"), request("b")], [request("c"), request("d"), request("e")]
    look, everybody = Look(sample, others), [*sample, *others]
    put_out(everybody, 3, 3, 1, 1, 1)
    assert look.verified(everybody) == (0, 0), "what they had before the first step is not known"
    assert look.shown == (3, 2, 0, ())
    put_out(everybody, 3, 2, 1, 1, 1)
    assert look.verified(everybody) == (2, 5)
    put_out(everybody, 4, 2, 1, 1, 1)
    assert look.verified(everybody) == (2, 6)
    assert look.shown == (3, 2, 2, (3.5, 2.0))


def test_who_ends_leaves_or_joins() -> None:
    sample, others = [request("a"), request("b"), request("r")], [request("c")]
    look, joined = Look(sample, others), request("j")
    look.verified([*sample, *others])
    sample[0].done = True
    batch = [*sample[:2], joined, *others]  # "r" was retracted
    put_out(batch, 3, 2, 3, 1)
    assert look.verified(batch) == (1, 2)
    assert look.shown == (1, 2, 1, (2.0,))
    batch = [*sample, joined, *others]
    put_out(batch, 0, 2, 3, 3, 1)
    assert look.verified(batch) == (2, 5), "one that joined counts from its second step on"
    assert look.shown == (1, 2, 2, (2.0,)), "one that came back shows nothing of the whole time"


def test_it_is_over_when_nobody_is_left_out_any_more() -> None:
    look = Look([request("a")], [other := request("b")])
    assert is_left_out(other)
    other.done = True
    assert look.shown is None
    look.end()
    assert not is_left_out(other)
