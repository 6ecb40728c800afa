"""The pages of the dashboard: templates, style, script and drawings. It gets documents and returns text."""

from postroad.dashboard.charts import flow as flow, level as level
from postroad.dashboard.drawings import (
    MOST_DRAWN as MOST_DRAWN,
    MOST_QUEUES as MOST_QUEUES,
    job_drawing as job_drawing,
    map_drawing as map_drawing,
    place_of as place_of,
)
from postroad.dashboard.pages import (
    NAVIGATION as NAVIGATION,
    Chrome as Chrome,
    asset as asset,
    render as render,
)
from postroad.dashboard.stories import failure_of as failure_of, next_of as next_of
from postroad.dashboard.texts import seconds as seconds
