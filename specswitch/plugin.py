"""The door: what SGLang's plugin entry point ``sglang.srt.plugins`` calls in every process.

SGLang calls :func:`register` in the launcher, before it parses the command line, and at the start of every
scheduler process (``sglang/srt/plugins/__init__.py`` ``load_plugins``, 0.5.11 and later).  A process that was not
asked for specswitch gets no hook at all.  SGLang logs and swallows what ``register`` raises, so everything that
may refuse is done in the hooks.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn

from specswitch import config as configuration
from specswitch import profile as profiles
from specswitch.calibrate import at_start
from specswitch.commands import Commands
from specswitch.config import SwitchConfig
from specswitch.engine import admission, build, control_channel, plain_graphs, profile_key, request_metrics, warm_up
from specswitch.engine.base import EngineFacts, LiveEngine, Rehearsal
from specswitch.engine.contract import ContractReport, check_installed
from specswitch.engine.hooks import InstanceHooks
from specswitch.engine.rank_channel import RankChannel, tensor_parallel
from specswitch.errors import ContractError, ControlError, SpecswitchError, UnsupportedError
from specswitch.observe.log import EventLog, get_logger
from specswitch.observe.observer import ReportingObserver
from specswitch.observe.status import Status
from specswitch.policy import Policy, Steering, around, automatic, steered
from specswitch.profile_source import ProfileSource
from specswitch.ranks import Decision, Follower, Leader
from specswitch.switch import Switch

_SERVER_ARGS = "sglang.srt.server_args.ServerArgs"
_has_command_line = False
_SCHEDULER_INIT = "sglang.srt.managers.scheduler.Scheduler.__init__"


def register() -> None:
    """Register the hooks that add the flags, check the start and wire a Switch into each scheduler."""
    if not _is_asked_for(sys.argv[1:], os.environ):
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(f"{_SERVER_ARGS}.add_cli_args", _add_flags, HookType.AFTER)
    HookRegistry.register(f"{_SERVER_ARGS}.from_cli_args", _read_flags, HookType.AROUND)
    HookRegistry.register(f"{_SERVER_ARGS}.{_resolver()}", _check_start, HookType.AFTER)
    HookRegistry.register(admission.resolver(), _resolve_speculation, HookType.AROUND)
    HookRegistry.register(_SCHEDULER_INIT, _construct, HookType.AROUND)
    if not os.environ.get(configuration.RESOLVED_VARIABLE):  # a launcher: the processes that it starts answer no HTTP
        HookRegistry.register(request_metrics.TARGET, request_metrics.correct_accept_length, HookType.AFTER)
        HookRegistry.register(control_channel.TARGET, _set_internal_state, HookType.AROUND)
        HookRegistry.register(warm_up.TARGET, _warm_up, HookType.AROUND)


def _is_asked_for(argv: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether this process may need specswitch: by flag, by variable, or by SGLang's own ``--config`` file."""
    if any(environ.get(name) for name in (configuration.ENABLE_VARIABLE, configuration.RESOLVED_VARIABLE)):
        return True
    ours = (configuration.ENABLE_FLAG, "--specswitch-", "--config", "--help", "-h")
    return any(argument.startswith(ours) for argument in argv)


def _resolver() -> str:
    """The method after which a ``ServerArgs`` holds its final values."""
    from sglang.srt.server_args import ServerArgs

    return "resolve_once" if hasattr(ServerArgs, "resolve_once") else "__post_init__"


def _add_flags(result: None, parser: argparse.ArgumentParser) -> None:
    configuration.add_arguments(parser)


def _read_flags(original: Callable[..., Any], cls: type, args: argparse.Namespace) -> Any:
    global _has_command_line
    _has_command_line = True
    try:
        _hand_down(configuration.load(args, os.environ))
        return original(cls, args)
    except SpecswitchError as error:
        _refuse(error)


def _refuse(error: SpecswitchError) -> NoReturn:
    """End a command with its one sentence; let a program that embeds SGLang handle the exception."""
    if _has_command_line:
        sys.exit(f"specswitch: {error}")
    raise error


def _hand_down(config: SwitchConfig | None) -> None:
    os.environ.pop(configuration.RESOLVED_VARIABLE, None)
    if config is not None:
        os.environ.update(configuration.to_environ(config))


def _handed_down() -> SwitchConfig | None:
    """The launcher's configuration, resolved here for ``sglang.Engine(...)``, which parses no flags."""
    config = configuration.from_environ(os.environ)
    if config is None:
        config = configuration.load(None, os.environ)
        _hand_down(config)
    return config


@cache
def _contract() -> ContractReport:
    return check_installed()


def _resolve_speculation(original: Callable[..., None], server_args: Any) -> None:
    """Resolve speculation without SGLang's own limit on running requests, where PLAIN will take the load beyond."""
    config = _handed_down()
    if config is None or not _contract().ok or not admission.leaves_speculation(config):
        original(server_args)
    else:
        admission.without_default_limit(original, server_args)


def _check_start(result: None, server_args: Any, *args: Any, **kwargs: Any) -> None:
    """Refuse what cannot be switched before the model loads.

    Raises:
        SpecswitchError: one sentence for the operator; the command line turns it into an exit status.
    """
    config = _handed_down()
    if config is None:
        return
    try:
        _check(config, server_args)
    except SpecswitchError as error:
        _refuse(error)


def _check(config: SwitchConfig, server_args: Any) -> None:
    report = _contract()
    if not report.ok:
        if config.on_mismatch == "refuse":
            raise ContractError(report.message())
        return
    sentence = build.refusal(report, server_args, config)
    if sentence is not None:
        raise UnsupportedError(sentence)
    if config.policy == "goodput" and config.profile:  # what is wrong with it is told before the model loads
        path = Path(config.profile)
        profiles.fit(profiles.load(path), path, build.key(report, server_args))


async def _set_internal_state(original: Callable[..., Any], tokenizer_manager: Any, request: Any) -> Any:
    if configuration.from_environ(os.environ) is None:
        return await original(tokenizer_manager, request)
    return await control_channel.check_at_the_door(original, tokenizer_manager, request, _contract().ok)


def _warm_up(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    config = configuration.from_environ(os.environ)
    if config is not None and _contract().ok and at_start.is_due(config):
        client = warm_up.client_of(args[0] if args else kwargs["server_args"])
        log = EventLog(get_logger(config.log_format, 0))
        at_start.calibrate(client, config, log.calibration, log.warning)
    original(*args, **kwargs)


def _construct(original: Callable[..., None], scheduler: Any, *args: Any, **kwargs: Any) -> None:
    config = configuration.from_environ(os.environ)
    if config is None:
        original(scheduler, *args, **kwargs)
        return
    if _contract().ok:
        with plain_graphs.beside(scheduler, args[0] if args else kwargs["server_args"], config):
            original(scheduler, *args, **kwargs)
    else:
        original(scheduler, *args, **kwargs)
    _attach(scheduler, config)


def _attach(scheduler: Any, config: SwitchConfig) -> None:
    report = _contract()
    rank, ranks = tensor_parallel(scheduler)
    log = EventLog(get_logger(config.log_format, rank))
    if not report.ok:
        log.warning(report.message() + " Serving without switching, as --specswitch-on-mismatch asks.")
        return
    engine = build.create(report, scheduler, config)
    if report.newer_than_tested:
        log.warning(report.message())
    source = _profile_source(scheduler, engine.facts, config, log) if rank == 0 else None  # which decides for all
    graphs, admitted = plain_graphs.of(scheduler), admission.facts(scheduler)
    key = None if source is None else source.key
    status = Status(engine.facts, config, key, admitted, graphs.facts.batch_sizes if graphs is not None else ())
    observer = ReportingObserver(log, status)
    steering = Steering(config.mode)
    profile = None if source is None else source.at_start()
    deciding = steered(config, steering, profile)
    policy = around(config, deciding)
    if ranks > 1:
        policy = _decided_on_rank_0(policy, scheduler, rank, engine)
    switch = Switch(engine, policy, config, observer, steering=steering)
    scheduler.specswitch = switch
    engine.attach(switch)
    if config.draft_kv == "catch-up":
        engine.rehearse(partial(_report_rehearsal, log))

    def use_profile() -> None:
        if config.policy != "goodput":
            raise ControlError("A profile has no effect with --specswitch-policy watermark: choose goodput.")
        if source is not None:
            deciding.auto = automatic(config, source.read())
            switch.reconsider()
            observer.profile(source.path)

    control_channel.attach(InstanceHooks(), scheduler, Commands(switch, log, use_profile).handle)
    log.active(engine.facts, config)
    log.admission(admitted)
    if graphs is not None:
        graphs.on_first_eager = log.warning
        log.plain_graphs(graphs.facts)
    if config.policy == "goodput" and source is not None:
        observer.profile(None if profile is None else source.path)


def _report_rehearsal(log: EventLog, outcome: Rehearsal | Exception) -> None:
    if isinstance(outcome, Rehearsal):
        log.rehearsal(outcome)
    else:
        log.warning(
            f"The forwards of a return could not be tried at start ({type(outcome).__name__}: {outcome}): the first"
            " returns may pause the running requests for longer than --specswitch-max-pause-ms."
        )


def _profile_source(scheduler: Any, facts: EngineFacts, config: SwitchConfig, log: EventLog) -> ProfileSource:
    key = profile_key.key_of(scheduler.server_args, facts.release, facts.path)
    return ProfileSource(config, key, log.warning)


def _decided_on_rank_0(policy: Policy, scheduler: Any, rank: int, engine: LiveEngine) -> Policy:
    channel = RankChannel(scheduler)
    follower = Leader(policy, channel.send, engine.waits) if rank == 0 else Follower()

    def deliver(decision: Decision) -> None:
        follower.deliver(decision)
        engine.use_waits(decision.waits)

    channel.attach(InstanceHooks(), deliver)
    return follower
