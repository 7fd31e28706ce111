"""What the keys of UniRL, SkyRL, verl, NeMo RL and TRL are called in a recipe of this project.

In `EQUIVALENTS` the first word is the recipe key; what follows it says how the value differs.
`NOT_HERE` gives the reason why a key has none. Both hold the names of configuration files of
August 2026.
"""

from collections.abc import Iterator, Mapping
from typing import Any

_STEPS = "(steps are num_iterations x steps_per_iteration)"
_SAVES = "(each iteration ends in a checkpoint)"
_EVALUATIONS = "(in iterations of training.steps_per_iteration steps)"
_ENGINE = "(in_process, dedicated or vllm)"
_DEVICES = "(of all nodes together)"
_TURNS = "(max_turns of each environment)"

EQUIVALENTS: dict[str, dict[str, str]] = {
    "UniRL": {
        "data_source.args.run.data_path": "data.train",
        "data_source.args.run.eval_data_path": "data.eval",
        "data_source.args.run.seed": "seed",
        "data_source.args.algorithm.prompts_per_rollout": "training.prompts_per_step",
        "data_path": "data.train",
        "eval_data_path": "data.eval",
        "batch_size": "training.prompts_per_step",
        "num_rollouts": f"training.num_iterations {_STEPS}",
        "eval_interval": f"evaluation.eval_every {_EVALUATIONS}",
        "save_interval": f"training.steps_per_iteration {_SAVES}",
        "num_devices": f"placement.num_devices {_DEVICES}",
        "devices_per_node": "placement.devices_per_node",
        "workers_per_device": "placement.workers_per_device",
        "normalize_adv_by_std": "algorithm.advantage.norm_by_std",
        "adv_use_global_std": "algorithm.advantage.std_scope (batch)",
        "adv_normalization_scope": "algorithm.advantage.std_scope (global is batch here)",
        "bundle.config.pretrained_model_ckpt_path": "model.path",
        "bundle.config.freeze_vision_tower": "model.frozen",
        "bundle.config.use_gradient_checkpointing": "fsdp.activation_checkpointing",
        "bundle.config.max_prompt_length": "data.max_prompt_length",
        "bundle.config.shift": "diffusion.shift",
        "pipeline.shift": "diffusion.shift",
        "pipeline.max_prompt_length": "data.max_prompt_length",
        "pipeline.enable_thinking": "model.chat_template_kwargs",
        "backend.fsdp_cfg.param_dtype": "fsdp.param_dtype",
        "backend.fsdp_cfg.master_dtype": "fsdp.master_dtype",
        "backend.fsdp_cfg.fsdp_mode": "fsdp.fsdp_mode",
        "backend.fsdp_cfg.cpu_offload": "fsdp.cpu_offload",
        "backend.fsdp_cfg.reshard_after_forward": "fsdp.reshard_after_forward",
        "backend.fsdp_cfg.activation_checkpointing": "fsdp.activation_checkpointing",
        "backend.fsdp_cfg.use_torch_compile": "fsdp.torch_compile",
        "backend.fsdp_cfg.defer_grad_sync": "fsdp.defer_grad_sync",
        "backend.fsdp_cfg.forward_prefetch": "fsdp.forward_prefetch (a number of blocks)",
        "backend.fsdp_cfg.root_wrap": "fsdp.root_wrap",
        "backend.optimizer_cfg.learning_rate": "optimizer.learning_rate",
        "backend.optimizer_cfg.adam_beta1": "optimizer.betas (both in one list)",
        "backend.optimizer_cfg.adam_beta2": "optimizer.betas (both in one list)",
        "backend.optimizer_cfg.adam_epsilon": "optimizer.eps",
        "backend.optimizer_cfg.weight_decay": "optimizer.weight_decay",
        "backend.scheduler_cfg.type": "scheduler.kind",
        "backend.scheduler_cfg.warmup_steps": "scheduler.warmup_steps",
        "backend.lora_cfg.rank": "lora.rank",
        "backend.lora_cfg.alpha": "lora.alpha",
        "backend.lora_cfg.dropout": "lora.dropout",
        "backend.lora_cfg.target_modules": "lora.target_modules",
        "backend.ema_lora_cfg.rank": "lora.rank",
        "backend.ema_lora_cfg.alpha": "lora.alpha",
        "backend.ema_lora_cfg.target_modules": "lora.target_modules",
        "backend.ema_lora_cfg.ema_decay": "ema_lora.decay",
        "backend.ema_lora_cfg.ema_decay_type": "ema_lora.warmup",
        "backend.ema_lora_cfg.ema_uprate": "ema_lora.ramp_step",
        "backend.ema_full_cfg.target_decay": "ema_full.decay",
        "rollout.config.temperature": "rollout.temperature",
        "rollout.config.max_new_tokens": "rollout.max_new_tokens",
        "rollout.config.tp_size": "placement.tp_size",
        "rollout.config.concurrency": "rollout.max_batch_size",
        "rollout.config.chat_template_kwargs": "model.chat_template_kwargs",
        "rollout.config.engine_kwargs.mem_fraction_static": "rollout.vllm.memory_share",
        "rollout.forward_batch_size": "rollout.max_batch_size",
        "reward.truncated_reward": "reward_service.truncated",
        "reward.backend": "rewards (a list, each by its name)",
        "algorithm.clip_range": "algorithm.clip_low (and clip_high)",
        "algorithm.clip_range_high": "algorithm.clip_high",
        "algorithm.loss_agg_mode": "algorithm.loss.aggregation",
        "algorithm.adv_clip_max": "algorithm.max_advantage",
        "algorithm.kl_coef": "algorithm.kl.coef",
        "sync.bucket_size_mb": "rollout.sync.bucket_bytes (in bytes)",
        "sync.lora_merged": "rollout.sync.mode (full is merged)",
        "stack.micro_batch_size": "placement.micro_batch_size",
        "stack.max_grad_norm": "training.max_grad_norm",
        "stack.num_updates_per_batch": "training.num_updates_per_batch",
        "sampling.samples_per_prompt": "rollout.samples_per_prompt",
        "sampling.temperature": "rollout.temperature",
        "sampling.max_new_tokens": "rollout.max_new_tokens",
        "sampling.num_inference_steps": "diffusion.num_steps",
        "sampling.guidance_scale": "diffusion.guidance_scale",
        "sampling.height": "diffusion.height",
        "sampling.width": "diffusion.width",
        "sampling.num_frames": "diffusion.num_frames",
        "sampling.eta": "algorithm.sde.eta",
        "sampling.seed": "seed",
        "sampling.init_same_noise": "diffusion.share_noise",
        "sampling.scheduler.num_sde_steps": "algorithm.sde.steps.size",
        "sampling.sde_indices": "algorithm.sde.steps",
        "sampling.ar.samples_per_prompt": "rollout.samples_per_prompt",
        "sampling.ar.temperature": "rollout.temperature",
        "sampling.ar.max_new_tokens": "rollout.max_new_tokens",
        "sampling.diffusion.samples_per_prompt": "tracks.images.samples_per_rewrite",
        "sampling.diffusion.num_inference_steps": "diffusion.num_steps",
        "sampling.diffusion.guidance_scale": "diffusion.guidance_scale",
        "sampling.diffusion.height": "diffusion.height",
        "sampling.diffusion.width": "diffusion.width",
        "sampling.diffusion.eta": "tracks.images.algorithm (sde.eta in it)",
        "ar.bundle.config.pretrained_model_ckpt_path": "model.path",
        "diffusion.bundle.config.pretrained_model_ckpt_path": "tracks.images.model.path",
        "diffusion.backend.lora_cfg.rank": "tracks.images.lora.rank",
        "diffusion.backend.lora_cfg.alpha": "tracks.images.lora.alpha",
        "diffusion.backend.optimizer_cfg.learning_rate": ("tracks.images.optimizer.learning_rate"),
        "diffusion.stack.micro_batch_size": "tracks.images.micro_batch_size",
    },
    "SkyRL": {
        "data.train_data": "data.train",
        "data.val_data": "data.eval",
        "trainer.seed": "seed",
        "trainer.train_batch_size": "training.prompts_per_step",
        "trainer.policy_mini_batch_size": (
            "training.num_updates_per_batch (train_batch_size / policy_mini_batch_size)"
        ),
        "trainer.micro_train_batch_size_per_gpu": "placement.micro_batch_size",
        "trainer.max_tokens_per_microbatch": "placement.max_tokens_per_micro_batch",
        "trainer.update_epochs_per_batch": "training.num_epochs",
        "trainer.epochs": f"training.num_iterations {_STEPS}",
        "trainer.max_training_steps": f"training.num_iterations {_STEPS}",
        "trainer.eval_interval": f"evaluation.eval_every {_EVALUATIONS}",
        "trainer.eval_batch_size": "evaluation.batch_size",
        "trainer.ckpt_interval": f"training.steps_per_iteration {_SAVES}",
        "trainer.max_ckpts_to_keep": "training.keep_last",
        "trainer.max_prompt_length": "data.max_prompt_length",
        "trainer.gradient_checkpointing": "fsdp.activation_checkpointing",
        "trainer.flash_attn": "model.attention (flash_attention_2)",
        "trainer.policy.model.path": "model.path",
        "trainer.policy.model.lora.rank": "lora.rank",
        "trainer.policy.model.lora.alpha": "lora.alpha",
        "trainer.policy.model.lora.dropout": "lora.dropout",
        "trainer.policy.model.lora.target_modules": "lora.target_modules",
        "trainer.policy.optimizer_config.lr": "optimizer.learning_rate",
        "trainer.policy.optimizer_config.adam_betas": "optimizer.betas",
        "trainer.policy.optimizer_config.weight_decay": "optimizer.weight_decay",
        "trainer.policy.optimizer_config.max_grad_norm": "training.max_grad_norm",
        "trainer.policy.optimizer_config.num_warmup_steps": "scheduler.warmup_steps",
        "trainer.policy.optimizer_config.scheduler": "scheduler.kind",
        "trainer.policy.fsdp_config.cpu_offload": "fsdp.cpu_offload",
        "trainer.policy.fsdp_config.reshard_after_forward": "fsdp.reshard_after_forward",
        "trainer.policy.fsdp_config.mixed_precision.param_dtype": "fsdp.param_dtype",
        "trainer.policy.fsdp_config.mixed_precision.reduce_dtype": "fsdp.reduce_dtype",
        "trainer.policy.sequence_parallel_size": "placement.sp_size",
        "trainer.policy.use_torch_compile": "fsdp.torch_compile",
        "trainer.critic.optimizer_config.lr": "value_model.optimizer.learning_rate",
        "trainer.placement.policy_num_gpus_per_node": f"placement.num_devices {_DEVICES}",
        "trainer.placement.colocate_all": f"rollout.engine {_ENGINE}",
        "trainer.algorithm.advantage_estimator": "algorithm.advantage (its name)",
        "trainer.algorithm.policy_loss_type": "algorithm.loss (its name)",
        "trainer.algorithm.loss_reduction": "algorithm.loss.aggregation",
        "trainer.algorithm.eps_clip_low": "algorithm.clip_low",
        "trainer.algorithm.eps_clip_high": "algorithm.clip_high",
        "trainer.algorithm.clip_ratio_c": "algorithm.loss.dual_clip",
        "trainer.algorithm.use_kl_loss": "algorithm.kl.coef (0 is none)",
        "trainer.algorithm.kl_loss_coef": "algorithm.kl.coef",
        "trainer.algorithm.use_kl_in_reward": "algorithm.kl.place (reward)",
        "trainer.algorithm.kl_estimator_type": "algorithm.kl.kind",
        "trainer.algorithm.kl_ctrl.kl_target": "algorithm.kl.adaptive.target",
        "trainer.algorithm.kl_ctrl.horizon": "algorithm.kl.adaptive.horizon",
        "trainer.algorithm.use_entropy_loss": "algorithm.entropy_coef (0 is none)",
        "trainer.algorithm.entropy_loss_coef": "algorithm.entropy_coef",
        "trainer.algorithm.grpo_norm_by_std": "algorithm.advantage.norm_by_std",
        "trainer.algorithm.gamma": "algorithm.advantage.gamma",
        "trainer.algorithm.lambd": "algorithm.advantage.lam",
        "trainer.algorithm.value_clip": "algorithm.critic.value_clip",
        "trainer.algorithm.dynamic_sampling.type": "algorithm.dynamic_sampling (true or false)",
        "trainer.algorithm.dynamic_sampling.max_sample_batches": "algorithm.max_extra_rollouts",
        "trainer.algorithm.use_tis": "algorithm.correction (a block; off when absent)",
        "trainer.algorithm.tis_imp_ratio_cap": "algorithm.correction.upper",
        "trainer.algorithm.off_policy_correction.tis_ratio_type": "algorithm.correction.level",
        "trainer.algorithm.overlong_buffer_len": "algorithm.overlong.buffer",
        "trainer.algorithm.overlong_buffer_penalty_factor": "algorithm.overlong.penalty",
        "trainer.algorithm.zero_variance_filter": "training.skip_zero_advantages",
        "trainer.fully_async.max_staleness_steps": "rollout.steps_ahead (0 or 1)",
        "generator.n_samples_per_prompt": "rollout.samples_per_prompt",
        "generator.sampling_params.temperature": "rollout.temperature",
        "generator.sampling_params.max_generate_length": "rollout.max_new_tokens",
        "generator.eval_sampling_params.max_generate_length": "evaluation.max_new_tokens",
        "generator.max_input_length": "rollout.max_context_length",
        "generator.max_turns": f"environments {_TURNS}",
        "generator.apply_overlong_filtering": "algorithm.overlong.filter",
        "generator.zero_reward_on_non_stop": "reward_service.truncated (zero)",
        "generator.chat_template_kwargs": "model.chat_template_kwargs",
        "generator.inference_engine.backend": f"rollout.engine {_ENGINE}",
        "generator.inference_engine.num_engines": "placement.rollout_devices",
        "generator.inference_engine.tensor_parallel_size": "placement.tp_size",
        "generator.inference_engine.gpu_memory_utilization": "rollout.vllm.memory_share",
        "generator.inference_engine.max_num_seqs": "rollout.max_batch_size",
        "generator.inference_engine.weight_sync_backend": "rollout.sync.transport",
        "environment.env_class": "data.default_env_class",
        "environment.skyrl_gym.text2sql": "environments (text2sql in it)",
        "environment.skyrl_gym.search": "environments (search in it)",
    },
    "verl": {
        "data.train_files": "data.train",
        "data.val_files": "data.eval",
        "data.train_batch_size": "training.prompts_per_step",
        "data.val_batch_size": "evaluation.batch_size",
        "data.max_response_length": "rollout.max_new_tokens",
        "data.seed": "seed",
        "data.apply_chat_template_kwargs": "model.chat_template_kwargs",
        "data.trust_remote_code": "model.trust_remote_code",
        "actor_rollout_ref.model.path": "model.path",
        "actor_rollout_ref.model.trust_remote_code": "model.trust_remote_code",
        "actor_rollout_ref.model.lora_rank": "lora.rank",
        "actor_rollout_ref.model.lora_alpha": "lora.alpha",
        "actor_rollout_ref.model.target_modules": "lora.target_modules",
        "actor_rollout_ref.model.enable_gradient_checkpointing": "fsdp.activation_checkpointing",
        "actor_rollout_ref.actor.optim.lr": "optimizer.learning_rate",
        "actor_rollout_ref.actor.optim.betas": "optimizer.betas",
        "actor_rollout_ref.actor.optim.weight_decay": "optimizer.weight_decay",
        "actor_rollout_ref.actor.optim.clip_grad": "training.max_grad_norm",
        "actor_rollout_ref.actor.optim.lr_warmup_steps": "scheduler.warmup_steps",
        "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": (
            "scheduler.warmup_steps (a number of steps)"
        ),
        "actor_rollout_ref.actor.optim.lr_scheduler_type": "scheduler.kind",
        "actor_rollout_ref.actor.optim.min_lr_ratio": "scheduler.min_ratio",
        "actor_rollout_ref.actor.grad_clip": "training.max_grad_norm",
        "actor_rollout_ref.actor.ppo_mini_batch_size": (
            "training.num_updates_per_batch (train_batch_size / ppo_mini_batch_size)"
        ),
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": "placement.micro_batch_size",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": "placement.max_tokens_per_micro_batch",
        "actor_rollout_ref.actor.use_dynamic_bsz": (
            "placement.max_tokens_per_micro_batch (packs where it is set)"
        ),
        "actor_rollout_ref.actor.ppo_epochs": "training.num_epochs",
        "actor_rollout_ref.actor.clip_ratio": "algorithm.clip_low (and clip_high)",
        "actor_rollout_ref.actor.clip_ratio_low": "algorithm.clip_low",
        "actor_rollout_ref.actor.clip_ratio_high": "algorithm.clip_high",
        "actor_rollout_ref.actor.clip_ratio_c": "algorithm.loss.dual_clip",
        "actor_rollout_ref.actor.policy_loss.loss_mode": "algorithm.loss (its name)",
        "actor_rollout_ref.actor.loss_agg_mode": "algorithm.loss.aggregation",
        "actor_rollout_ref.actor.entropy_coeff": "algorithm.entropy_coef",
        "actor_rollout_ref.actor.use_kl_loss": "algorithm.kl.coef (0 is none)",
        "actor_rollout_ref.actor.kl_loss_coef": "algorithm.kl.coef",
        "actor_rollout_ref.actor.kl_loss_type": "algorithm.kl.kind (low_var_kl is k3)",
        "actor_rollout_ref.actor.freeze_vision_tower": "model.frozen",
        "actor_rollout_ref.actor.ulysses_sequence_parallel_size": "placement.sp_size",
        "actor_rollout_ref.actor.fsdp_config.param_offload": "fsdp.cpu_offload",
        "actor_rollout_ref.actor.fsdp_config.optimizer_offload": "fsdp.cpu_offload",
        "actor_rollout_ref.actor.fsdp_config.reshard_after_forward": "fsdp.reshard_after_forward",
        "actor_rollout_ref.actor.fsdp_config.model_dtype": "fsdp.master_dtype",
        "actor_rollout_ref.actor.fsdp_config.dtype": "fsdp.param_dtype",
        "actor_rollout_ref.actor.use_torch_compile": "fsdp.torch_compile",
        "actor_rollout_ref.rollout.n": "rollout.samples_per_prompt",
        "actor_rollout_ref.rollout.name": f"rollout.engine {_ENGINE}",
        "actor_rollout_ref.rollout.temperature": "rollout.temperature",
        "actor_rollout_ref.rollout.prompt_length": "data.max_prompt_length",
        "actor_rollout_ref.rollout.response_length": "rollout.max_new_tokens",
        "actor_rollout_ref.rollout.gpu_memory_utilization": "rollout.vllm.memory_share",
        "actor_rollout_ref.rollout.free_cache_engine": "rollout.vllm.sleep",
        "actor_rollout_ref.rollout.tensor_model_parallel_size": "placement.tp_size",
        "actor_rollout_ref.rollout.max_model_len": "rollout.max_context_length",
        "actor_rollout_ref.rollout.max_num_seqs": "rollout.max_batch_size",
        "actor_rollout_ref.rollout.multi_turn.max_assistant_turns": f"environments {_TURNS}",
        "critic.optim.lr": "value_model.optimizer.learning_rate",
        "critic.optim.weight_decay": "value_model.optimizer.weight_decay",
        "critic.cliprange_value": "algorithm.critic.value_clip",
        "critic.grad_clip": "value_model.max_grad_norm",
        "critic.loss_agg_mode": "algorithm.critic.aggregation",
        "critic.model.lora_rank": "value_model.lora.rank",
        "algorithm.adv_estimator": "algorithm.advantage (its name)",
        "algorithm.gamma": "algorithm.advantage.gamma",
        "algorithm.lam": "algorithm.advantage.lam",
        "algorithm.norm_adv_by_std_in_grpo": "algorithm.advantage.norm_by_std",
        "algorithm.use_kl_in_reward": "algorithm.kl.place (reward)",
        "algorithm.kl_penalty": "algorithm.kl.kind (kl is k1, low_var_kl is k3)",
        "algorithm.kl_ctrl.kl_coef": "algorithm.kl.coef",
        "algorithm.kl_ctrl.type": "algorithm.kl.adaptive (a block; fixed when absent)",
        "algorithm.kl_ctrl.target_kl": "algorithm.kl.adaptive.target",
        "algorithm.kl_ctrl.horizon": "algorithm.kl.adaptive.horizon",
        "algorithm.filter_groups.enable": "algorithm.dynamic_sampling",
        "algorithm.filter_groups.max_num_gen_batches": "algorithm.max_extra_rollouts",
        "algorithm.rollout_correction.rollout_is": "algorithm.correction.level",
        "algorithm.rollout_correction.rollout_is_threshold": "algorithm.correction.upper",
        "algorithm.rollout_correction.rollout_rs": "algorithm.correction.reject.kind",
        "algorithm.rollout_correction.rollout_rs_threshold": "algorithm.correction.reject.upper",
        "reward_model.reward_manager": "data.default_env_class (or rewards)",
        "reward_model.model.path": "rewards (a list, each by its name)",
        "reward_model.overlong_buffer.len": "algorithm.overlong.buffer",
        "reward_model.overlong_buffer.penalty_factor": "algorithm.overlong.penalty",
        "custom_reward_function.path": "rewards (target: my_pkg.my_module:MyReward)",
        "custom_reward_function.name": "rewards (target: my_pkg.my_module:MyReward)",
        "trainer.total_epochs": f"training.num_iterations {_STEPS}",
        "trainer.total_training_steps": f"training.num_iterations {_STEPS}",
        "trainer.save_freq": f"training.steps_per_iteration {_SAVES}",
        "trainer.test_freq": f"evaluation.eval_every {_EVALUATIONS}",
        "trainer.max_actor_ckpt_to_keep": "training.keep_last",
        "trainer.n_gpus_per_node": f"placement.num_devices {_DEVICES}",
        "trainer.nnodes": f"placement.num_devices {_DEVICES}",
        "trainer.experiment_name": "name",
    },
    "NeMo RL": {
        "grpo.num_prompts_per_step": "training.prompts_per_step",
        "grpo.num_generations_per_prompt": "rollout.samples_per_prompt",
        "grpo.max_rollout_turns": f"environments {_TURNS}",
        "grpo.max_num_steps": f"training.num_iterations {_STEPS}",
        "grpo.max_num_epochs": f"training.num_iterations {_STEPS}",
        "grpo.normalize_rewards": "algorithm.advantage.norm_by_std",
        "grpo.use_leave_one_out_baseline": "algorithm.advantage (name: rloo)",
        "grpo.val_period": f"evaluation.eval_every {_EVALUATIONS}",
        "grpo.val_batch_size": "evaluation.batch_size",
        "grpo.seed": "seed",
        "grpo.overlong_filtering": "algorithm.overlong.filter",
        "grpo.use_dynamic_sampling": "algorithm.dynamic_sampling",
        "grpo.dynamic_sampling_max_gen_batches": "algorithm.max_extra_rollouts",
        "grpo.adv_estimator.name": "algorithm.advantage (its name)",
        "grpo.adv_estimator.normalize_rewards": "algorithm.advantage.norm_by_std",
        "grpo.reward_shaping.overlong_buffer_length": "algorithm.overlong.buffer",
        "grpo.reward_shaping.overlong_buffer_penalty": "algorithm.overlong.penalty",
        "grpo.async_grpo.max_trajectory_age_steps": "rollout.steps_ahead (0 or 1)",
        "dpo.max_num_steps": f"training.num_iterations {_STEPS}",
        "dpo.val_period": f"evaluation.eval_every {_EVALUATIONS}",
        "dpo.seed": "seed",
        "dpo.reference_policy_kl_penalty": "algorithm.beta",
        "dpo.preference_loss_weight": "algorithm.preference_weight",
        "dpo.sft_loss_weight": "algorithm.generation_weight",
        "loss_fn.reference_policy_kl_penalty": "algorithm.kl.coef",
        "loss_fn.reference_policy_kl_type": "algorithm.kl.kind",
        "loss_fn.use_kl_in_reward": "algorithm.kl.place (reward)",
        "loss_fn.ratio_clip_min": "algorithm.clip_low",
        "loss_fn.ratio_clip_max": "algorithm.clip_high",
        "loss_fn.ratio_clip_c": "algorithm.loss.dual_clip",
        "loss_fn.use_importance_sampling_correction": (
            "algorithm.correction (a block; off when absent)"
        ),
        "loss_fn.truncated_importance_sampling_ratio": "algorithm.correction.upper",
        "loss_fn.sequence_level_importance_ratios": "algorithm.loss (name: gspo)",
        "loss_fn.use_cispo": "algorithm.loss (name: cispo)",
        "loss_fn.token_level_loss": "algorithm.loss.aggregation (token-mean)",
        "checkpointing.metric_name": "training.best_metric",
        "checkpointing.keep_top_k": "training.keep_best",
        "checkpointing.save_period": f"training.steps_per_iteration {_SAVES}",
        "policy.model_name": "model.path",
        "policy.tokenizer.chat_template_kwargs": "model.chat_template_kwargs",
        "policy.train_global_batch_size": (
            "training.num_updates_per_batch (rows of a step / train_global_batch_size)"
        ),
        "policy.train_micro_batch_size": "placement.micro_batch_size",
        "policy.generation_batch_size": "rollout.max_batch_size",
        "policy.max_total_sequence_length": "rollout.max_context_length",
        "policy.precision": "fsdp.param_dtype",
        "policy.max_grad_norm": "training.max_grad_norm",
        "policy.dtensor_cfg.cpu_offload": "fsdp.cpu_offload",
        "policy.dtensor_cfg.activation_checkpointing": "fsdp.activation_checkpointing",
        "policy.dtensor_cfg.tensor_parallel_size": "placement.tp_size",
        "policy.dtensor_cfg.context_parallel_size": "placement.sp_size",
        "policy.dtensor_cfg.lora_cfg.enabled": "lora (a block; off when absent)",
        "policy.dtensor_cfg.lora_cfg.dim": "lora.rank",
        "policy.dtensor_cfg.lora_cfg.alpha": "lora.alpha",
        "policy.dtensor_cfg.lora_cfg.dropout": "lora.dropout",
        "policy.dtensor_cfg.lora_cfg.target_modules": "lora.target_modules",
        "policy.sequence_packing.train_mb_tokens": "placement.max_tokens_per_micro_batch",
        "policy.dynamic_batching.train_mb_tokens": "placement.max_tokens_per_micro_batch",
        "policy.optimizer.kwargs.lr": "optimizer.learning_rate",
        "policy.optimizer.kwargs.weight_decay": "optimizer.weight_decay",
        "policy.optimizer.kwargs.betas": "optimizer.betas",
        "policy.optimizer.kwargs.eps": "optimizer.eps",
        "policy.scheduler": "scheduler (kind, warmup_steps, min_ratio)",
        "policy.generation.backend": f"rollout.engine {_ENGINE}",
        "policy.generation.max_new_tokens": "rollout.max_new_tokens",
        "policy.generation.temperature": "rollout.temperature",
        "policy.generation.vllm_cfg.gpu_memory_utilization": "rollout.vllm.memory_share",
        "policy.generation.vllm_cfg.max_model_len": "rollout.max_context_length",
        "policy.generation.vllm_cfg.tensor_parallel_size": "placement.tp_size",
        "policy.generation.colocated.enabled": f"rollout.engine {_ENGINE}",
        "data.max_input_seq_length": "data.max_prompt_length",
        "data.train.dataset_name": "data.train (a list of files or datasets)",
        "data.validation.dataset_name": "data.eval (a list of files or datasets)",
        "data.validation": "data.eval",
        "data.default.env_name": "data.default_env_class",
        "env": "environments",
        "cluster.gpus_per_node": f"placement.num_devices {_DEVICES}",
        "cluster.num_nodes": f"placement.num_devices {_DEVICES}",
    },
    "TRL": {
        "model_name_or_path": "model.path",
        "attn_implementation": "model.attention",
        "trust_remote_code": "model.trust_remote_code",
        "dataset_name": "data.train",
        "lora_r": "lora.rank",
        "lora_alpha": "lora.alpha",
        "lora_dropout": "lora.dropout",
        "lora_target_modules": "lora.target_modules",
        "learning_rate": "optimizer.learning_rate",
        "weight_decay": "optimizer.weight_decay",
        "adam_beta1": "optimizer.betas (both in one list)",
        "adam_beta2": "optimizer.betas (both in one list)",
        "adam_epsilon": "optimizer.eps",
        "max_grad_norm": "training.max_grad_norm",
        "lr_scheduler_type": "scheduler.kind",
        "warmup_steps": "scheduler.warmup_steps",
        "warmup_ratio": "scheduler.warmup_steps (a number of steps)",
        "max_steps": f"training.num_iterations {_STEPS}",
        "num_train_epochs": f"training.num_iterations {_STEPS}",
        "save_steps": f"training.steps_per_iteration {_SAVES}",
        "save_total_limit": "training.keep_last",
        "eval_steps": f"evaluation.eval_every {_EVALUATIONS}",
        "per_device_eval_batch_size": "evaluation.batch_size",
        "metric_for_best_model": "training.best_metric",
        "gradient_checkpointing": "fsdp.activation_checkpointing",
        "bf16": "fsdp.param_dtype (bfloat16)",
        "torch_compile": "fsdp.torch_compile",
        "per_device_train_batch_size": "placement.micro_batch_size",
        "run_name": "name",
        "num_generations": "rollout.samples_per_prompt",
        "generation_batch_size": (
            "training.prompts_per_step (generation_batch_size / num_generations)"
        ),
        "steps_per_generation": "training.num_updates_per_batch",
        "num_iterations": (
            "training.num_epochs (this project's own training.num_iterations counts checkpoints)"
        ),
        "max_completion_length": "rollout.max_new_tokens",
        "max_prompt_length": "data.max_prompt_length",
        "temperature": "rollout.temperature",
        "chat_template_kwargs": "model.chat_template_kwargs",
        "use_vllm": "rollout.engine (vllm)",
        "vllm_mode": f"rollout.engine {_ENGINE}",
        "vllm_gpu_memory_utilization": "rollout.vllm.memory_share",
        "vllm_enable_sleep_mode": "rollout.vllm.sleep",
        "vllm_max_model_length": "rollout.max_context_length",
        "vllm_tensor_parallel_size": "placement.tp_size",
        "vllm_importance_sampling_correction": "algorithm.correction (a block; off when absent)",
        "vllm_importance_sampling_mode": "algorithm.correction.level (and mode)",
        "vllm_importance_sampling_clip_max": "algorithm.correction.upper",
        "vllm_importance_sampling_clip_min": "algorithm.correction.lower",
        "beta": "algorithm.kl.coef",
        "epsilon": "algorithm.clip_low (and clip_high)",
        "epsilon_high": "algorithm.clip_high",
        "delta": "algorithm.loss.dual_clip",
        "importance_sampling_level": "algorithm.loss (sequence is name: gspo)",
        "loss_type": "algorithm (its name, or loss.aggregation in it)",
        "scale_rewards": "algorithm.advantage.norm_by_std (and std_scope)",
        "mask_truncated_completions": "algorithm.overlong.filter",
        "entropy_coef": "algorithm.entropy_coef",
        "reward_funcs": "rewards (a list, each by its name)",
        "reward_weights": "rewards (weight in each entry)",
        "max_tool_calling_iterations": f"environments {_TURNS}",
    },
}

_SAMPLED_WHOLE = (
    "replies are drawn from the whole distribution, whose log-probabilities training uses"
)
_WIRED = (
    "the domain wires its parts; a class of your own is a target: pkg.module:Class in its block"
)
_LOGGED = "everything goes to MLflow, and to Prefect where a server runs"
NOT_HERE: dict[str, str] = {
    "_target_": _WIRED,
    "block_class_names": "the model's family knows its blocks",
    "trainable_attr": "the model's family knows its trained part",
    "top_p": _SAMPLED_WHOLE,
    "top_k": _SAMPLED_WHOLE,
    "min_p": _SAMPLED_WHOLE,
    "repetition_penalty": _SAMPLED_WHOLE,
    "logger": _LOGGED,
    "report_to": _LOGGED,
    "project_name": _LOGGED,
    "gradient_accumulation_steps": "it follows from training and placement.micro_batch_size",
    "filter_overlong_prompts": "prompts beyond data.max_prompt_length are always left out",
    "resume_mode": "a run always continues from its last complete checkpoint",
}
"""By the last part of a key."""

_BY_KEY = {
    key: (system, here) for system, keys in EQUIVALENTS.items() for key, here in keys.items()
}


def recipe_key(here: str) -> str:
    """The recipe key that an entry of `EQUIVALENTS` names."""
    return here.split(" ", 1)[0]


def foreign_key_lines(place: str, value: Any) -> list[str]:
    """What the keys at and below an unknown place are called here; empty where no system has them.

    Args: place: dotted. value: what stands there.
    """
    lines = [(key, _said_of(key)) for key in _leaves(place, value)]
    if not any(said for _, said in lines):
        return []
    return [
        f"{key} {said or 'has no equivalent here; docs/coming-from.md has those that do'}"
        for key, said in lines
    ]


def _said_of(place: str) -> str:
    found = _equivalent(place)
    if found is not None:
        system, here = found
        return f"is {system}'s name; here it is {here}"
    reason = NOT_HERE.get(place.rpartition(".")[2])
    return f"has no equivalent here: {reason}" if reason else ""


def _equivalent(place: str) -> tuple[str, str] | None:
    """System and recipe key of a place: by itself, by its end, or as the end of a known key."""
    parts = place.split(".")
    for start in range(len(parts)):
        tail = ".".join(parts[start:])
        if start and "." not in tail:
            break
        if tail in _BY_KEY:
            return _BY_KEY[tail]
    ending = [found for key, found in _BY_KEY.items() if key.endswith(f".{place}")]
    if not ending and parts[-1] not in _OWN_LAST:
        ending = [found for key, found in _BY_KEY.items() if key.rpartition(".")[2] == parts[-1]]
    same = {recipe_key(here) for _, here in ending}
    return ending[0] if len(same) == 1 else None


def _leaves(place: str, value: Any) -> Iterator[str]:
    """The places of plain values; a place that is known itself is not opened."""
    if not isinstance(value, Mapping) or not value or place in _BY_KEY:
        yield place
        return
    for key, inner in value.items():
        yield from _leaves(f"{place}.{key}", inner)


_OWN_LAST = {
    recipe_key(here).rpartition(".")[2] for keys in EQUIVALENTS.values() for here in keys.values()
}
