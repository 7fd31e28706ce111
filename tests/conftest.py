"""What every test shares: an environment of its own, one Ray cluster, one Prefect server, one tiny
model.

The environment is set at import, before any test module imports a library that reads it. Nothing
touches the user's own folders, and nothing asks the network. The services start when a test first
asks for them.
"""

import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

_SESSION_FOLDER = tempfile.TemporaryDirectory(prefix="rl-train-tests-", ignore_cleanup_errors=True)

os.environ.update(
    RL_TRAIN_HOME=f"{_SESSION_FOLDER.name}/home",
    PREFECT_HOME=f"{_SESSION_FOLDER.name}/prefect",
    PREFECT_SERVER_ANALYTICS_ENABLED="false",
    DO_NOT_TRACK="1",
    MLFLOW_DISABLE_TELEMETRY="true",
    MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR="false",
    MPLCONFIGDIR=f"{_SESSION_FOLDER.name}/matplotlib",
    HF_HOME=f"{_SESSION_FOLDER.name}/huggingface",
    HF_HUB_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
    # Ray runs workers at nice 15 otherwise, which starves them on a busy machine.
    RAY_worker_niceness="0",
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
    RAY_USAGE_STATS_ENABLED="0",
    # Tiny models lose more to thread switching than they gain; one thread also fixes the order of
    # sums.
    OMP_NUM_THREADS="1",
    MKL_NUM_THREADS="1",
)
if "PYTEST_XDIST_WORKER" not in os.environ:
    # One for all processes of the session: what the first server of Prefect's keeps for the others.
    os.environ["XDG_CACHE_HOME"] = f"{_SESSION_FOLDER.name}/cache"
for _name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI", "RAY_ADDRESS"):
    os.environ.pop(_name, None)
# Hundreds of processes start from here, and each would compile the project's files again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Test modules import what stays until the end; scanning it for garbage is a quarter of their time.
gc.disable()

HERE = Path(__file__).parent
LONGEST_FIRST = (
    "e2e/test_resume.py",
    "e2e/test_smoke_recipes.py",
    "e2e/test_deployment.py",
    "e2e/test_services.py",
    "e2e/test_outages.py",
    "e2e",
    "distributed/test_failures.py",
    "models/test_every_family.py",
    "flows",
    "train",
    "trainers",
)
"""Files of a minute or more, the longest first, the other whole runs, and then files and folders
that wait for processes; what is left takes seconds, so that no process ends long before the
others."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file is one worker's, and a long one that starts last leaves the others with nothing to
    do."""
    items.sort(key=lambda item: _turn(item.path))


def pytest_collection_finish() -> None:
    """What the test modules have imported is left out of every later scan."""
    gc.freeze()
    gc.enable()


@cache
def _turn(path: Path) -> int:
    """Position of a test file among `LONGEST_FIRST`, or after all of them."""
    for position, name in enumerate(LONGEST_FIRST):
        if path.is_relative_to(HERE / name):
            return position
    return len(LONGEST_FIRST)


@pytest.fixture(scope="module", autouse=True)
def _environment_as_it_was() -> Iterator[None]:
    """A module that leaves an address behind sends the runs of later modules elsewhere; it fails
    here, by name."""
    before = _service_settings()
    yield
    # Recipes that were loaded in this process; a run's process has one.
    os.environ.pop("RL_TRAIN_RECIPE_FOLDERS", None)
    after = _service_settings()
    for name in after.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)
    assert after == before, "the module left the environment changed"


@pytest.fixture(scope="module", autouse=True)
def _devices_are_given_back() -> Iterator[None]:
    """A module that keeps devices leaves later ones, in other files, without any; it fails here, by
    name."""
    before = _reserved()
    yield
    kept = {group: bundles for group, bundles in _reserved().items() if group not in before}
    for group in kept:
        _give_back(group)
    assert not kept, f"the module left devices reserved: {list(kept.values())}; close its blocks"


def _reserved() -> dict[str, object]:
    """The bundles of this process's cluster that are reserved, by placement group."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return {}
    tables = ray.util.placement_group_table()
    return {
        group: table["bundles"] for group, table in tables.items() if table["state"] != "REMOVED"
    }


def _give_back(group: str) -> None:
    from ray import PlacementGroupID
    from ray.util.placement_group import PlacementGroup, remove_placement_group

    remove_placement_group(PlacementGroup(PlacementGroupID.from_hex(group)))


def _service_settings() -> dict[str, str]:
    """What decides which home, server and database a process uses."""
    return {
        key: value
        for key, value in os.environ.items()
        if key.startswith(("RL_TRAIN_", "PREFECT_", "MLFLOW_"))
    }


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A local Ray of four (logical) CPUs and all GPUs for the whole session; tests take from it and
    give back."""
    import ray
    import torch

    from rl_core.distributed.fork_server import forked_workers

    with forked_workers() as python:
        # Workers inherit OMP_NUM_THREADS; Ray would otherwise set it from each actor's num_cpus.
        ray.init(
            address="local",
            num_cpus=4,
            num_gpus=torch.cuda.device_count(),
            include_dashboard=False,
            object_store_memory=200 * 2**20,
            runtime_env={"py_executable": python},
        )
        yield
        ray.shutdown()


@pytest.fixture(scope="session")
def prefect_harness() -> Iterator[None]:
    """A temporary Prefect server and database for the whole session (about seven seconds)."""
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=120):
        yield


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random two-layer Llama and a character tokenizer with a chat template, made as a
    real model is."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny-model")
    tokenizer = character_tokenizer()
    vocabulary = tokenizer.get_vocab()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=vocabulary["<|im_end|>"],
        pad_token_id=vocabulary["<|pad|>"],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def smollm2_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the embedded SmolLM2, named as in a home's `models`; dequantised once (20 s) for
    all processes that run tests."""
    from rl_core.builtin.embedded import materialise

    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    return materialise("smollm2-135m-instruct", shared / "models")


@pytest.fixture(scope="session")
def tiny_sd3_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random Stable Diffusion 3 pipeline for pictures of 32 x 32."""
    from tests.models.tiny_diffusion import tiny_sd3

    return tiny_sd3(tmp_path_factory.mktemp("tiny-sd3") / "model")


@pytest.fixture(scope="session")
def tiny_unified_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the embedded unified model as it is before its warm-up, but for a last layer that
    is not zero."""
    import torch

    from rl_core.builtin.models.tiny_unified import make_pipeline

    folder, pipeline = tmp_path_factory.mktemp("tiny-unified"), make_pipeline()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        torch.nn.init.normal_(pipeline.transformer.proj_out.weight, std=0.1)
    pipeline.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_vlm_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the embedded vision-language model as it is before its warm-up: right in form,
    blind."""
    from rl_core.builtin.models.tiny_vlm import make_model, make_processor, save

    folder = tmp_path_factory.mktemp("tiny-vlm")
    processor = make_processor()
    save(make_model(processor.tokenizer), processor, folder)
    return folder


def character_tokenizer():
    """One token per printable character; `<|im_start|>`, `<|im_end|>` (eos) and `<|pad|>` are
    whole."""
    import string

    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<|pad|>", "<|unk|>", "<|im_start|>", "<|im_end|>"]
    characters = [*string.digits, *string.ascii_letters, *string.punctuation, " ", "\n"]
    vocabulary = {token: index for index, token in enumerate([*special, *characters])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<|unk|>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<|pad|>",
        unk_token="<|unk|>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] "
        "}}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif "
        "%}"
    )
    return tokenizer
