"""Events: each thing once, again as a series, never too much, never an error."""

import pytest
from areal_operator.runtime.api import Api
from areal_operator.runtime.events import LONGEST_MESSAGE, Recorder, cut
from areal_operator.runtime.limiter import Limiter
from hypothesis import given
from hypothesis import strategies as st
from support import virtual_time
from support.fake_kube import FakeKube, Fault
from support.fake_kube_fronts import MemoryTransport

JOB = {
    "apiVersion": "areal.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"name": "digits", "namespace": "ns", "uid": "u1"},
}


class Rig:
    def __init__(self):
        self.now = 0.0
        self.fake = FakeKube()
        api = Api(MemoryTransport(self.fake), Limiter(1e6, 1000, lambda: self.now))
        self.recorder = Recorder(api, instance="operator-0", clock=lambda: self.now)

    async def say(self, reason="Started", message="it started", about=JOB, type="Normal"):
        await self.recorder.event(about, type=type, reason=reason, message=message)

    def events(self):
        return list(self.fake.objects.values())


def test_an_event_says_who_what_and_about_what():
    async def body():
        rig = Rig()
        await rig.say()
        (event,) = rig.events()
        assert event["regarding"]["uid"] == "u1"
        assert event["regarding"]["kind"] == "RLJob"
        assert (event["reason"], event["note"], event["type"]) == ("Started", "it started", "Normal")
        assert (event["reportingController"], event["reportingInstance"]) == ("areal.dev/operator", "operator-0")
        assert event["metadata"]["namespace"] == "ns"
        assert "series" not in event

    virtual_time.run(body())


def test_the_same_again_is_a_series_written_at_most_once_a_minute():
    async def body():
        rig = Rig()
        for _ in range(120):
            await rig.say()
            rig.now += 1.0
        (event,) = rig.events()
        assert len(rig.fake.requests) == 3  # the event, its second time, and a minute after that
        assert event["series"]["count"] == 62
        rig.now += 60
        await rig.say()
        (event,) = rig.events()
        assert event["series"]["count"] == 121

    virtual_time.run(body())


def test_after_a_long_silence_it_is_news_again():
    async def body():
        rig = Rig()
        await rig.say()
        rig.now += 361
        await rig.say()
        assert len(rig.events()) == 2

    virtual_time.run(body())


def test_another_message_reason_type_or_object_is_another_event():
    async def body():
        rig = Rig()
        await rig.say()
        await rig.say(message="it started again")
        await rig.say(reason="Stopped")
        await rig.say(type="Warning")
        await rig.say(about={**JOB, "metadata": {**JOB["metadata"], "uid": "u2"}})
        assert len(rig.events()) == 5

    virtual_time.run(body())


def test_an_object_that_has_too_much_to_say_is_cut_short_and_no_other():
    async def body():
        rig = Rig()
        for index in range(100):
            await rig.say(message=f"step {index}")
        assert len(rig.events()) == 25
        assert rig.recorder.dropped == 75
        await rig.say(about={**JOB, "metadata": {**JOB["metadata"], "uid": "u2"}})
        assert len(rig.events()) == 26
        rig.now += 300
        await rig.say(message="later")
        assert len(rig.events()) == 27

    virtual_time.run(body())


@pytest.mark.parametrize("code", [403, 404, 500])
def test_a_refusal_is_not_the_reconciles_trouble(code):
    async def body():
        rig = Rig()
        rig.fake.faults.append(Fault("write", "refuse", code=code))
        await rig.say()
        assert (rig.events(), rig.recorder.dropped) == ([], 1)
        await rig.say()
        assert len(rig.events()) == 1, "what was never written is no series"

    virtual_time.run(body())


def test_a_series_whose_event_the_server_dropped_begins_anew():
    async def body():
        rig = Rig()
        await rig.say()
        rig.fake.objects.clear()
        await rig.say()
        await rig.say()
        assert len(rig.events()) == 1

    virtual_time.run(body())


@given(st.text(max_size=3000))
def test_a_message_fits_whatever_its_alphabet(message):
    short = cut(message)
    assert len(short.encode()) <= LONGEST_MESSAGE
    assert short == message or (short.endswith("…") and message.startswith(short[:-1]))


def test_events_about_what_has_no_namespace_are_kept_in_default():
    async def body():
        rig = Rig()
        await rig.say(about={"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "uid": "u"}})
        assert rig.events()[0]["metadata"]["namespace"] == "default"

    virtual_time.run(body())
