"""Display of a chain in the terminal: that of each stage's run, and a table of all stages at the
end."""

from __future__ import annotations

from flows.console import Table
from flows.display import Display
from rl_core.runs.chain.chain_table import WHY, stage_rows
from rl_core.runs.chain.chains import LoadedChain
from rl_core.trainers.progress import STAGE, ProgressEvent
from schemas.receipts import ChainReceipt


class ChainDisplay(Display):
    """Live display of a chain, which follows the stage that is trained."""

    def __init__(self, chain: LoadedChain) -> None:
        super().__init__(chain.stages[0].recipe)
        self._chain = chain

    def _follow(self, event: ProgressEvent) -> None:
        if event.phase != STAGE:
            super()._follow(event)
            return
        stage = self._chain.stage(event.text)
        self.turn_to(stage.recipe)
        start = stage.starts_from
        self.console.say(
            f"{self._clock()}  stage {stage.name} ({event.step} of {event.total_steps}): "
            f"{stage.title}, from {f'stage {start}' if start else stage.recipe.model.path}"
        )

    def chain_summary(self, receipt: ChainReceipt) -> None:
        """Print the table of the stages, and the summary of the last one."""
        rows = stage_rows(self._chain, receipt.stages)
        for row, stage in zip(rows, receipt.stages.values(), strict=True):
            del row[WHY]  # a sentence, too long for a cell of a terminal
            row["champion"] = "yes" if stage.promoted else "no"
        table = Table(f"{receipt.name}: stages")
        for column in rows[0]:
            table.column(column)
        for row in rows:
            table.row(*map(str, row.values()))
        self.summary(list(receipt.stages.values())[-1])
        self.console.print(table)
