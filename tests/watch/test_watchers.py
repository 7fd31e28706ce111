"""Each watcher rings at its own sign, names evidence with steps, and keeps quiet otherwise."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from rl_core.runs.recipes import load_recipe
from rl_core.watch.view import Facts, View
from rl_core.watch.watch import SAME_ALARM, WATCHERS, Watch, stopping
from schemas.sections.watching import WatchConfig
from tests.watch.histories import HEALTHY, alarms, history

JUDGED = (
    "rewards=[{name: format, pattern: a, key: pays}, {name: format, pattern: b, key: looks, "
    "weight: 0}]"
)
RISING = [0.02 * step for step in range(30)]
SICK: dict[str, tuple[dict[str, Iterable[float]], str]] = {
    "signal": ({"zero_std_groups": [2.0] * 5 + [8.0]}, "100% of the groups of steps 16 to 20"),
    "entropy": ({"entropy": [1.0] * 5 + [0.5, 0.2, 0.05]}, "5.0% is left"),
    "length": ({"response_length_mean": [100.0] * 6 + [150.0, 210.0]}, "2 times), while the mean"),
    "truncation": ({"truncated_share": [0.1] * 10 + [0.6]}, "of the replies of steps"),
    "kl": ({"approx_kl": [0.01] * 9 + [0.4, 0.01]}, "approx_kl 0.4 nats per action in step 10"),
    "delta": ({"delta_log_prob_mean": [0.01] * 8 + [0.01 * n for n in range(1, 20)]}, "|Δlogp|"),
    "clip": ({"clip_fraction": [0.1] * 5 + [0.4]}, "40% of the actions of steps 18 to 20"),
    "gradient": ({"grad_norm": [0.3] * 9 + [12.0, 0.3]}, "grad_norm 12 in step 10"),
    "memory": ({"peak_memory_gb": [3.0] * 5 + [3.2, 3.4, 3.6, 3.8, 3.8]}, "3.8 GB in step 9"),
}
"""Metrics of a sick run, and a part of the evidence, by the watcher that has to find it."""


@pytest.mark.parametrize("name", SICK)
def test_a_sick_run_rings_its_watcher_and_no_other(name: str):
    changed, evidence = SICK[name]
    (alarm,) = alarms(history(**changed))
    assert alarm.watcher == name
    assert evidence in str(alarm)
    assert "step" in alarm.when and "`" in alarm.advice


def test_a_healthy_run_rings_none():
    assert alarms(history(100)) == []
    growing = {
        "response_length_mean": [100.0 * 1.1**n for n in range(20)],
        "reward_mean": [0.04 * n for n in range(20)],
    }
    assert alarms(history(**growing)) == [], "growth with reward is reasoning"
    falling = history(truncated_share=[1.0 - 0.05 * n for n in range(20)])
    assert alarms(falling) == [], "a policy that learns to end its replies"


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_step_may_lack_a_metric_or_be_of_silent_groups_alone(share: float):
    steps = history(zero_std_groups=[8 * share])
    for step in steps[::3]:
        step |= dict.fromkeys(("entropy", "approx_kl", "clip_fraction"), float("nan"))
        step["grad_norm"] = 0.0
        del step["delta_log_prob_mean"]
    assert alarms(steps) == []


def test_silent_groups_that_were_replaced_count_where_they_were_thrown_away():
    sampled = {"zero_std_groups": [0.0], "num_groups": [8.0]}
    (alarm,) = alarms(history(5, **sampled, **{"dynamic/flat_groups": [160.0]}))
    assert alarm.watcher == "signal"
    assert "95% of the groups of steps 1 to 5" in alarm.evidence
    once = history(20, **sampled, **{"dynamic/flat_groups": [9000.0, 0.0]})
    assert [one.when for one in alarms(once)] == ["step 5"], "later it is out of the window"


def test_without_siblings_samples_are_counted():
    """PPO compares no siblings: groups of one have equal rewards."""
    steps = history(5, zero_std_groups=[8.0], zero_advantage_share=[0.5])
    assert alarms(steps, "algorithm={name: ppo}") == []
    steps = history(5, zero_std_groups=[0.0], zero_advantage_share=[1.0])
    (alarm,) = alarms(steps, "algorithm={name: ppo}")
    assert "100% of the samples of steps 1 to 5 had only advantages of 0" in alarm.evidence


def test_a_kl_is_a_jump_only_from_a_floor_on_and_beside_the_steps_before():
    assert alarms(history(approx_kl=[0.001] * 9 + [0.05, 0.001])) == [], "50 times, but small"
    assert alarms(history(approx_kl=[0.2] * 9 + [0.4, 0.2])) == [], "large, but as ever"


def test_rewards_that_are_only_logged_ring_none():
    falling = history(entropy=[1.0] * 5 + [0.5, 0.2, 0.05])
    assert alarms(falling, "algorithm={name: self_distillation}") == []
    assert alarms(falling, recipe="sft") == []
    steps = history(zero_std_groups=[8.0], zero_advantage_share=[1.0])
    assert alarms(steps, "algorithm={name: self_distillation}") == []
    (alarm,) = alarms(steps, "algorithm={name: self_distillation, reward_weight: 1}")
    assert alarm.watcher == "signal"


def test_skipped_updates_ring_at_once():
    (alarm,) = alarms(history(3, skipped_steps=[0.0, 2.0, 0.0]))
    assert (alarm.watcher, alarm.when) == ("gradient", "step 2")
    assert "2 updates of step 2 were skipped" in alarm.evidence


def test_weights_that_arrive_no_more_make_a_step():
    (alarm,) = alarms(history(delta_log_prob_mean=[0.01] * 7 + [0.08]))
    assert (alarm.watcher, alarm.first_step) == ("delta", 9)


def test_a_judge_that_looks_on_and_falls_is_told_from_noise():
    noise = [0.001 * (step % 3) for step in range(30)]
    falling = [0.9 - one for one in RISING]
    paid = {"reward/pays/mean": RISING}
    (alarm,) = alarms(history(30, **paid, **{"reward/looks/mean": falling}), JUDGED)
    assert alarm.watcher == "judges" and "looks fell by" in alarm.evidence
    assert alarm.last_step == 30
    unpaid = history(30, **paid, **{"reward/looks/mean": falling})
    for step in unpaid[24:]:
        del step["reward/pays/mean"], step["reward/environment/mean"]
    assert [one.last_step for one in alarms(unpaid, JUDGED)] == [24], "the others pay nothing"
    assert alarms(history(30, **paid, **{"reward/looks/mean": noise}), JUDGED) == []
    both = {"reward/pays/mean": falling, "reward/looks/mean": falling}
    assert alarms(history(30, **both), JUDGED) == []


def test_a_source_starves_where_others_learn_or_when_it_is_sampled_no_more():
    shares = {"source/a/learning_share": [0.5], "source/a/sampled_share": [0.5]}
    silent = {"source/b/learning_share": [0.5, 0.0], "source/b/sampled_share": [0.5]}
    (alarm,) = alarms(history(**shares, **silent))
    assert (alarm.watcher, alarm.first_step) == ("sources", 11)
    assert "no row of b had an advantage in steps" in alarm.evidence
    gone = history(**shares, **silent | {"source/b/learning_share": [0.5]})
    for step in gone[5:]:
        del step["source/b/learning_share"], step["source/b/sampled_share"]
    (alarm,) = alarms(gone)
    assert "no row of b was sampled since step 5; it had 50% of the rows" in alarm.evidence
    rare = [{**step} for step in gone]
    for step in rare[:5]:
        step["source/b/sampled_share"] = 0.01
    assert alarms(rare) == [], "a rare source may be away for so long"
    both = history(**shares | {"source/b/learning_share": [0.3], "source/b/sampled_share": [0.5]})
    assert alarms(both) == []


def test_memory_that_grows_little_by_little_is_ordinary():
    assert alarms(history(peak_memory_gb=[3.0] * 5 + [3.05, 3.1, 3.15, 3.2])) == []


def test_tracks_are_watched_apart_and_memory_once():
    steps = history(peak_memory_gb=[3.0] * 5 + [3.2, 3.4, 3.6, 3.8])
    for number, step in enumerate(steps):
        for name in HEALTHY:
            if name != "peak_memory_gb":
                step[f"text/{name}"] = step[f"images/{name}"] = step.pop(name)
        step["images/clip_fraction"] = 0.5 if number > 8 else 0.1
    found = alarms(steps, recipe="unified")
    assert [one.title for one in found] == ["memory", "images: clip"]


def test_the_watchers_are_those_of_the_recipe_and_each_may_be_off():
    assert [one.name for one in WATCHERS] == list(WatchConfig.model_fields)
    sick = history(clip_fraction=[0.5])
    assert alarms(sick, "watch.clip=off") == []
    assert stopping(alarms(sick)) is None
    assert stopping(alarms(sick, "watch.clip=stop")) is not None
    with pytest.raises(Exception, match=r"watch.clip.*write off, warn or stop"):
        load_recipe("text", ["watch.clip=on"])


def test_rings_near_each_other_are_one_alarm_and_far_ones_two():
    far = [0.3] * 9 + [12.0] + [0.3] * SAME_ALARM + [12.0, 0.3]
    near = [0.3] * 9 + [12.0, 0.3, 12.0, 0.3]
    nearly = [0.3] * 9 + [12.0] + [0.3] * (SAME_ALARM - 1) + [12.0, 0.3]
    assert [one.when for one in alarms(history(30, grad_norm=near))] == ["steps 10 to 12"]
    assert [one.when for one in alarms(history(30, grad_norm=nearly))] == ["steps 10 to 15"]
    assert [one.when for one in alarms(history(30, grad_norm=far))] == ["step 10", "step 16"]


def test_a_resumed_watch_finds_what_an_uninterrupted_one_does():
    steps = history(30, grad_norm=[0.3] * 9 + [12.0, 0.3], entropy=[1.0] * 12 + [0.01])
    recipe = load_recipe("text")
    whole = Watch(recipe, steps)
    resumed = Watch(recipe, steps[:17])
    begun = [alarm for step in steps[17:] for alarm in resumed.observe(step)]
    assert resumed.alarms == whole.alarms
    assert begun == [], "what rang before the restart is not said again"


def test_a_metric_of_an_earlier_step_is_not_looked_at_again():
    view = View("", Facts())
    view.add({"step": 1.0, "entropy": 1.0})
    assert view.curve("entropy") is not None
    view.add({"step": 2.0})
    assert view.curve("entropy") is None
    assert len(view.past("entropy")) == 1


RECORDED = Path(__file__).with_name("recorded.json")
RECORDED_SICK = Path(__file__).with_name("recorded_sick.json")
"""Runs on a random model, made sick: of `smoke/text` by overrides and `sick_parts.py`; that of a
learning rate of 1 is of `tests/rollout/vowels.py`."""
RANG = {
    "constant reward": ["signal"],
    "a judge that can be hacked": ["truncation", "judges", "entropy", "signal"],
    "stale weights": ["truncation", "delta"],
    "a learning rate of 1": ["truncation", "signal"],
}


def recorded(path: Path, name: str) -> list[dict[str, float]]:
    columns = json.loads(path.read_text())[name]
    return [
        {key: values[at] for key, values in columns.items() if values[at] is not None}
        for at in range(len(columns["step"]))
    ]


@pytest.mark.parametrize("name", RANG)
def test_recorded_runs_that_were_made_sick_ring(name: str):
    """A random model seldom ends its replies, so `truncation` rings rightly, too."""
    judges = (
        "rewards=[{target: 'tests.watch.sick_parts:PaysForOneLetter', key: pays}, {target: "
        "'tests.watch.sick_parts:Variety', key: variety, weight: 0}]"
    )
    found = alarms(recorded(RECORDED_SICK, name), judges, recipe="smoke/text")
    assert [one.watcher for one in found] == RANG[name]


def test_a_fall_of_the_reward_tells_a_collapse_from_prompts_that_are_solved():
    found = alarms(recorded(RECORDED_SICK, "a learning rate of 1"), recipe="smoke/text")
    alarm = next(one for one in found if one.watcher == "signal")
    assert "had equal rewards (limit 95%); mean reward 0, 0.073 in step 1" in alarm.evidence
    assert "`optimizer.learning_rate`" in alarm.advice


@pytest.mark.parametrize("name", sorted(json.loads(RECORDED.read_text())))
def test_recorded_runs_of_shipped_recipes_ring_none(name: str):
    assert alarms(recorded(RECORDED, name), recipe=name) == []


def test_the_page_says_of_each_watcher_what_the_code_does():
    page = (Path(__file__).parents[2] / "docs" / "watchers.md").read_text()
    for one in WATCHERS:
        assert f"| `{one.name}` | {one.sign} | {one.advice} |" in page


def test_a_scorer_that_is_not_here_does_not_keep_a_run_from_being_watched():
    gone = [{"target": "gone.module:Judge", "weight": 0}, {"name": "format", "key": "form"}]
    recipe = load_recipe("text").model_copy(update={"rewards": gone})
    paid = {"reward/form/mean": RISING, "reward/judge/mean": [1 - one for one in RISING]}
    assert [one.watcher for one in Watch(recipe, history(30, **paid)).alarms] == ["judges"]
