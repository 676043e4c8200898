"""``sglang.Engine`` that switches: it reads no flags, so the settings come from ``SPECSWITCH_*`` variables.

Runs on the embedded models without a GPU.  With a model of your own, leave out the two lines of the CPU engine and
give ``sglang.Engine`` your arguments; the rest stays.
"""

from __future__ import annotations

import os

from specswitch.cpu_engine import environment
from specswitch.cpu_engine.prompts import PROMPTS


def main() -> None:
    release = environment.activate()
    arguments = release.server_arguments("eagle3-v2" if "eagle3-v2" in release.modes else "eagle3-topk1")

    # before the engine is made: its processes inherit them
    os.environ.update(
        SPECSWITCH_ENABLE="1",
        SPECSWITCH_HIGH_WATERMARK="4",
        SPECSWITCH_LOW_WATERMARK="1",
        SPECSWITCH_DWELL_STEPS="4",
    )
    import sglang

    engine = sglang.Engine(**arguments)
    try:
        sampling = {"temperature": 0, "max_new_tokens": 48}
        engine.generate(PROMPTS[0], sampling)
        engine.generate(list(PROMPTS[:6]), sampling)  # six at once are above the high watermark
        engine.generate(PROMPTS[1], sampling)
        status = engine.get_server_info()["internal_states"][0]["specswitch"]
        print(f"mode {status['mode']}, decode steps {status['steps']}, transitions {status['transitions_by_kind']}")
    finally:
        engine.shutdown()


if __name__ == "__main__":
    main()
