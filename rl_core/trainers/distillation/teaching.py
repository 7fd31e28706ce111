"""The driver's part of distillation: which teacher judges which row, and what it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from rl_core.algorithms.distillation import teachers_of
from rl_core.algorithms.teacher import REGISTERED, OwnWeights, TeacherConfig
from rl_core.data.prepare.items import Item, PlayedItem
from rl_core.data.prepare.tokenizer import Tokenizer
from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef, remote
from rl_core.errors import DataError, RecipeError
from rl_core.models.bundle import ModelBundle, TextBundle
from rl_core.models.chat.tokenizer import encode_chat, load_processor, load_tokenizer
from rl_core.models.locate import locate
from rl_core.runtime.home import Home
from rl_core.train.stacks.distill_stack import SERVED, TEACHER, TEACHER_PROMPT
from rl_core.train.teacher import FrozenTeacher, OwnTeacher
from rl_core.trainers.distillation.same_tokens import (
    check_pictures,
    check_prompts,
    check_vocabulary,
)
from rl_core.trainers.distillation.served_teacher import ServedTeacher
from rl_core.trainers.handles import BackendHandle, ParkedHandle
from schemas.recipe import Recipe
from schemas.sections.checks.quantization import in_full_precision


@dataclass
class Teaching:
    """Teachers of one learner."""

    teachers: Mapping[str, TeacherConfig]
    """Teachers by their key in the algorithm's block."""
    tokenizer: Tokenizer
    """Tokenizer of the policy."""
    template_kwargs: dict[str, object]
    on_ranks: list[object] = field(default_factory=list)
    """Handles of the teachers that the ranks read, in the order of their numbers."""
    numbers: dict[str, int] = field(default_factory=dict)
    """Number of each of them by its key."""
    served: dict[str, ServedTeacher] = field(default_factory=dict)
    """Teachers on servers, by key."""
    handles: tuple[ParkedHandle, ...] = ()
    """Teachers with weights of their own on the ranks."""
    unchecked: dict[str, Tokenizer] = field(default_factory=dict)
    """Tokenizers whose reading of prompts has not been checked, by the teacher's name."""

    def add_to(self, batch: DataProto | DataProtoRef, items: Mapping[str, Item]) -> None:
        """Add the columns that the ranks need, in place, and ask the servers.

        Raises: DataError when a row has no teacher, or lacks its hint; ModelError when a teacher
        reads other tokens; Unreachable or ServiceError when a server gives no answer.
        """
        self._check_prompts(batch)
        # Teachers read conversations, and no other rows have a teacher.
        rows = [cast(PlayedItem, items[str(uid)]) for uid in batch.non_tensor_batch["uid"]]
        keys = [self._key(item) for item in rows]
        tensors: dict[str, torch.Tensor] = {}
        objects: dict[str, Sequence[object]] = {}
        if len(self.teachers) > 1:
            tensors[TEACHER] = torch.tensor([self.numbers.get(key, -1) for key in keys])
        prompts: list[list[int] | None] = [None] * len(rows)
        if any(teacher.hint is not None for teacher in self.teachers.values()):
            known: dict[str, list[int] | None] = {}
            own = _prompts_of(batch)
            for row, (key, item) in enumerate(zip(keys, rows, strict=True)):
                if item["uid"] not in known:
                    known[item["uid"]] = self._prompt(self.teachers[key], item, own[row])
                prompts[row] = known[item["uid"]]
            objects[TEACHER_PROMPT] = prompts
        if self.served:
            tensors[SERVED] = self._ask(batch, keys, prompts)
        if tensors or objects:
            batch.union(DataProto.from_dict(tensors, objects))

    def _key(self, item: PlayedItem) -> str:
        source = item["env_extras"].get("data_source")
        if (key := f"teachers.{source}") in self.teachers:
            return key
        if "teacher" in self.teachers:
            return "teacher"
        known = ", ".join(sorted(key.partition(".")[2] for key in self.teachers))
        raise DataError(
            f"row {item['uid']} field data_source: {source!r} has no teacher; expected one of "
            f"{known}, or set algorithm.teacher for all others"
        )

    def _prompt(self, teacher: TeacherConfig, item: PlayedItem, own: list[int]) -> list[int] | None:
        """Return the tokens of the prompt with the row's hint; None for the row's own prompt.

        Args: own: tokens of the prompt as the policy read it.
        """
        if teacher.hint is None:
            return None
        if encode_chat(self.tokenizer, list(item["prompt"]), self.template_kwargs) != own:
            raise DataError(
                f"row {item['uid']}: its environment {item['env_class']} changes the prompt, so "
                "that a teacher with a hint would read another one; leave the hint out, or write "
                "the whole prompt into the row"
            )
        value: object = item["env_extras"]
        for part in teacher.hint.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is None or value == "":
            raise DataError(
                f"row {item['uid']} field {teacher.hint}: missing; the teacher reads it as its hint"
            )
        *before, last = item["prompt"]
        text = teacher.hint_text.replace("{hint}", str(value))
        content = last["content"]
        if isinstance(content, str):
            added = content + text
        else:
            added = [*content, {"type": "text", "text": text}]
        messages = [*map(dict, before), {**last, "content": added}]
        return encode_chat(self.tokenizer, messages, self.template_kwargs)

    def _ask(
        self,
        batch: DataProto | DataProtoRef,
        keys: list[str],
        prompts: list[list[int] | None],
    ) -> torch.Tensor:
        """Return the log-probabilities of served teachers, [B, T], 0 in other rows."""
        ids_BL, used_BL = batch.tensor("input_ids"), batch.tensor("attention_mask").bool()
        mask_BT = batch.tensor("response_mask")
        num_prompt = ids_BL.shape[1] - mask_BT.shape[1]
        said_BT, own = torch.zeros(mask_BT.shape), _prompts_of(batch)
        for key, server in self.served.items():
            chosen = [
                row for row, one in enumerate(keys) if one == key and bool(mask_BT[row].any())
            ]
            asked, lengths = [], []
            for row in chosen:
                reply = ids_BL[row, num_prompt:][used_BL[row, num_prompt:]].tolist()
                asked.append((prompts[row] or own[row]) + reply)
                lengths.append(len(reply))
            answers = server.log_probs(asked)
            for row, length, answer in zip(chosen, lengths, answers, strict=True):
                said_BT[row, :length] = torch.tensor(answer[-length:])
        return said_BT * (mask_BT != 0)

    def _check_prompts(self, batch: DataProto | DataProtoRef) -> None:
        """Check once that the teachers' tokenizers give the tokens of the prompts."""
        if not self.unchecked:
            return
        prompts = {tuple(ids) for ids in _prompts_of(batch)}
        for name, tokenizer in self.unchecked.items():
            check_prompts(name, tokenizer, self.tokenizer, prompts)
        self.unchecked = {}


def _prompts_of(batch: DataProto | DataProtoRef) -> list[list[int]]:
    """Return the tokens of each row's prompt, without padding."""
    ids_BL, used_BL = batch.tensor("input_ids"), batch.tensor("attention_mask").bool()
    num_prompt = ids_BL.shape[1] - batch.tensor("response_mask").shape[1]
    prompts: list[list[int]] = []
    for ids, used in zip(ids_BL[:, :num_prompt], used_BL[:, :num_prompt], strict=True):
        prompts.append(ids[used].tolist())
    return prompts


def taught_by_base(recipe: Recipe) -> bool:
    """Return True if the weights before training teach the policy, so that they have to be kept."""
    return any(one.own is OwnWeights.BASE for one in teachers_of(recipe).values())


def wire_teachers(
    recipe: Recipe, source_model: str, backend: BackendHandle, bundle_class: type[ModelBundle]
) -> Teaching:
    """Place a recipe's teachers in the open block, beside the backend of their student.

    Raises: ModelError when a teacher cannot be found or reads other tokens; RecipeError when it is
    named by an alias.
    """
    seeing = None if bundle_class is TextBundle else _processor(source_model)
    tokenizer = load_tokenizer(source_model)
    teaching = Teaching(teachers_of(recipe), tokenizer, dict(recipe.model.chat_template_kwargs))
    for key, teacher in teaching.teachers.items():
        if teacher.url is not None:
            teaching.served[key] = ServedTeacher(teacher, tokenizer)
            continue
        teaching.numbers[key] = len(teaching.on_ranks)
        if teacher.own is not None:
            teaching.on_ranks.append(remote(OwnTeacher, backend, teacher.own))
            continue
        source = located_teacher(f"algorithm.{key}.path", str(teacher.path))
        theirs = load_tokenizer(source)
        check_vocabulary(teacher.name, theirs, tokenizer)
        if seeing is not None:
            check_pictures(teacher.name, load_processor(source), seeing)
        teaching.unchecked[teacher.name] = theirs
        model = in_full_precision(recipe.model).model_copy(update={"path": teacher.path})
        handle = remote(FrozenTeacher, bundle_class, source, model, recipe.fsdp, name=teacher.name)
        teaching.on_ranks.append(handle)
        teaching.handles += (cast(ParkedHandle, handle),)
    return teaching


def _processor(source: str) -> Any:
    from rl_core.models.family import sees_pictures

    if sees_pictures(source):
        return load_processor(source)
    return None


def located_teacher(key: str, path: str) -> str:
    """Return a teacher's folder or hub id. Args: key: of the recipe, for messages. path: as
    `algorithm.teacher.path`. Raises: RecipeError on an alias, which may move."""
    home = Home.default()
    if not path.startswith(REGISTERED):
        return locate(path, home.models)
    from rl_core.tracking.model_versions import find_version
    from rl_core.tracking.stored_weights import weights_here

    found = find_version(home.mlflow_uri, path)
    if "@" in path:
        raise RecipeError(
            f"{key} {path}: an alias may move while the run goes on; name the version it stands "
            f"for now: {REGISTERED}{found.name}/{found.version}"
        )
    return locate(weights_here(found, home.mlflow_uri, home.models), home.models)
