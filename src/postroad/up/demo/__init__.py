"""The demo: five scenes, one for each thing that Postroad does, and a failure to repair."""

from typing import TYPE_CHECKING

from postroad.lazy import lazy_names

if TYPE_CHECKING:
    from postroad.up.demo.notifications import chat_file
    from postroad.up.demo.once import play_once
    from postroad.up.demo.story import (
        DEMO_URL,
        Story,
        demo_database,
        demo_settings,
        narrate,
        open_story,
        play,
        prepare,
        refuse_other_data,
        refuse_other_store,
    )
else:  # what the scenes use is loaded where a demo plays
    __getattr__ = lazy_names(
        __name__,
        {
            "postroad.up.demo.notifications": "chat_file",
            "postroad.up.demo.once": "play_once",
            "postroad.up.demo.story": "DEMO_URL Story demo_database demo_settings narrate"
            " open_story play prepare refuse_other_data refuse_other_store",
        },
    )

__all__ = [
    "DEMO_URL",
    "Story",
    "chat_file",
    "demo_database",
    "demo_settings",
    "narrate",
    "open_story",
    "play",
    "play_once",
    "prepare",
    "refuse_other_data",
    "refuse_other_store",
]
