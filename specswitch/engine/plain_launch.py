"""What a scheduler looks like while it launches a decode batch as a server without speculation does."""

from __future__ import annotations

from typing import Any

from specswitch.engine.plain_graphs import PlainForward, graph_slot


class PlainLaunch:
    """A context manager around each launch of a plain batch: one object for all of them, which cannot be nested.

    The attributes are spelt out, and nothing else is called: after a model's step nothing of this is left in the
    processor's caches, and a loop over names, or a context within, takes several times as long.
    """

    def __init__(self, scheduler: Any, forward: PlainForward, relay: Any = None) -> None:
        """
        Args:
            scheduler: SGLang's ``Scheduler``.
            forward: what the target's model runner holds in here.
            relay: a ``FutureMap`` that goes by its own ``spec_algo``.
        """
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        self.active = False
        """Whether a plain batch is being launched."""
        self._scheduler, self._target, self._relay = scheduler, scheduler.tp_worker, relay
        self._algorithm, self._none = scheduler.spec_algorithm, SpeculativeAlgorithm.NONE
        self._worker: Any = None
        self._enable_spec: Any = None
        self._runner = scheduler.tp_worker.model_runner
        self._runner_attributes = vars(self._runner)
        self._slot = graph_slot(self._runner)
        self._plain_graphs, self._plain_backend = forward
        self._graphs: Any = None
        self._backend: Any = None
        self._runner_algorithm: Any = None

    def __enter__(self) -> None:
        scheduler, target, runner = self._scheduler, self._target, self._runner
        self.active = True
        self._worker, self._enable_spec = scheduler.model_worker, target.enable_spec
        scheduler.model_worker, scheduler.spec_algorithm, target.enable_spec = target, self._none, False
        if self._relay is not None:
            self._relay.spec_algo = self._none
        self._graphs = self._runner_attributes[self._slot]
        self._runner_attributes[self._slot] = self._plain_graphs
        if self._plain_backend is not None:
            self._backend, self._runner_algorithm = runner.attn_backend, runner.spec_algorithm
            runner.attn_backend, runner.spec_algorithm = self._plain_backend, self._none

    def __exit__(self, *exception: object) -> None:
        scheduler, runner = self._scheduler, self._runner
        self.active = False
        scheduler.model_worker, scheduler.spec_algorithm = self._worker, self._algorithm
        self._target.enable_spec = self._enable_spec
        if self._relay is not None:
            self._relay.spec_algo = self._algorithm
        self._runner_attributes[self._slot] = self._graphs
        if self._plain_backend is not None:
            runner.attn_backend, runner.spec_algorithm = self._backend, self._runner_algorithm
