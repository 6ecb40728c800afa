"""The pages of the dashboard: templates, style, script and drawings. It gets documents and returns text."""

from postroad.dashboard.charts import Chart as Chart, flow as flow, level as level
from postroad.dashboard.pages import (
    NAVIGATION as NAVIGATION,
    Chrome as Chrome,
    asset as asset,
    render as render,
)
from postroad.dashboard.texts import seconds as seconds
