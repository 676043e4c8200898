"""The real SGLang on a machine without a GPU, for the demo, the examples and the tests.

* :mod:`~specswitch.cpu_engine.releases` what each SGLang release needs here: pins, arguments, modes
* :mod:`~specswitch.cpu_engine.install` one virtual environment per release
* :mod:`~specswitch.cpu_engine.environment` the environment a process must have
* :mod:`~specswitch.cpu_engine.inprocess` the real Scheduler in this process, stepped by hand
* :mod:`~specswitch.cpu_engine.server` the real HTTP server as a context manager

No GPU is imitated: there are no CUDA graphs, streams do nothing, and attention is written in torch.
"""
