import json
import pickle
from typing import Any

import pytest
from playing import call, use
from tables import table

from turntree.envs import Task, ToolError, make
from turntree.envs.service.airline import AirlineDesk
from turntree.envs.service.airline_tasks import airline_task
from turntree.envs.service.airline_world import FREE_BAGS, VOUCHER, airline
from turntree.envs.service.database import Database
from turntree.envs.service.desk import desk_after
from turntree.envs.service.env import AirlineService

TASKS = [airline_task("train", index) for index in range(120)]


def desk() -> AirlineDesk:
    return AirlineDesk(Database(airline()))


def run(own: AirlineDesk, called: str, /, **arguments: Any) -> Any:
    return json.loads({tool.name: tool for tool in own.tools}[called].run(arguments, owner=own))


def index_of(kind: str) -> int:
    return next(index for index, task in enumerate(TASKS) if task.id.endswith(f"/{kind}"))


def booking_where(**fields: Any) -> dict[str, Any]:
    return next(b for b in airline().records["bookings"].values() if fields.items() <= b.items())


def test_the_tasks_own_calls_all_succeed_and_change_something() -> None:
    kinds = set()
    for task in TASKS:
        own = desk()
        for action in task.metadata["actions"]:
            run(own, action["name"], **action["kwargs"])
        assert own.database.changes()
        assert own.database.changes() == desk_after(desk(), task.metadata["actions"]).database.changes()
        kinds.add(task.id.rpartition("/")[2])
    assert len(kinds) == 8


@pytest.mark.parametrize("kind", ["bags", "book", "cancel", "cancel_or_bags", "change", "name", "upgrade", "voucher"])
def test_an_agent_that_does_what_is_asked_and_tells_wins(kind: str) -> None:
    env = make("turntree/AirlineService-v0")
    index = index_of(kind)
    opening, info = env.reset(options={"index": index})
    task = TASKS[index]
    assert task.prompt in opening
    assert len(info["tools"]) == 14
    email = task.prompt.split("Your email is ")[1].split(". ")[0]
    assert use(env, "find_customer_by_email", email=email) in airline().records["customers"]
    assert "go ahead" in env.step("Shall I?")[0]
    for action in task.metadata["actions"]:
        assert "Error" not in use(env, action["name"], **action["kwargs"])
    done = env.snapshot()
    _, reward, terminated, _, info = env.step(" ".join(["Done.", *task.metadata["outputs"]]))
    assert (reward, terminated, info["rewards"]) == (1.0, True, {"database": 1.0, "told": 1.0})
    for everything in (range(3_000), range(0, 3_000, 50), range(100)) if task.metadata["outputs"] else ():
        env.restore(done)
        assert env.step(" ".join(map(str, everything)))[4]["rewards"] == {"database": 1.0, "told": 0.0}


def test_where_nothing_can_be_done_it_is_looked_into_and_said() -> None:
    env = make("turntree/AirlineService-v0")
    words = {name: call(env, "get_booking", booking_id=number) for name, number in (("look", "B1001"), ("miss", "B9"))}
    words["leave"] = call(env, "transfer_to_human_agents", summary="a customer")
    for actions, turns, reward in table(__file__, "refusals"):
        env.reset(options={"task": Task(id="refusal", prompt="?", metadata={"actions": actions, "outputs": []})})
        assert [env.step(words.get(turn, turn)) for turn in turns][-1][1] == reward, turns


def test_an_agent_that_cancels_what_may_not_be_cancelled_loses() -> None:
    env = make("turntree/AirlineService-v0")
    index = index_of("cancel_or_bags")
    env.reset(options={"index": index})
    booking = TASKS[index].metadata["actions"][0]["kwargs"]["booking_id"]
    use(env, "cancel_booking", booking_id=booking)
    assert env.step(f"Cancelled; {TASKS[index].metadata['outputs'][0]} dollars.")[4]["rewards"]["database"] == 0.0


def test_a_cancelled_booking_gives_money_and_seats_back_once_and_a_voucher_is_used_up() -> None:
    own = desk()
    booking = booking_where(cabin="economy")
    flight = booking["flight"]

    def seats() -> int:
        return own.database.read("flights", flight["number"])["dates"][flight["date"]]["seats"]["economy"]  # type: ignore[index]

    before = seats()
    cancelled = run(own, "cancel_booking", booking_id=booking["booking_id"])
    assert seats() - before == len(booking["passengers"])
    paid = booking["payment_history"][0]
    assert cancelled["payment_history"][1] == {**paid, "transaction_type": "refund"}
    with pytest.raises(ToolError, match="the booking is cancelled"):
        run(own, "cancel_booking", booking_id=booking["booking_id"])
    own = desk()
    booking = booking_where(cabin="economy")
    voucher = run(own, "send_voucher", customer_id=booking["customer_id"], amount=VOUCHER)
    run(own, "add_bags", booking_id=booking["booking_id"], bags=2, paid_bags=2, payment_method_id=voucher["id"])
    with pytest.raises(ToolError, match="insufficient voucher balance"):
        run(own, "add_bags", booking_id=booking["booking_id"], bags=1, paid_bags=1, payment_method_id=voucher["id"])


def test_a_refusal_changes_nothing() -> None:
    own = desk()
    booking = booking_where(cabin="economy")
    here, cents = booking["booking_id"], {"payment_method_id": "nobody"}
    other = next(f for f in airline().records["flights"].values() if f["origin"] != booking["origin"])
    methods = airline().records["customers"][booking["customer_id"]]["payment_methods"].values()
    gift = next(method for method in methods if method["source"] == "gift_card")
    most = int(gift["balance"] // 40)  # that it covers
    bags = {"bags": 9 + most, "paid_bags": most + 1, "payment_method_id": gift["id"]}
    for name, arguments, said in [
        ("change_cabin", {"cabin": "economy", **cents}, "in economy already"),
        ("change_flight", {"number": other["number"], "date": booking["flight"]["date"], **cents}, "does not go from"),
        ("change_flight", {"number": booking["flight"]["number"], "date": "2031-1-1", **cents}, "does not go on"),
        ("add_bags", {"bags": 1, "paid_bags": 2, **cents}, "no more paid ones"),
        ("add_bags", {"bags": 1, "paid_bags": 1, **cents}, "payment method not found"),
        ("add_bags", bags, "insufficient gift card balance"),
        ("correct_name", {"passenger": 9, "name": "A B"}, "counted from 1"),
    ]:
        with pytest.raises(ToolError, match=said):
            run(own, name, booking_id=here, **arguments)
    with pytest.raises(ToolError, match="customer not found"):
        run(own, "send_voucher", customer_id="nobody", amount=5)
    assert own.database.changes() == {}


def test_the_policy_states_the_amounts_splits_differ_and_copies_hold_no_records() -> None:
    policy = AirlineService().policy
    assert f"given {VOUCHER} dollars" in policy
    assert f"{FREE_BAGS['gold']} with gold" in policy
    assert airline_task("train", 0).prompt != airline_task("test", 0).prompt
    assert len(pickle.dumps(airline())) < 200
    assert pickle.loads(pickle.dumps(airline())) is airline()
