from pathlib import Path

import pytest
from catalogue_policies import HAND_OVER, LOSERS, WINNERS, play_as
from odd_arguments import odd_arguments
from playing import another, call, published, run
from small_airline import write_airline
from tables import table

from turntree.envs import DataError
from turntree.envs.errors import ToolError
from turntree.envs.service.database import Database, read_tables
from turntree.envs.service.desk import desk_after
from turntree.envs.service.env import TauAirline
from turntree.envs.service.tau_airline import TABLES, TauAirlineDesk

WRITES = ("book", "cancel", "update", "send")
BOOKING = table(__file__, "booking")


@pytest.fixture
def airline(tmp_path: Path) -> Path:
    return write_airline(tmp_path)


@pytest.fixture
def desk(airline: Path) -> TauAirlineDesk:
    return TauAirlineDesk(Database(read_tables(airline, "airline", TABLES)))


def test_what_is_not_allowed_is_looked_into_and_refused(airline: Path) -> None:
    env = TauAirline(data=airline)
    for turns, reward in (([], 0.0), ([call(env, "get_reservation_details", reservation_id="AAAAAA")], 1.0)):
        assert "Be punctual." in env.reset(options={"index": 2})[0]
        for turn in turns:
            env.step(turn)
        assert env.step("I am sorry, that is not possible.")[1] == reward


def test_a_booking_is_paid_in_full_and_takes_its_seats(desk: TauAirlineDesk) -> None:
    run(desk, "book_reservation", **BOOKING)  # 60 + 120, a bag of 50, an insurance of 30
    changes = desk.database.changes()
    methods = changes["users"]["ann_lee_1234"]["payment_methods"]
    assert "certificate_1" not in methods
    assert methods["gift_card_1"]["amount"] == 40
    [(number, booked)] = changes["reservations"].items()
    assert changes["users"]["ann_lee_1234"]["reservations"] == ["AAAAAA", number]
    assert [leg["price"] for leg in booked["flights"]] == [60.0, 120.0]
    assert changes["flights"]["F1"]["dates"]["2024-05-20"]["available_seats"]["economy"] == 2


def test_cancelling_notes_what_goes_back_and_frees_the_seats(desk: TauAirlineDesk) -> None:
    run(desk, "cancel_reservation", reservation_id="AAAAAA")
    changes = desk.database.changes()
    assert [entry["amount"] for entry in changes["reservations"]["AAAAAA"]["payment_history"]] == [110, -110]
    assert changes["flights"]["F1"]["dates"]["2024-05-20"]["available_seats"]["economy"] == 5
    with pytest.raises(ToolError, match="the reservation is cancelled"):
        run(desk, "cancel_reservation", reservation_id="AAAAAA")


def test_a_flight_that_stays_keeps_its_price_and_another_is_paid(desk: TauAirlineDesk) -> None:
    change = {"reservation_id": "AAAAAA", "cabin": "economy", "payment_id": "gift_card_1"}
    run(desk, "update_reservation_flights", flights=[{"flight_number": "F1", "date": "2024-05-20"}], **change)
    assert desk.database.changes() == {}
    run(desk, "update_reservation_flights", flights=[{"flight_number": "F1", "date": "2024-05-21"}], **change)
    changes = desk.database.changes()
    assert changes["reservations"]["AAAAAA"]["payment_history"][-1] == {"payment_id": "gift_card_1", "amount": 50.0}
    assert changes["users"]["ann_lee_1234"]["payment_methods"]["gift_card_1"]["amount"] == 150


def test_flights_with_a_stop_leave_after_the_first_has_arrived(desk: TauAirlineDesk) -> None:
    day = "2024-05-20"
    assert '"F1"' in run(desk, "search_direct_flight", origin="BOS", destination="JFK", date=day)
    found = run(desk, "search_onestop_flight", origin="BOS", destination="SEA", date=day)
    assert '"F1"' in found
    assert '"F2"' in found
    after_midnight = run(desk, "search_onestop_flight", origin="JFK", destination="DEN", date=day)
    assert '"date": "2024-05-21"' in after_midnight
    assert run(desk, "search_onestop_flight", origin="JFK", destination="DEN", date="2024-05-21") == "[]"


@pytest.mark.parametrize(("name", "arguments", "complaint"), table(__file__, "refused_by_the_airline"))
def test_what_cannot_be_done_is_said_to_the_agent_and_changes_nothing(desk, name, arguments, complaint):
    full = {**BOOKING, **arguments} if name == "book_reservation" else arguments
    with pytest.raises(ToolError, match=complaint):
        run(desk, name, **full)
    assert desk.database.changes() == {}


def test_no_arguments_lead_to_a_failure(airline: Path) -> None:
    env = TauAirline(data=airline)
    known = {"user_id": "ann_lee_1234", "reservation_id": "AAAAAA", "payment_id": "gift_card_1"}
    for tool in TauAirlineDesk.tools:
        env.reset(options={"index": 0})
        for arguments in odd_arguments(tool):
            for given in (arguments, {name: known.get(name, value) for name, value in arguments.items()}):
                info = env.step(call(env, tool.name, **given))[4]
                assert not info["stop_reason"], (tool.name, given, info["failure"])


def test_missing_data_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TURNTREE_DATA", raising=False)
    with pytest.raises(DataError, match="expected data=FOLDER with tau-bench's airline database"):
        TauAirline()
    with pytest.raises(DataError, match="has no table 'users'"):
        TauAirline(data=tmp_path)


def test_the_published_tasks_are_won_by_their_own_actions_alone() -> None:
    env = TauAirline(data=published("tau_bench"))
    assert env.num_tasks == 50
    assert len(env.reset(seed=0)[1]["tools"]) == 14
    for index in range(50):
        assert all(play_as(env, LOSERS[loser], index).lost for loser in ("bye", "sorry", "all integers"))
        at_once = [action["name"] for action in env.task(index).metadata["actions"]] == [HAND_OVER]
        assert play_as(env, LOSERS["hand over"], index).reward == float(at_once), index
        assert play_as(env, WINNERS["turntree/TauAirline-v0"], index).won, index


def test_the_published_actions_are_accepted_and_nothing_near_them_does_the_same() -> None:
    env = TauAirline(data=published("tau_bench"))
    desk = env.toolsets[0]
    assert isinstance(desk, TauAirlineDesk)
    for index in range(50):
        actions = env.task(index).metadata["actions"]
        tools, own = {tool.name: tool for tool in desk.tools}, desk.fresh()
        for action in actions:
            tools[action["name"]].run(action["kwargs"], owner=own)
        for number, action in enumerate(actions):
            if action["name"].startswith(WRITES):
                given = action["kwargs"]
                others = [[{**action, "kwargs": {**given, name: another(given[name])}}] for name in given]
                for instead in ([], *others):
                    near = desk_after(desk, [*actions[:number], *instead, *actions[number + 1 :]])
                    assert near.database.changes() != own.database.changes(), (index, instead)
