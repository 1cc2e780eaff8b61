import functools
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from catalogue_policies import HAND_OVER, LOSERS, WINNERS, play_as
from playing import call, published, run, use
from small_shop import ADDRESS, ORDERS, PRODUCTS, USERS, write_shop
from tables import table

from turntree.envs import DataError, Message, Role, Task, make, require_conformance
from turntree.envs.service.database import Database, read_tables
from turntree.envs.service.desk import desk_after
from turntree.envs.service.env import RetailService
from turntree.envs.service.retail import TABLES, RetailDesk

CANCEL: tuple[str, dict[str, Any]] = ("cancel_pending_order", {"order_id": "#W1", "reason": "no longer needed"})
MOVE: tuple[str, dict[str, Any]] = ("modify_user_address", {"user_id": "ann_lee_1", **ADDRESS, "zip": "1"})


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    return write_shop(tmp_path)


def test_an_agent_that_does_what_is_asked_and_tells_wins(shop: Path) -> None:
    env = make("turntree/RetailService-v0", data=shop)
    opening, info = env.reset(options={"index": 0})
    assert "cancel #W1" in opening
    assert "Be kind." in opening
    assert len(info["tools"]) == 16
    assert use(env, "find_user_id_by_name_zip", first_name="Ann", last_name="Lee", zip="90001") == "ann_lee_1"
    assert "go ahead" in env.step("Shall I cancel #W1?")[0]
    assert '"cancelled"' in use(env, CANCEL[0], **CANCEL[1])
    _, reward, terminated, _, info = env.step("Done. You get $15.0 back.")
    assert (reward, terminated, info["rewards"]) == (1.0, True, {"database": 1.0, "told": 1.0})


@pytest.mark.parametrize(
    ("calls", "said", "rewards"),
    [
        ([], "You get 15.0 back.", {"database": 0.0, "told": 1.0}),
        ([CANCEL], "Done.", {"told": 0.0}),
        ([("cancel_pending_order", {"order_id": "#W1", "reason": "ordered by mistake"})], "15.0", {"database": 0.0}),
        ([CANCEL, MOVE], "15.0", {"database": 0.0}),
    ],
)
def test_an_agent_that_does_something_else_or_does_not_tell_loses(shop, calls, said, rewards):
    env = make("turntree/RetailService-v0", data=shop)
    env.reset(options={"index": 0})
    for name, arguments in calls:
        assert "Error" not in use(env, name, **arguments)
    _, reward, terminated, _, info = env.step(said)
    assert (reward, terminated) == (0.0, True)
    assert rewards.items() <= info["rewards"].items()


def test_what_tools_say_is_not_told_by_the_agent_and_a_transfer_ends_the_dialogue(shop: Path) -> None:
    env = make("turntree/RetailService-v0", data=shop)
    env.reset(options={"index": 0})
    assert "15.0" in use(env, "get_order_details", order_id="#W1")
    use(env, "think", thought="15.0")
    assert "malformed" in env.step("15.0 <tool_call>{")[0]
    assert env.step("Good bye.")[4]["rewards"]["told"] == 0.0
    env = make("turntree/RetailService-v0", data=shop)
    env.reset(options={"index": 1})
    use(env, "transfer_to_human_agents", summary="?")
    assert env.step("Is there anything else?")[2] is True


def test_another_simulated_user_may_take_part(shop: Path) -> None:
    class Silent:
        def open(self, task: Task) -> str:
            return "Hello."

        def answer(self, task: Task, dialogue: Any) -> str | None:
            return None if len(dialogue) > 3 else f"I heard {dialogue[-1].content}"

    env = RetailService(data=shop, simulated_user=Silent(), system_prompt="")
    assert not env.forkable
    assert env.reset(options={"index": 0})[0] == "Hello."
    assert env.step("Yes!")[0] == "I heard Yes!"
    assert env.step("And?")[2] is True
    assert env.messages[0] == Message(role=Role.USER, content="Hello.")


def test_it_keeps_the_rules(shop: Path) -> None:
    env = RetailService(data=shop)
    calls = [call(env, "modify_pending_order_address", order_id="#W1", **ADDRESS), call(env, CANCEL[0], **CANCEL[1])]
    require_conformance(functools.partial(RetailService, data=shop), [*calls, "Are you sure?", "Good bye."])


def test_snapshots_hold_the_edited_records_only_and_edits_stay_with_their_database(shop: Path) -> None:
    env = RetailService(data=shop)
    env.reset(options={"index": 0})
    use(env, CANCEL[0], **CANCEL[1])
    state = env.snapshot()
    assert b"Bowl" in state
    assert b"processed" not in state  # the status of an order that nobody touched
    env.reset(options={"index": 0})
    env.restore(state)
    assert '"cancelled"' in use(env, "get_order_details", order_id="#W1")
    tables = read_tables(shop, "retail", TABLES)
    one, other = Database(tables), Database(tables)
    one.edit("orders", "#W1")["status"] = "lost"
    assert one.changes()["orders"]["#W1"]["status"] == "lost"
    assert other.changes() == {}
    one.edit("orders", "#W1")["status"] = "pending"
    assert one.changes() == {}
    assert dict(other.rows("orders"))["#W1"] == ORDERS["#W1"]
    assert pickle.loads(pickle.dumps(one)).read("orders", "#W2") == ORDERS["#W2"]


@pytest.fixture
def desk(shop: Path) -> RetailDesk:
    return RetailDesk(Database(read_tables(shop, "retail", TABLES)))


def test_cancelling_refunds_a_gift_card_at_once(desk: RetailDesk) -> None:
    run(desk, CANCEL[0], **CANCEL[1])
    changes = desk.database.changes()
    assert changes["users"]["ann_lee_1"]["payment_methods"]["gift_card_1"]["balance"] == 45.0
    refund = {"transaction_type": "refund", "amount": 15.0, "payment_method_id": "gift_card_1"}
    assert changes["orders"]["#W1"]["payment_history"][1] == refund


def test_another_method_pays_and_the_first_gets_its_money_back(desk: RetailDesk) -> None:
    run(desk, "modify_pending_order_payment", order_id="#W1", payment_method_id="paypal_1")
    changes = desk.database.changes()
    assert changes["users"]["ann_lee_1"]["payment_methods"]["gift_card_1"]["balance"] == 45.0
    history = changes["orders"]["#W1"]["payment_history"]
    assert [entry["transaction_type"] for entry in history] == ["payment", "payment", "refund"]


def test_swapping_items_pays_the_difference_once(desk: RetailDesk) -> None:
    arguments = {"order_id": "#W1", "item_ids": ["i1"], "new_item_ids": ["i2"], "payment_method_id": "gift_card_1"}
    run(desk, "modify_pending_order_items", **arguments)
    changes = desk.database.changes()
    order, user = changes["orders"]["#W1"], changes["users"]["ann_lee_1"]
    assert order["status"] == "pending (item modified)"
    assert (order["items"][0]["item_id"], order["items"][0]["price"]) == ("i2", 12.5)
    assert user["payment_methods"]["gift_card_1"]["balance"] == 27.5
    with pytest.raises(Exception, match=r"the order is pending \(item modified\)"):
        run(desk, "modify_pending_order_items", **arguments)


def test_exchanges_and_returns_are_noted_on_the_order(desk: RetailDesk) -> None:
    arguments = {"item_ids": ["i1"], "new_item_ids": ["i2"], "payment_method_id": "paypal_1"}
    run(desk, "exchange_delivered_order_items", order_id="#W2", **arguments)
    order = desk.database.changes()["orders"]["#W2"]
    assert (order["status"], order["exchange_price_difference"]) == ("exchange requested", 2.5)
    other = RetailDesk(desk.database.fresh())
    run(other, "return_delivered_order_items", order_id="#W2", item_ids=["b1", "i1"], payment_method_id="gift_card_1")
    assert other.database.changes()["orders"]["#W2"]["return_items"] == ["b1", "i1"]


@pytest.mark.parametrize(("name", "arguments", "complaint"), table(__file__, "impossible_calls"))
def test_what_cannot_be_done_is_said_to_the_agent(desk, name, arguments, complaint):
    with pytest.raises(Exception, match=complaint):
        run(desk, name, **arguments)
    assert desk.database.changes() == {}


@pytest.mark.parametrize(("item_ids", "new_item_ids", "method", "complaint"), table(__file__, "refused_swaps"))
def test_a_refused_swap_changes_nothing(desk, item_ids, new_item_ids, method, complaint):
    arguments = {"item_ids": item_ids, "new_item_ids": new_item_ids, "payment_method_id": method}
    for name, order_id in (("modify_pending_order_items", "#W1"), ("exchange_delivered_order_items", "#W2")):
        with pytest.raises(Exception, match=complaint):
            run(desk, name, order_id=order_id, **arguments)
    assert desk.database.changes() == {}


def test_the_published_layout_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name, records in {"users": USERS, "orders": ORDERS, "products": PRODUCTS}.items():
        (tmp_path / "data" / f"{name}.json").write_text(json.dumps(records))
    assert Database(read_tables(tmp_path, "retail", TABLES)).read("orders", "#W1") == ORDERS["#W1"]


def test_files_that_do_not_fit_are_named(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TURNTREE_DATA", raising=False)
    with pytest.raises(DataError, match="expected data=FOLDER"):
        RetailService()
    tasks = shop / "retail_test_tasks.jsonl"
    tasks.write_text('{"instruction": "x", "actions": [{"name": "fly", "kwargs": {}}]}')
    with pytest.raises(DataError, match=r"retail_test_tasks.jsonl:1: the field 'actions' must list"):
        RetailService(data=shop)
    (shop / "db_retail_orders.jsonl").write_text('{"key": "#W1", "value": 3}')
    with pytest.raises(DataError, match=r"db_retail_orders.jsonl:1: the field 'value' must be an object"):
        RetailService(data=shop)
    (shop / "db_retail_orders.jsonl").unlink()
    with pytest.raises(DataError, match="has no table 'orders'"):
        RetailService(data=shop)


def test_published_schemas_are_shown_only_if_they_fit_our_tools(shop: Path) -> None:
    schema = json.loads(json.dumps(RetailDesk.tools[0].schema))
    schema["function"]["description"] = "As published."
    file = shop / "retail_tools_schema.jsonl"
    file.write_text(json.dumps(schema))
    assert RetailService(data=shop).reset(seed=0)[1]["tools"] == [schema]
    schema["function"]["parameters"]["required"] = []
    file.write_text(json.dumps(schema))
    with pytest.raises(DataError, match="takes other arguments"):
        RetailService(data=shop).reset(seed=0)


@pytest.mark.parametrize(
    ("split", "count"),
    [("dev", 20), *(pytest.param(*more, marks=pytest.mark.release) for more in (("test", 115), ("train", 500)))],
)
def test_the_published_tasks_are_won_by_their_own_actions(split: str, count: int) -> None:
    env = RetailService(data=published("tau_bench"), split=split)
    assert env.num_tasks == count
    assert len(env.reset(seed=0)[1]["tools"]) == 16
    for index in range(count):
        assert all(play_as(env, LOSERS[loser], index).lost for loser in ("bye", "sorry", "all integers"))
        actions = env.task(index).metadata["actions"]
        at_once = [action["name"] for action in actions] == [HAND_OVER]
        assert play_as(env, LOSERS["hand over"], index).reward == float(at_once), index
        assert play_as(env, WINNERS["turntree/RetailService-v0"], index).won, index


def test_the_published_actions_are_accepted_by_our_tools() -> None:
    data = published("tau_bench")
    database, env = Database(read_tables(data, "retail", TABLES)), RetailService(data=data, split="train")
    writes = refused = 0
    for index in range(env.num_tasks or 0):
        actions = [a for a in env.task(index).metadata["actions"] if a["name"].split("_")[0] not in ("get", "find")]
        changes = desk_after(RetailDesk(database), actions).database.changes()
        orders = {action["kwargs"]["order_id"] for action in actions if "order_id" in action["kwargs"]}
        writes += len(orders)
        refused += len(orders - set(changes.get("orders", {})))
    assert writes > 400
    assert refused <= 0.02 * writes
