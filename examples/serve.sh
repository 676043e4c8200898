#!/usr/bin/env bash
# serve.sh MODEL DRAFT [FLAG ...]: SGLang with an EAGLE3 draft, switching by load; further flags go to SGLang as they are.
set -eu
model=$1 draft=$2
shift 2

# At 48 requests or more in the decode batch drafting stops, at 32 or fewer it resumes.
# In between nothing changes, and each mode lasts 64 decode steps at least.
exec python -m sglang.launch_server \
    --model-path "$model" \
    --speculative-algorithm EAGLE3 \
    --speculative-draft-model-path "$draft" \
    --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 \
    --enable-specswitch \
    --specswitch-high-watermark 48 \
    --specswitch-low-watermark 32 \
    --specswitch-dwell-steps 64 \
    --specswitch-log-format json \
    "$@"
