import pickle
import time

from turntree.envs.stopwatch import Stopwatch


def test_a_pickle_keeps_the_seconds_so_far_and_not_the_time_in_between() -> None:
    watch = Stopwatch()
    time.sleep(0.02)
    state = pickle.dumps(watch)
    before = watch.seconds
    time.sleep(0.1)
    copy = pickle.loads(state)
    assert 0.02 <= copy.seconds <= before + 0.08
    assert watch.seconds > 0.12
