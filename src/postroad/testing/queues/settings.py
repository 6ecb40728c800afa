"""Queues are made, found, changed and removed under their names."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest

from postroad.errors import ConfigurationError, InvalidInput, InvalidName, NotSupported, QueueExists, QueueNotFound
from postroad.testing.queues.fixture import LEASE_OVER, QueueFixture, QueueRules, bodies, take_one, texts


class SettingRules(QueueRules):
    """One name, one queue, one set of settings."""

    def test_creating_a_queue_again_with_the_same_settings_gives_the_same_queue(self, ground: QueueFixture) -> None:
        spec = ground.spec()
        ground.queues.create_queue(spec).send(texts("kept"))

        again = ground.queues.create_queue(spec)

        assert bodies([take_one(again)]) == ["kept"]

    def test_creating_a_queue_with_other_settings_names_the_differences(self, ground: QueueFixture) -> None:
        spec = ground.spec(visibility=5, retention=600)
        ground.queues.create_queue(spec)

        with pytest.raises(QueueExists, match="visibility") as refused:
            ground.queues.create_queue(dataclasses.replace(spec, visibility=6, retention=700))

        assert refused.value.differences == {"visibility": (5, 6), "retention": (600, 700)}
        assert ground.queues.queue_spec(spec.name).visibility == 5

    def test_a_queue_is_found_and_listed_by_its_name(self, ground: QueueFixture) -> None:
        queue = ground.create()

        found = ground.queues.queue(queue.name)
        found.send(texts("one"))

        assert found.name == queue.name
        assert queue.name in ground.queues.queues()
        assert bodies([take_one(queue)]) == ["one"]

    def test_the_settings_of_a_queue_are_those_it_was_made_with(self, ground: QueueFixture) -> None:
        dead = ground.create("dead", fifo=True)
        spec = ground.spec(
            fifo=True,
            visibility=7,
            retention=600,
            delay=2,
            receive_wait=3,
            max_message_bytes=2_048,
            dead_letter=dead.name,
            max_receives=4,
            content_dedup=True,
            dedup_scope="group",
            redrive_allow="none",
        )

        ground.queues.create_queue(spec)

        assert ground.queues.queue_spec(spec.name) == spec

    def test_an_unknown_queue_is_not_found(self, ground: QueueFixture) -> None:
        unknown = ground.spec()

        with pytest.raises(QueueNotFound, match=unknown.name):
            ground.queues.queue(unknown.name)
        with pytest.raises(QueueNotFound, match=unknown.name):
            ground.queues.update_queue(unknown)
        with pytest.raises(QueueNotFound, match=unknown.name):
            ground.queues.delete_queue(unknown.name)

    @pytest.mark.parametrize("spec", [5, None, "jobs", {"name": "jobs"}, []])
    def test_what_is_no_spec_makes_and_changes_no_queue(self, ground: QueueFixture, spec: Any) -> None:
        before = ground.queues.queues()

        for verb in (ground.queues.create_queue, ground.queues.update_queue):
            with pytest.raises(InvalidInput, match="is not a QueueSpec") as refused:
                verb(spec)
            assert refused.value.field == "spec"
            assert "QueueSpec(name)" in refused.value.remedy

        assert ground.queues.queues() == before

    @pytest.mark.parametrize("name", [5, None, b"jobs", [], "no name"])
    def test_what_is_no_name_finds_no_queue(self, ground: QueueFixture, name: Any) -> None:
        for verb in (ground.queues.queue, ground.queues.queue_spec, ground.queues.delete_queue):
            with pytest.raises(InvalidName) as refused:
                verb(name)
            assert refused.value.field == "name"

    def test_a_changed_visibility_holds_for_the_next_receive(self, ground: QueueFixture) -> None:
        queue = ground.create(visibility=60)
        queue.send(texts("one"))

        ground.change(queue, visibility=1)
        take_one(ground.queues.queue(queue.name))
        ground.advance(LEASE_OVER)

        assert take_one(ground.queues.queue(queue.name)).receive_count == 2

    def test_a_dead_letter_queue_can_be_given_later(self, ground: QueueFixture) -> None:
        queue, dead = ground.create(), ground.create("dead")
        queue.send(texts("poison"))

        ground.change(queue, dead_letter=dead.name)
        changed = ground.queues.queue(queue.name)
        changed.reject([take_one(changed)], reason="bad")

        assert bodies([take_one(dead)]) == ["poison"]

    def test_a_dead_letter_queue_that_is_not_there_is_refused(self, ground: QueueFixture) -> None:
        spec = ground.spec(dead_letter="nowhere")

        with pytest.raises(ConfigurationError) as refused:
            ground.queues.create_queue(spec)

        assert refused.value.field == "dead_letter"
        assert spec.name not in ground.queues.queues()

    def test_a_deleted_queue_is_gone_with_what_it_held(self, ground: QueueFixture) -> None:
        queue = ground.create()
        queue.send(texts("one"))

        ground.queues.delete_queue(queue.name)

        assert queue.name not in ground.queues.queues()
        with pytest.raises(QueueNotFound):
            ground.queues.queue(queue.name)
        with pytest.raises(QueueNotFound):
            queue.send(texts("two"))

    def test_a_queue_made_again_after_its_deletion_is_empty(self, ground: QueueFixture) -> None:
        spec = ground.spec()
        ground.queues.create_queue(spec).send(texts("old"))

        ground.queues.delete_queue(spec.name)
        again = ground.queues.create_queue(spec)

        assert again.receive() == []

    def test_a_queue_that_nobody_renews_is_removed_with_what_it_holds(self, ground: QueueFixture) -> None:
        queue = self._short_lived(ground)
        ground.queues.queue(queue).send(texts("one"))

        ground.jump(61)

        assert queue not in ground.queues.queues()
        with pytest.raises(QueueNotFound):
            ground.queues.queue(queue)

    def test_receiving_renews_a_queue(self, ground: QueueFixture) -> None:
        name = self._short_lived(ground)

        for _ in range(3):
            ground.jump(40)
            ground.queues.queue(name).receive()

        assert name in ground.queues.queues()

    def test_a_queue_without_a_life_span_stays(self, ground: QueueFixture) -> None:
        queue = ground.create()

        ground.jump(30 * 86_400)

        assert queue.name in ground.queues.queues()

    def test_an_adapter_that_cannot_remove_idle_queues_says_so(self, ground: QueueFixture) -> None:
        if ground.create().traits.auto_deletes:
            pytest.skip("this adapter removes them, says the trait")
        spec = ground.spec(auto_delete_after=60)

        with pytest.raises(NotSupported):
            ground.queues.create_queue(spec)

        assert spec.name not in ground.queues.queues()

    def test_making_one_queue_from_many_threads_makes_one_queue(self, ground: QueueFixture) -> None:
        spec = ground.spec()
        failures: list[Exception] = []

        def make() -> None:
            try:
                ground.queues.create_queue(spec).send(texts("one"))
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=make) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert failures == []
        assert ground.queues.queue(spec.name).stats().visible == 4

    def _short_lived(self, ground: QueueFixture) -> str:
        if not ground.create().traits.auto_deletes:
            pytest.skip("the adapter removes no idle queues, says the trait")
        return ground.create(auto_delete_after=60).name
