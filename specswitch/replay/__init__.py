"""A serving loop in simulated time, driven by the real Switch and policies over a load trace.  No GPU, no SGLang."""
