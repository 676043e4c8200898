"""What an operator, and experience, have decided about the goodput policy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GoodputSettings:
    """What bounds the policy's eagerness."""

    hysteresis: float = 0.005
    """The share by which the other mode's goodput must be higher before it counts for anything."""
    probe_share: float = 0.005
    """The share of decode time that probes may cost at worst; 0 never probes."""
    dwell_steps: int = 32
    """The least stay in a mode, as the surrounding Dwell keeps it."""
    accept_memory_steps: int = 2048
    """Decode steps after which a change of the accept length is expected, before any has been seen."""
    step_time_memory_steps: int = 16384
    """The same for the step time of PLAIN, which depends on no traffic."""
    step_time_doubt: float = 0.25
    """By how much PLAIN may be faster than calibrated once nothing is left of that trust."""
    read_step_time_doubt: float = 0.05
    """The same where PLAIN has been read at the batch size."""
    load_memory_steps: int = 512
    """Decode steps over which a load that goes up and down is averaged."""
    probe_gain: float = 0.02
    """The least advantage that a probe must make conceivable."""
    savings_seconds: float = 1800.0
    """Decode time whose share for probes may be saved up."""
    reinvested: float = 0.5
    """The share of what speculation has gained over PLAIN that may be spent on probes for it."""
    probes_ahead: float = 8.0
    """For how many probes that may be saved up."""
    least_look_steps: int = 3
    """Verify steps after which a probe may end."""
    sample_sizes: tuple[int, ...] = (8, 16, 32)
    """Requests that a probe may look at without the others."""
    alike_steps: float = 12.0
    """Verify steps of a request that are taken to say no more than one, since easy and hard passages are longer."""
    certainty: float = 2.0
    """Standard errors by which the accept length must be too low for a probe to end before its dwell."""
    probe_growth: float = 2.0
    """The growth of its worst cost at which a probe that has been asked for, and not come yet, is given up."""
