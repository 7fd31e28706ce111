"""Compact tables say what a dict would."""

import pickle
import random

import pytest

from rl_core.data.prepare.fingerprint import run_hash
from rl_core.data.prepare.prompt_items import ItemMaker
from rl_core.data.store import key_table, reference_log_probs
from rl_core.data.store.key_table import KeyTable, UidPlaces
from rl_core.data.store.spool import Spool
from rl_core.data.store.views import Joined


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays that settle after a few keys, so that every path is taken."""
    monkeypatch.setattr(key_table, "RECENT", 7)
    monkeypatch.setattr(key_table, "LARGEST", 100)


def test_a_table_holds_what_a_dict_would(short: None) -> None:
    drawn, table, known = random.Random(0), KeyTable(), dict[int, int]()
    keys = [drawn.getrandbits(64) for _ in range(600)] + [0, 2**64 - 1]
    for number in range(6000):
        key = drawn.choice(keys)
        if drawn.random() < 0.3:
            assert table.setdefault(key, number) == known.setdefault(key, number)
        elif drawn.random() < 0.5:
            table[key] = known[key] = number
        assert table.get(key) == known.get(key)
    assert {key: table.get(key) for key in keys} == {key: known.get(key) for key in keys}


def test_twins_are_numbered_across_all_that_was_seen(short: None) -> None:
    make = ItemMaker()
    rows = [
        {"prompt": [{"role": "user", "content": str(row % 40)}], "env_class": "gsm8k"}
        for row in range(120)
    ]
    uids = [make(row, "rows:1")["uid"] for row in rows]
    assert [uid.rpartition("-")[2] for uid in uids] == ["0"] * 40 + ["1"] * 40 + ["2"] * 40
    assert len(set(uids)) == 120 and len({uid[:16] for uid in uids}) == 40


def test_a_uid_is_found_at_its_place_and_no_other_is() -> None:
    uids = [f"row-{row}" for row in range(1000)]
    places = UidPlaces([*uids, "row-3"])
    assert [places[uid] for uid in uids[4:]] == list(range(4, 1000))
    assert places["row-3"] == 1000, "the last of several, as in a dict"
    assert places.get("row-1000") is None and "other" not in places and "row-0" in places
    with pytest.raises(KeyError):
        places["other"]


def test_uids_have_the_digest_of_their_text_as_a_whole() -> None:
    for uids in ([], ["a"], ["a", 'é"\\', "🙂\n"], [f"{row:x}-0" for row in range(100)]):
        assert reference_log_probs._digest_of(uids) == run_hash({"uids": "\n".join(uids)})


def test_spooled_values_come_back_while_more_are_added() -> None:
    spool, values = Spool(), [(1, {"a": [None, b"\x00", 2**70]}, 3), "text", None]
    for value in values:
        spool.append(value)
        assert spool[-1] == value
    assert pickle.loads(pickle.dumps(spool)) == values
    assert spool == values and Joined([values, spool, []]) == values + values
