"""The pages of the dashboard: templates, style, script and drawings. It gets documents and returns text."""

from postroad.dashboard.pages import (
    NAVIGATION as NAVIGATION,
    Chrome as Chrome,
    asset as asset,
    render as render,
    seconds as seconds,
)
