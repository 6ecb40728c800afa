"""HTTP: the API that `postroad up` serves. `create_app(context)` builds it."""

from postroad.http.app import create_app as create_app, make_server as make_server
from postroad.http.context import Context as Context, Demo as Demo, make_context as make_context
from postroad.http.idempotency import AnswerStore as AnswerStore
from postroad.http.polls import MAX_OPEN as MAX_OPEN
from postroad.http.tokens import (
    PREFIX as PREFIX,
    TokenFile as TokenFile,
    kept_secret as kept_secret,
    read_secret as read_secret,
)
