"""Makes the tiny trained models of the embedded CPU engine: text, tokenizer, target, heads and draft.

``examples/train_tiny_models.py`` is the command; each module here has one job:

* :mod:`tiny_models.world` writes the text all models learn;
* :mod:`tiny_models.bpe` trains the tokenizer on it;
* :mod:`tiny_models.nets` holds the networks, layer for layer as SGLang runs them;
* :mod:`tiny_models.training` trains the target, the two EAGLE heads and the draft;
* :mod:`tiny_models.acceptance` measures, offline, how many draft tokens the target accepts;
* :mod:`tiny_models.export` writes checkpoints SGLang loads.
"""
