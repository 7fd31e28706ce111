"""Meaning and unit of every metric of a run; `<…>` stands for a part that recipes name.

Training metrics are logged once per step, evaluation metrics at the step they follow. With several
trained models, each metric has its model's track before the name: `text/loss`, `images/loss`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MetricNote:
    """Description of one metric, or of all metrics that match a pattern."""

    name: str
    unit: str
    meaning: str


def _notes(*rows: tuple[str, str, str]) -> tuple[MetricNote, ...]:
    return tuple(MetricNote(*row) for row in rows)


GROUPS: dict[str, tuple[MetricNote, ...]] = {
    "Rewards": _notes(
        ("reward_mean", "reward", "Mean over the step's samples, penalties for length included."),
        ("reward_std", "reward", "Standard deviation over the step's samples."),
        (
            "greedy_reward_mean",
            "reward",
            "Mean of the greedy replies that ReMax takes as baselines.",
        ),
        ("reward/<scorer>/mean", "score", "Mean of one scorer's scores, before its weight."),
        ("reward/<scorer>/std", "score", "Standard deviation of one scorer's scores."),
        ("reward/<scorer>/failed", "samples", "Samples that this scorer could not judge."),
        (
            "reward/<scorer>/retried",
            "samples",
            "Samples that this scorer judged only when asked again.",
        ),
        (
            "reward/<scorer>/<count>",
            "",
            "What a scorer counts: `truncated` conversations of a `reward_model`; of a `judge` or "
            "`rubric` the `requests`, those answered from the cache (`cached`) and those sent "
            "again (`requests_again`), `input_tokens`, `output_tokens`, `cost`, and the verdicts "
            "that did not count (`unreadable`).",
        ),
        (
            "reward/<scorer>/criterion/<name>",
            "score",
            "Mean score of one criterion of a `rubric`.",
        ),
        ("failed_rows", "samples", "Samples without a reward; they are left out of training."),
        ("unscored_rows", "samples", "Samples that at least one scorer did not judge."),
        ("childless_rows", "samples", "Rewritten prompts of which no picture was judged."),
        (
            "overlong_penalty_mean",
            "reward",
            "Mean of what was added to the rewards of long replies; never above zero.",
        ),
        ("overlong_filtered_rows", "samples", "Cut replies that were left out of the loss."),
        (
            "num_groups",
            "groups",
            "Groups of samples of one prompt that were compared with each other.",
        ),
        (
            "zero_std_groups",
            "groups",
            "Groups of equal rewards; they teach nothing, and are mostly not computed.",
        ),
        (
            "zero_advantage_share",
            "share",
            "Samples whose advantages are all 0; at 1 the rewards taught nothing.",
        ),
    ),
    "Samples": _notes(
        ("response_length_mean", "tokens", "Mean length of the replies."),
        ("response_length_max", "tokens", "The longest reply."),
        (
            "given_up_groups",
            "groups",
            "Groups beyond those of the step that had not ended in time (`rollout.extra_prompts`).",
        ),
        ("given_up_tokens", "tokens", "Tokens that were sampled of these groups."),
        (
            "carried_groups",
            "groups",
            "Groups that go on in the next step instead (`rollout.carry_over`).",
        ),
        ("carried_tokens", "tokens", "Tokens that these groups have so far."),
        ("truncated_share", "share", "Replies that were cut at the limit of tokens."),
        ("turns_mean", "turns", "Mean number of the model's turns in a conversation."),
        (
            "env/<environment>/<metric>",
            "as the environment says",
            "What an environment measures; a mean, mostly.",
        ),
        (
            "env/<environment>/tool_calls",
            "calls",
            "Tools called in a conversation, where the environment has tools; beside it "
            "`malformed_tool_calls`, which could not be read, `tool_errors`, which were answered "
            "with an error, and `tool_timeouts` among these.",
        ),
        (
            "env_failures/<call>",
            "samples",
            "Conversations that an environment's `init`, `step` or `close` broke.",
        ),
        ("env_failures/timeout", "samples", "Those of them that took too long."),
        (
            "dynamic/extra_rollouts",
            "rollouts",
            "Rollouts beyond the first, to replace groups of equal rewards.",
        ),
        ("dynamic/flat_groups", "groups", "Groups of equal rewards that were thrown away."),
        ("dynamic/surplus_groups", "groups", "Good groups beyond what the step needed."),
        (
            "dynamic/missing_groups",
            "groups",
            "Groups that were still missing when the rollouts had to end.",
        ),
        (
            "source/<name>/sampled_share",
            "share",
            "Rows of one `data_source` among those of the step; of runs with several sources.",
        ),
        ("source/<name>/reward_mean", "reward", "Mean reward of its rows."),
        ("source/<name>/learning_share", "share", "Its rows that had an advantage."),
        ("curriculum/pass_rate", "share", "Right replies among those of the step."),
        ("curriculum/tried_share", "share", "Rows that were tried at least once."),
    ),
    "Policy gradients": _notes(
        ("loss", "loss", "What the gradient is taken of: policy loss, KL and entropy terms."),
        ("policy_loss", "loss", "The surrogate alone."),
        (
            "ratio_mean",
            "ratio",
            "Mean probability of an action under the present weights over that at sampling.",
        ),
        ("ratio_max", "ratio", "The largest such ratio."),
        ("approx_kl", "nats", "KL of sampling and present policy per action (k3 estimate)."),
        ("clip_fraction", "share", "Actions whose gradient was clipped, dropped or bounded."),
        ("entropy", "nats", "Mean entropy of the policy's distribution per action."),
        ("kl_ref", "nats", "KL from the reference model per action."),
        ("kl_reward", "nats", "The same, where it is taken off the rewards."),
        ("kl_coef", "coefficient", "What the KL is multiplied with; it moves with `kl.adaptive`."),
        (
            "delta_log_prob_mean",
            "nats",
            "Mean distance of the trainer's log-probabilities from the rollout engine's.",
        ),
        ("delta_log_prob_square", "nats²", "Mean square of that distance."),
        ("delta_log_prob_max", "nats", "The largest such distance."),
        (
            "delta_log_prob_at/<place>",
            "nats",
            "Its mean at places of a reply from this one up to twice as far.",
        ),
        (
            "teacher_kl",
            "nats",
            "KL(policy, teacher) per action, of the sampled or of the compared tokens.",
        ),
        (
            "teacher_divergence",
            "nats",
            "Divergence from the teacher per action, where distributions are compared.",
        ),
        (
            "teacher_coverage",
            "share",
            "The teacher's probability on the compared tokens: the sampled, the top k, or all.",
        ),
        ("teacher_entropy", "nats", "Mean entropy of the teacher's distribution per action."),
        ("correction_weight", "ratio", "Mean weight that corrects for that distance."),
        ("correction_dropped", "share", "Actions that the correction dropped."),
        ("penalised_fraction", "share", "Actions of highest covariance that KL-Cov penalised."),
        (
            "detached_fraction",
            "share",
            "Actions of high covariance that Clip-Cov left without a gradient.",
        ),
        (
            "critic/<measure>",
            "as without `critic/`",
            "`loss`, `grad_norm`, `lr` and `skipped_steps` of the critic.",
        ),
        ("critic/value_loss", "loss", "Squared error of the values, clipped, halved."),
        (
            "critic/value_error",
            "reward²",
            "Mean squared difference of value and return, over actions.",
        ),
        ("critic/value_clip_fraction", "share", "Actions whose value was held near the old one."),
        ("critic/value_mean", "reward", "Mean value."),
    ),
    "Diffusion-NFT": _notes(
        ("positive_error", "loss", "Flow-matching error of the policy that is to be strengthened."),
        ("negative_error", "loss", "That of its mirror image."),
    ),
    "Reward models": _notes(
        ("ranking_loss", "loss", "The part that compares the two scores of a pair."),
        ("center_loss", "loss", "The part that keeps scores around 0."),
        ("score_chosen", "score", "Mean score of the chosen answers."),
        ("score_rejected", "score", "Mean score of the rejected answers."),
        ("score_margin", "score", "Mean lead of the chosen answer."),
    ),
    "Preferences": _notes(
        ("preference_loss", "loss", "The weighted part that compares the two answers."),
        ("quality_loss", "loss", "The weighted part that judges each answer by itself."),
        (
            "generation_loss",
            "loss",
            "The weighted negative log-likelihood of the chosen answer, per token.",
        ),
        (
            "implicit_reward",
            "reward",
            "Mean over both answers of β times the log-ratio to the reference.",
        ),
        ("reward_margin", "reward", "Mean of chosen minus rejected implicit reward."),
        ("reward_accuracy", "share", "Pairs whose chosen answer has the higher implicit reward."),
        ("delta", "reward", "Moving mean of the implicit rewards, where the quality loss begins."),
        ("answer_length_mean", "tokens", "Mean length of the given answers."),
        ("answer_length_max", "tokens", "The longest of them."),
        ("overlong_pairs", "pairs", "Pairs that are too long and take no part."),
        ("equal_pairs", "pairs", "Pairs of equal answers, which take no part."),
    ),
    "Given answers": _notes(
        ("nll", "nats per token", "Negative log-likelihood of the answers' tokens."),
        ("taught_tokens", "tokens", "Tokens of the step that are trained."),
        ("overlong_rows", "rows", "Rows that are too long and take no part."),
    ),
    "Optimizer": _notes(
        ("grad_norm", "norm", "Norm of the gradient before clipping, mean over updates."),
        (
            "joint_grad_norm",
            "norm",
            "Norm over both models' gradients, which are clipped together.",
        ),
        ("lr", "per update", "Learning rate of the last update."),
        (
            "skipped_steps",
            "updates",
            "Updates that were left out because the gradient was not finite.",
        ),
    ),
    "Time and memory": _notes(
        (
            "seconds/<phase>",
            "s",
            "Wall clock of a phase: `rollout`, `reward`, `advantage`, `train`, `sync`, …; of a "
            "rollout that was started a step ahead, what was left to wait for.",
        ),
        (
            "peak_memory_gb",
            "GB",
            "The most that a worker which trains has held so far, at the last step of each "
            "iteration: of a GPU what tensors took, else of its process.",
        ),
        (
            "sync_bytes",
            "bytes",
            "Weights that the last sync sent to an engine with its own model.",
        ),
        (
            "sync_share",
            "share",
            "Bytes that it sent over those of all the weights in question "
            "(`rollout.sync.content: changes` sends what differs).",
        ),
        (
            "offloaded_bytes",
            "bytes",
            "Weights, gradients and optimizer state that were released while the engine sampled, "
            "of all ranks (`placement.offload`).",
        ),
        (
            "rollout_tokens_per_second",
            "tokens/s",
            "Sampled actions over the time of the rollout; of all devices.",
        ),
        (
            "staleness",
            "changes",
            "Changes of the weights since those that sampled, of a rollout started a step ahead.",
        ),
        (
            "staleness_mean",
            "changes",
            "The same over the rows that were trained on, with `rollout.steps_ahead`; over their "
            "tokens with `rollout.in_flight` and `rollout.carry_over`.",
        ),
        (
            "staleness_max",
            "changes",
            "The largest of a row or token; never more than `rollout.steps_ahead` optimizer steps.",
        ),
        (
            "engine_restarts",
            "",
            "Times that an engine which died or hung was started again in the step.",
        ),
        (
            "servers_left_out",
            "",
            "Servers of `rollout.server.urls` that failed in the step, or before it and have "
            "loaded no weights since; the others sampled in their place.",
        ),
        (
            "train_tokens_per_second",
            "tokens/s",
            "Trained actions over the time of the training; of all devices.",
        ),
    ),
    "Evaluation": _notes(
        ("eval/accuracy", "share", "Held-out rows that were answered rightly."),
        ("eval/mean_reward", "reward", "Mean reward of the held-out rows."),
        ("eval/mean_length", "tokens", "Mean length of the replies to them."),
        ("eval/truncated_share", "share", "Replies to them that were cut."),
        ("eval/failed_rows", "rows", "Those without a verdict, within `max_failed_share`."),
        (
            "eval/<set>/<measure>",
            "",
            "Measure of a named set, such as `pass@4`; docs/evaluation.md lists them.",
        ),
        ("eval/<set>/<source>/<measure>", "", "The same of the rows of one `data_source`."),
        (
            "eval/<score>",
            "as the domain says",
            "What the domain measures besides, and the mean of each scorer.",
        ),
        (
            "baseline_<score>",
            "as `eval/`",
            "The same before training, beside a registered version.",
        ),
        (
            "champion/<score>",
            "as `eval/`",
            "The same of the champion, when a challenger made it answer again.",
        ),
    ),
    "Data": _notes(
        ("validation/rows", "rows", "Rows that were held to their contract."),
        ("validation/accepted", "rows", "Those that fulfil it."),
        ("validation/rejected/<reason>", "rows", "Those that do not, by reason."),
        (
            "validation/contaminated",
            "rows",
            "Training rows that repeat held-out rows, or rows of a benchmark.",
        ),
        ("elapsed_sec", "s", "How long a preparation took (experiment `rl-prepare`)."),
        (
            "rows/<kind>",
            "rows",
            "Rows that a preparation read, wrote and refused, by reason (the same).",
        ),
        (
            "num_non_finite",
            "values",
            "Values of metrics that were not finite, and so not stored; the tag names them.",
        ),
    ),
}
"""Descriptions of metrics by heading."""
