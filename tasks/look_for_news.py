"""The task look-for-news: find what changed since the newest version, so that a schedule does not
train the same model again."""

from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from rl_core.runs import retraining
from rl_core.runtime.home import Home
from schemas.receipts import CacheReceipt, News
from schemas.recipe import Recipe
from schemas.sections.registration import Retrain
from tasks.prefect_ui import artifacts


@task(name="look-for-news", cache_policy=NO_CACHE)
def look_for_news(recipe: dict[str, Any], cache: CacheReceipt, retrain: Retrain) -> News:
    """Compare data, code and recipe with those of the newest registered version."""
    news = retraining.look_for_news(Recipe.model_validate(recipe), cache, retrain, Home.default())
    if news.train:
        begins = f"Training starts from `{news.start_from or recipe['model']['path']}`."
    else:
        begins = "Nothing to do."
    artifacts.markdown(
        "news",
        f"**{artifacts.as_it_is(news.reason)}**. {begins}",
        "Whether there is anything to learn",
    )
    return news
