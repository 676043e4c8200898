from __future__ import annotations

from typing import Any

import pytest

from specswitch.engine.request_metrics import correct_accept_length


def corrected(meta_info: dict[str, Any]) -> dict[str, Any]:
    correct_accept_length(None, None, meta_info, None, 0)
    return meta_info


@pytest.mark.parametrize("accepted_drafts", ["spec_num_correct_drafts", "spec_accepted_drafts"])
def test_tokens_decoded_plain_do_not_count(accepted_drafts: str) -> None:
    # 64 tokens, of which 10 verify steps put out 25
    stock = {"completion_tokens": 64, "spec_verify_ct": 10, accepted_drafts: 15, "spec_accept_length": 6.4}
    assert corrected(stock)["spec_accept_length"] == 2.5


def test_no_draft_token_accepted_is_one() -> None:
    assert corrected({"spec_verify_ct": 7, "spec_num_correct_drafts": 0})["spec_accept_length"] == 1.0


@pytest.mark.parametrize(
    "meta_info", [{}, {"completion_tokens": 5}, {"spec_verify_ct": 0, "spec_num_correct_drafts": 0}]
)
def test_a_request_without_verify_steps_is_left_alone(meta_info: dict[str, Any]) -> None:
    assert corrected(dict(meta_info)) == meta_info
