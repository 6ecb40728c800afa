"""HTTP: the API that `postroad up` serves. `create_app(context)` builds it."""

from typing import TYPE_CHECKING

from postroad.lazy import lazy_names

if TYPE_CHECKING:
    from postroad.http.app import create_app as create_app, make_server as make_server
    from postroad.http.context import Context as Context, Demo as Demo
    from postroad.http.idempotency import AnswerStore as AnswerStore
    from postroad.http.polls import MAX_OPEN as MAX_OPEN
    from postroad.http.tokens import (
        PREFIX as PREFIX,
        TokenFile as TokenFile,
        kept_secret as kept_secret,
        read_secret as read_secret,
    )
else:  # only the child that serves needs the framework
    __getattr__ = lazy_names(
        __name__,
        {
            "postroad.http.app": "create_app make_server",
            "postroad.http.context": "Context Demo",
            "postroad.http.idempotency": "AnswerStore",
            "postroad.http.polls": "MAX_OPEN",
            "postroad.http.tokens": "PREFIX TokenFile kept_secret read_secret",
        },
    )
