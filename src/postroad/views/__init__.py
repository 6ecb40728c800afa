"""Views: one description for each JSON answer, which the CLI prints and the HTTP API sends."""

from postroad.views.agents import *  # noqa: F403
from postroad.views.overview import *  # noqa: F403
from postroad.views.queues import *  # noqa: F403
from postroad.views.service import *  # noqa: F403
from postroad.views.work import *  # noqa: F403
